import java.util.Arrays;
import java.util.stream.Stream;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** The driver of Redisson. */
final class RedissonDriver implements Driver.Library {
    private static final int PERMITS = 4;

    private RedissonClient[] clients;

    public static void main(String[] args) throws Exception {
        Driver.drive(new RedissonDriver(), args);
    }

    @Override public void connect(String[] addresses) {
        clients = Arrays.stream(addresses).map(address -> {
            Config config = new Config();
            config.useSingleServer().setAddress("redis://" + address);
            return Redisson.create(config);
        }).toArray(RedissonClient[]::new);
    }

    @Override public void close() {
        clients[0].shutdown();
    }

    private Driver.Taken both(RLock lock) {
        return new Driver.Taken() {
            @Override public void take() {
                lock.lock();
            }

            @Override public void give() {
                lock.unlock();
            }
        };
    }

    private Driver.Taken permit(String name) {
        RSemaphore all = clients[0].getSemaphore(name);
        all.trySetPermits(PERMITS);
        return new Driver.Taken() {
            @Override public void take() throws InterruptedException {
                all.acquire();
            }

            @Override public void give() {
                all.release();
            }
        };
    }

    /** A reader, and one time of twenty a writer. */
    private Driver.Taken mostlyReader(String name, int first) {
        var lock = clients[0].getReadWriteLock(name);
        return new Driver.Taken() {
            private int n = 7 * first;
            private RLock held;

            @Override public void take() {
                held = ++n % 20 == 0 ? lock.writeLock() : lock.readLock();
                held.lock();
            }

            @Override public void give() {
                held.unlock();
            }
        };
    }

    @Override @SuppressWarnings("deprecation")
    public Driver.Taken make(String kind, String name, int i) {
        switch (kind) {
            case "lock": return both(clients[0].getLock(name));
            case "fair": return both(clients[0].getFairLock(name));
            case "rw": return mostlyReader(name, i);
            case "semaphore": return permit(name);
            case "red":
                return both(new RedissonRedLock(Stream.of(clients)
                    .map(client -> client.getLock(name))
                    .toArray(RLock[]::new)));
            default: return null;
        }
    }
}
