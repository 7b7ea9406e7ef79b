import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * A process of spec/soak/mixed_failovers_spec.lua: its threads increment a
 * counter under Redisson's lock, until the key "stop" is set, and record their
 * holds as spec/tools/hold_recorded.lua does. It prints what was thrown.
 *
 * <p>Arguments: THREADS LEASE NAME STORE FILE URL, the lease in seconds.
 */
public final class Recorder {
    private static final AtomicInteger SERIAL = new AtomicInteger();

    private final RedissonClient store;
    private final RLock lock;
    private final FileWriter file;
    private final Map<String, Integer> thrown = new TreeMap<>();

    private Recorder(String[] args) throws IOException {
        long lease = (long) (Double.parseDouble(args[1]) * 1000);
        store = connect(args[3], lease);
        file = new FileWriter(args[4], true);
        lock = connect(args[5], lease).getLock(args[2]);
    }

    public static void main(String[] args) throws Exception {
        Recorder recorder = new Recorder(args);
        Thread[] threads = new Thread[Integer.parseInt(args[0])];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(recorder::work);
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("Redisson has thrown " + recorder.thrown);
        System.exit(0);
    }

    private static RedissonClient connect(String server, long lease) {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setLockWatchdogTimeout(lease);
        config.setThreads(4);
        config.setNettyThreads(4);
        Servers.use(config, server);
        return Redisson.create(config);
    }

    /** A call that throws may leave a hold of the thread. */
    private void work() {
        boolean isClean = true;
        while (!store.getBucket("stop").isExists()) {
            try {
                while (!isClean && lock.isHeldByCurrentThread()) {
                    lock.unlock();
                }
                isClean = false;
                hold();
                isClean = true;
            } catch (RuntimeException e) {
                note(e);
            }
        }
    }

    private void hold() {
        lock.lock();
        String owner = "redisson/" + SERIAL.incrementAndGet();
        record("acquire", owner, 0);
        Object before = store.getBucket("counter").get();
        long number = before == null ? 1 : Long.parseLong((String) before) + 1;
        store.getBucket("counter").set(String.valueOf(number));
        store.getAtomicLong("grants:redisson").incrementAndGet();
        record("release", owner, number);
        lock.unlock();
    }

    private void record(String what, String owner, long number) {
        long ticket = store.getAtomicLong("clock").incrementAndGet();
        try {
            synchronized (file) {
                file.write(what + " " + owner + " " + ticket + " " + number
                    + "\n");
                file.flush();
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private synchronized void note(RuntimeException e) {
        String text = String.valueOf(e.getMessage());
        thrown.merge(e.getClass().getSimpleName() + ": "
            + text.substring(0, Math.min(60, text.length())), 1, Integer::sum);
    }
}
