import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.retry.RetryForever;

/**
 * Curator's side of the interop specs. It reads commands from a list in Redis
 * and answers into another; spec/interop/peer.lua gives them and says what
 * they are. Each task of a command is a thread here, since that is who holds a
 * lock of Curator's.
 *
 * <p>Arguments: NAME TIMEOUT ADDRESS, that is the name of the lists, the
 * session's time-out in milliseconds, and the server of the lists. LOCKS in the
 * environment is where the locks are: zk://HOST:PORT.
 */
public final class Peer {
    private final String name;
    private final URI address;
    private final CuratorFramework client;
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final Map<String, Object> shared = new ConcurrentHashMap<>();
    private final Map<String, Lease> leases = new ConcurrentHashMap<>();
    private final Map<String, Election> elections = new ConcurrentHashMap<>();
    private final Map<String, Integer> counts = new ConcurrentHashMap<>();
    private final ThreadLocal<Redis> store =
        ThreadLocal.withInitial(this::connect);

    private Peer(String[] args) throws Exception {
        name = args[0];
        address = URI.create(args[2]);
        client = CuratorFrameworkFactory.newClient(
            URI.create(System.getenv("LOCKS")).getAuthority(),
            Integer.parseInt(args[1]), 2000, new RetryForever(100));
        client.start();
        client.blockUntilConnected();
    }

    public static void main(String[] args) throws Exception {
        new Peer(args).serve();
    }

    private Redis connect() {
        try {
            return new Redis(address.getHost(), address.getPort());
        } catch (java.io.IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private void serve() {
        System.out.println("ready");
        while (true) {
            String[] words = store.get()
                .call("BLPOP", name + ":commands", 0).split(" ");
            threads.computeIfAbsent(words[1],
                    key -> Executors.newSingleThreadExecutor())
                .execute(() -> run(words));
        }
    }

    private void run(String[] words) {
        String answer;
        try {
            answer = act(words);
        } catch (Exception e) {
            e.printStackTrace();
            answer = "error " + e;
        }
        store.get().call("RPUSH", name + ":answers", words[0] + " " + answer);
    }

    private String act(String[] words) throws Exception {
        String task = words[1], kind = words[3], path = "/" + words[4];
        String key = words[5 > words.length - 1 ? 4 : 5];
        switch (words[2]) {
            case "take":
                return take(task, kind, path, Long.parseLong(words[5]))
                    ? "ok" : "no";
            case "give": return give(task, kind, path) ? "ok" : "no";
            case "heed": return heed(task, kind, path) ? "ok" : "no";
            case "revoke": return revoke(task, kind, path) ? "ok" : "no";
            case "state":
                return "ok " + (isLocked(path) ? 1 : 0) + " "
                    + count(task, kind, path) + " -2";
            case "contend":
                return contend(task, kind, path, key, words[6]);
            case "leader":
                return "ok " + Election.leader(client, kind, path);
            case "crowd": return crowd(path, key, words[6]);
            case "set": barrier(path).setBarrier(); return "ok";
            case "delete": barrier(path).removeBarrier(); return "ok";
            case "await":
                return barrier(path).waitOnBarrier(Long.parseLong(words[5]),
                    TimeUnit.MILLISECONDS) ? "ok" : "no";
            case "compare":
                return compare(task, kind, path, key, words[6]);
            default: return "error what is " + words[2] + "?";
        }
    }

    private DistributedBarrier barrier(String path) {
        return new DistributedBarrier(client, path);
    }

    // Each task is a member. Its kind is "double" and how many there are.
    private DistributedDoubleBarrier member(String task, String kind,
            String path) {
        return (DistributedDoubleBarrier) shared.computeIfAbsent(task + path,
            key -> new DistributedDoubleBarrier(client, path,
                kind.charAt(6) - '0'));
    }

    // A mutex of a semaphore is held by an object, the others by a thread.
    private InterProcessLock lock(String task, String kind, String path) {
        switch (kind) {
            case "lock":
                return (InterProcessLock) shared.computeIfAbsent(path,
                    key -> new InterProcessMutex(client, path));
            case "mutex":
                return (InterProcessLock) shared.computeIfAbsent(task + path,
                    key -> new InterProcessSemaphoreMutex(client, path));
            default:
                InterProcessReadWriteLock pair = (InterProcessReadWriteLock)
                    shared.computeIfAbsent(path,
                        key -> new InterProcessReadWriteLock(client, path));
                return kind.equals("read") ? pair.readLock() : pair.writeLock();
        }
    }

    private int count(String task, String kind, String path) {
        return counts.getOrDefault(task + " " + kind + path, 0);
    }

    private boolean take(String task, String kind, String path, long wait)
            throws Exception {
        if (kind.equals("semaphore")) {
            return takePermit(task, path, wait);
        } else if (Election.is(kind)) {
            Election election = Election.lead(client, kind, path,
                name + "/" + task, wait);
            if (election != null) {
                elections.put(task + path, election);
            }
            return election != null;
        }
        if (kind.startsWith("double")) {
            member(task, kind, path).enter();
            return true;
        }
        InterProcessLock lock = lock(task, kind, path);
        if (wait < 0) {
            lock.acquire();
        } else if (!lock.acquire(wait, TimeUnit.MILLISECONDS)) {
            return false;
        }
        counts.merge(task + " " + kind + path, 1, Integer::sum);
        return true;
    }

    private boolean give(String task, String kind, String path)
            throws Exception {
        if (kind.startsWith("double")) {
            member(task, kind, path).leave();
            shared.remove(task + path);
            return true;
        }
        if (kind.equals("semaphore")) {
            Lease lease = leases.remove(task + path);
            if (lease != null) {
                semaphore(path).returnLease(lease);
            }
            return lease != null;
        } else if (Election.is(kind)) {
            Election election = elections.remove(task + path);
            if (election != null) {
                election.resign();
            }
            return election != null;
        }
        try {
            lock(task, kind, path).release();
        } catch (IllegalMonitorStateException | IllegalStateException e) {
            return false;
        }
        counts.merge(task + " " + kind + path, -1, Integer::sum);
        return true;
    }

    private boolean heed(String task, String kind, String path)
            throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        InterProcessMutex lock = (InterProcessMutex) lock(task, kind, path);
        lock.makeRevocable(each -> asked.countDown());
        take(task, kind, path, -1);
        boolean isAsked = asked.await(30, TimeUnit.SECONDS);
        give(task, kind, path);
        return isAsked;
    }

    private boolean revoke(String task, String kind, String path)
            throws Exception {
        if (client.checkExists().forPath(path) == null) {
            return false;
        }
        InterProcessMutex lock = (InterProcessMutex) lock(task, kind, path);
        boolean isAny = false;
        for (String node : lock.getParticipantNodes()) {
            Revoker.attemptRevoke(client, node);
            isAny = true;
        }
        return isAny;
    }

    // Its number of permits is a SharedCount below it, where rlock has it.
    private InterProcessSemaphoreV2 semaphore(String path) {
        return (InterProcessSemaphoreV2) shared.computeIfAbsent(path, key -> {
            SharedCount limit = new SharedCount(client, path + "/limit", 0);
            try {
                limit.start();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            return new InterProcessSemaphoreV2(client, path, limit);
        });
    }

    private boolean takePermit(String task, String path, long wait)
            throws Exception {
        Lease lease = wait < 0 ? semaphore(path).acquire()
            : semaphore(path).acquire(wait, TimeUnit.MILLISECONDS);
        if (lease != null) {
            leases.put(task + path, lease);
        }
        return lease != null;
    }

    private String crowd(String path, String key, String rounds)
            throws Exception {
        Redis redis = store.get();
        long most = 0;
        for (int i = 0; i < Integer.parseInt(rounds); i++) {
            Lease lease = semaphore(path).acquire();
            most = Math.max(most, Long.parseLong(redis.call("INCR", key)));
            redis.call("DECR", key);
            semaphore(path).returnLease(lease);
        }
        return "ok " + most;
    }

    private boolean isLocked(String path) throws Exception {
        if (client.checkExists().forPath(path) == null) {
            return false;
        }
        String leases = path + "/leases";
        boolean isMutex = client.checkExists().forPath(leases) != null;
        return !client.getChildren().forPath(isMutex ? leases : path)
            .isEmpty();
    }

    private String contend(String task, String kind, String path, String key,
            String rounds) throws Exception {
        Redis redis = store.get();
        int switches = 0;
        for (int i = 0; i < Integer.parseInt(rounds); i++) {
            take(task, kind, path, -1);
            long before = Long.parseLong(redis.call("GET", key));
            redis.call("SET", key, before + 1);
            redis.call("INCR", key + ":sum");
            if (!name.equals(redis.call("GETSET", key + ":last", name))) {
                switches++;
            }
            if (!give(task, kind, path)) {
                return "error lost in round " + i;
            }
        }
        return "ok " + switches + " 0";
    }

    private String compare(String task, String kind, String path, String key,
            String rounds) throws Exception {
        Redis redis = store.get();
        int differences = 0;
        for (int i = 0; i < Integer.parseInt(rounds); i++) {
            take(task, kind, path, -1);
            if (!redis.call("GET", key).equals(redis.call("GET",
                    key + ":sum"))) {
                differences++;
            }
            give(task, kind, path);
        }
        return "ok " + differences;
    }
}
