import java.util.concurrent.TimeUnit;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** What one task does; spec/interop/peer.lua has the list of commands. */
final class Actions {
    private static final TimeUnit MS = TimeUnit.MILLISECONDS;

    private final RedissonClient client;
    private final RedissonClient store;
    private final Kinds kinds;
    private final String peer;
    private final String me;

    /** Of the clients, the first has the locks, the second all else. */
    Actions(RedissonClient client, RedissonClient store, Kinds kinds,
            String peer, String task) {
        this.client = client;
        this.store = store;
        this.kinds = kinds;
        this.peer = peer;
        me = peer + ":" + task;
    }

    String act(String[] words) throws InterruptedException {
        String verb = words[2], kind = words[3], name = words[4];
        switch (verb) {
            case "take":
                return given(kinds.take(kind, name, number(words, 5),
                    number(words, 6)));
            case "give": return given(kinds.give(kind, name, word(words, 5)));
            case "force": return given(kinds.lock(kind, name).forceUnlock());
            case "state": return state(kinds.lock(kind, name));
            case "visit": return visit(kind, name, words[5]);
            case "contend":
                return contend(kind, name, words[5], number(words, 6));
            case "compare":
                return compare(kind, name, words[5], number(words, 6));
            case "crowd":
                return crowd(kind, name, words[5], number(words, 6));
            case "await":
                return given(await(client.getCountDownLatch(name),
                    number(words, 5)));
            default: return count(verb, kind, name, words);
        }
    }

    private static String word(String[] words, int i) {
        return words.length > i ? words[i] : "";
    }

    private static long number(String[] words, int i) {
        return Long.parseLong(words[i]);
    }

    private static String given(String what) {
        return what == null ? "no" : ("ok " + what).trim();
    }

    private static String given(boolean what) {
        return what ? "ok" : "no";
    }

    private static String state(RLock lock) {
        return "ok " + (lock.isLocked() ? 1 : 0) + " " + lock.getHoldCount()
            + " " + lock.remainTimeToLive();
    }

    private static boolean await(RCountDownLatch latch, long wait)
            throws InterruptedException {
        if (wait >= 0) {
            return latch.await(wait, MS);
        }
        latch.await();
        return true;
    }

    private String visit(String kind, String name, String list)
            throws InterruptedException {
        String id = kinds.take(kind, name, -1, -1);
        store.getQueue(list).add(me);
        return given(kinds.give(kind, name, id));
    }

    private String contend(String kind, String name, String key, long rounds)
            throws InterruptedException {
        RBucket<String> last = store.getBucket(key + ":last");
        RBucket<String> tokens = store.getBucket(key + ":token");
        RBucket<String> counter = store.getBucket(key);
        int switches = 0, back = 0;
        for (long i = 0; i < rounds; i++) {
            String id = kinds.take(kind, name, -1, -1);
            long before = Long.parseLong(counter.get());
            counter.set(String.valueOf(before + 1));
            store.getAtomicLong(key + ":sum").incrementAndGet();
            if (!peer.equals(last.getAndSet(peer))) {
                switches++;
            }
            if (kind.equals("fenced") && Long.parseLong(
                    tokens.getAndSet(id)) >= Long.parseLong(id)) {
                back++;
            }
            if (!kinds.give(kind, name, id)) {
                return "error lost in round " + i;
            }
            counter.get();                       // others get a chance
        }
        return "ok " + switches + " " + back;
    }

    private String compare(String kind, String name, String key, long rounds)
            throws InterruptedException {
        int differences = 0;
        for (long i = 0; i < rounds; i++) {
            kinds.take(kind, name, -1, -1);
            Object counter = store.getBucket(key).get();
            if (!counter.equals(store.getBucket(key + ":sum").get())) {
                differences++;
            }
            if (!kinds.give(kind, name, "")) {
                return "error lost in round " + i;
            }
        }
        return "ok " + differences;
    }

    private String crowd(String kind, String name, String key, long rounds)
            throws InterruptedException {
        long most = 0;
        for (long i = 0; i < rounds; i++) {
            String id = kinds.take(kind, name, -1, 60_000);
            most = Math.max(most, store.getAtomicLong(key).incrementAndGet());
            store.getAtomicLong(key).decrementAndGet();
            kinds.give(kind, name, id);
        }
        return "ok " + most;
    }

    private String count(String verb, String kind, String name,
            String[] words) {
        switch (kind) {
            case "semaphore":
                return count(client.getSemaphore(name), verb, words);
            case "permits":
                return count(client.getPermitExpirableSemaphore(name), verb,
                    words);
            case "latch":
                return count(client.getCountDownLatch(name), verb, words);
            default: throw new IllegalArgumentException(verb + " " + kind);
        }
    }

    private static String count(RSemaphore semaphore, String verb,
            String[] words) {
        switch (verb) {
            case "set":
                return given(semaphore.trySetPermits((int) number(words, 5)));
            case "count": return "ok " + semaphore.availablePermits();
            case "drain": return "ok " + semaphore.drainPermits();
            case "add":
                semaphore.addPermits((int) number(words, 5));
                return "ok";
            default: throw new IllegalArgumentException(verb);
        }
    }

    private static String count(RPermitExpirableSemaphore permits, String verb,
            String[] words) {
        switch (verb) {
            case "set":
                permits.setPermits((int) number(words, 5));
                return "ok";
            case "count": return "ok " + permits.availablePermits();
            case "acquired": return "ok " + permits.acquiredPermits();
            case "add":
                permits.addPermits((int) number(words, 5));
                return "ok";
            case "renew":
                return given(permits.updateLeaseTime(words[5],
                    number(words, 6), MS));
            default: throw new IllegalArgumentException(verb);
        }
    }

    private static String count(RCountDownLatch latch, String verb,
            String[] words) {
        switch (verb) {
            case "set": return given(latch.trySetCount(number(words, 5)));
            case "count": return "ok " + latch.getCount();
            case "down":
                latch.countDown();
                return "ok";
            case "delete": return given(latch.delete());
            default: throw new IllegalArgumentException(verb);
        }
    }
}
