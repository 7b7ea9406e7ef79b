import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.client.RedisTimeoutException;

/** What can be taken and given back, by the kinds' names in the specs. */
final class Kinds {
    private static final TimeUnit MS = TimeUnit.MILLISECONDS;

    private final RedissonClient client;
    private final Supplier<RedissonClient[]> connect;
    private RedissonClient[] members;

    Kinds(RedissonClient client, Supplier<RedissonClient[]> connect) {
        this.client = client;
        this.connect = connect;
    }

    /**
     * Takes it. The wait and the lease are milliseconds; a wait of -1 is for
     * ever, a lease of -1 is the watchdog's.
     *
     * @return null if it was not free in time, else the token or id, or ""
     */
    String take(String kind, String name, long wait, long lease)
            throws InterruptedException {
        while (true) {
            try {
                return tryTake(kind, name, wait, lease);
            } catch (RedisTimeoutException e) {
                if (wait >= 0 || !isDeaf(e)) {
                    throw e;
                }
                System.out.println(e.getMessage() + name);
            }
        }
    }

    /**
     * Has Redisson got nothing because it could not subscribe? On a busy
     * machine that happens now and then (its issues 4216, 5046).
     */
    private static boolean isDeaf(RedisTimeoutException e) {
        return e.getMessage().startsWith("Unable to acquire subscription lock");
    }

    private String tryTake(String kind, String name, long wait, long lease)
            throws InterruptedException {
        switch (kind) {
            case "semaphore": return takePermit(name, wait);
            case "permits": return takeId(name, wait, lease);
            case "fenced": return takeToken(name, wait, lease);
            default: return takeLock(lock(kind, name), wait, lease);
        }
    }

    private static String takeLock(RLock lock, long wait, long lease)
            throws InterruptedException {
        if (wait >= 0) {
            return lock.tryLock(wait, lease, MS) ? "" : null;
        }
        lock.lock(lease, MS);
        return "";
    }

    private String takeToken(String name, long wait, long lease)
            throws InterruptedException {
        RFencedLock lock = client.getFencedLock(name);
        if (wait < 0 && lease < 0) {
            return String.valueOf(lock.lockAndGetToken());
        }
        // lockAndGetToken() makes nothing of its lease.
        long most = wait < 0 ? 3_600_000 : wait;
        Long token = lock.tryLockAndGetToken(most, lease, MS);
        return token == null ? null : token.toString();
    }

    private String takePermit(String name, long wait)
            throws InterruptedException {
        if (wait >= 0) {
            return client.getSemaphore(name).tryAcquire(
                java.time.Duration.ofMillis(wait)) ? "" : null;
        }
        client.getSemaphore(name).acquire();
        return "";
    }

    private String takeId(String name, long wait, long lease)
            throws InterruptedException {
        var permits = client.getPermitExpirableSemaphore(name);
        return wait < 0 ? permits.acquire(lease, MS)
            : permits.tryAcquire(wait, lease, MS);
    }

    /** Gives it back; false if it was not the caller's. */
    boolean give(String kind, String name, String id) {
        try {
            switch (kind) {
                case "semaphore": client.getSemaphore(name).release(); break;
                case "permits":
                    return client.getPermitExpirableSemaphore(name)
                        .tryRelease(id);
                case "red": return giveRed(lock(kind, name), name);
                default: lock(kind, name).unlock();
            }
            return true;
        } catch (IllegalMonitorStateException e) {
            return false;
        }
    }

    /** A RedLock does not say whether it was the caller's. */
    private boolean giveRed(RLock lock, String name) {
        long held = Stream.of(members).filter(member -> {
            try {
                return member.getLock(name).isHeldByCurrentThread();
            } catch (RedisException e) {
                return false;
            }
        }).count();
        lock.unlock();
        return held > members.length / 2;
    }

    RLock lock(String kind, String name) {
        switch (kind) {
            case "lock": case "mutex": case "fenced_mutex":
                return client.getLock(name);
            case "fair": case "fenced_fair": return client.getFairLock(name);
            case "spin": return client.getSpinLock(name);
            case "fenced": return client.getFencedLock(name);
            case "read": return client.getReadWriteLock(name).readLock();
            case "write": case "fenced_write":
                return client.getReadWriteLock(name).writeLock();
            case "multi":
                return new RedissonMultiLock(Stream.of(name.split(","))
                    .map(client::getLock).toArray(RLock[]::new));
            case "red": return redLock(name);
            default: throw new IllegalArgumentException(kind);
        }
    }

    @SuppressWarnings("deprecation")
    private synchronized RLock redLock(String name) {
        if (members == null) {
            members = connect.get();
        }
        return new RedissonRedLock(Stream.of(members)
            .map(member -> member.getLock(name)).toArray(RLock[]::new));
    }
}
