import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Locale;
import java.util.stream.Stream;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The driver of Redisson; spec/bench/peers/run says what it is told and prints.
 *
 * <p>java Driver PATTERN KIND TASKS SECONDS WARM_UP FILE ADDRESS...
 */
final class Driver {
    private static final int HOLD = 5, REST = 1, PERMITS = 4; // ms

    /** What a task takes and gives back. */
    private interface Taken {
        void take() throws Exception;

        void give() throws Exception;
    }

    private static RedissonClient[] clients;
    private static RandomAccessFile stamp;
    private static float[] samples = new float[1 << 16]; // microseconds
    private static int count;
    private static long total;
    private static boolean measuring;

    private Driver() {
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static double cpu() {
        var system = (com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    private static synchronized void sample(double seconds) {
        total++;
        if (measuring) {
            if (count == samples.length) {
                samples = Arrays.copyOf(samples, 2 * count);
            }
            samples[count++] = (float) (seconds * 1e6);
        }
    }

    private static Taken both(RLock lock) {
        return new Taken() {
            @Override public void take() {
                lock.lock();
            }

            @Override public void give() {
                lock.unlock();
            }
        };
    }

    private static Taken permit(String name) {
        RSemaphore all = clients[0].getSemaphore(name);
        all.trySetPermits(PERMITS);
        return new Taken() {
            @Override public void take() throws InterruptedException {
                all.acquire();
            }

            @Override public void give() {
                all.release();
            }
        };
    }

    /** A reader, and one time of twenty a writer. */
    private static Taken mostlyReader(String name, int first) {
        var lock = clients[0].getReadWriteLock(name);
        return new Taken() {
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

    @SuppressWarnings("deprecation")
    private static Taken make(String kind, String name, int i) {
        switch (kind) {
            case "lock": return both(clients[0].getLock(name));
            case "fair": return both(clients[0].getFairLock(name));
            case "rw": return mostlyReader(name, i);
            case "semaphore": return permit(name);
            case "red":
                return both(new RedissonRedLock(Stream.of(clients)
                    .map(client -> client.getLock(name))
                    .toArray(RLock[]::new)));
            default:
                System.exit(3);
                return null;
        }
    }

    private static void cycle(Taken lock) throws Exception {
        while (true) {
            double at = now();
            lock.take();
            lock.give();
            sample(now() - at);
        }
    }

    private static synchronized void put(double at) throws IOException {
        stamp.seek(0);
        stamp.write(String.format(Locale.ROOT, "%020.9f", at).getBytes());
    }

    private static synchronized double get() throws IOException {
        byte[] text = new byte[20];
        stamp.seek(0);
        stamp.readFully(text);
        return Double.parseDouble(new String(text));
    }

    private static void passOn(Taken lock) throws Exception {
        while (true) {
            lock.take();
            double at = now(), released = get();
            if (released > 0) {
                sample(at - released);
            }
            put(0);
            Thread.sleep(HOLD);
            put(now());
            double mine = get();
            lock.give();
            while (mine == get()) {
                Thread.sleep(REST);
            }
        }
    }

    private static void work(String pattern, Taken lock) {
        try {
            if (pattern.equals("handover")) {
                passOn(lock);
            } else {
                cycle(lock);
            }
        } catch (Throwable e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static synchronized void report(int number, double seconds,
            double used) throws IOException {
        String statm = Files.readString(Path.of("/proc/self/statm"));
        System.out.printf(Locale.ROOT, "{\"count\":%d,\"total\":%d,"
            + "\"seconds\":%.6f,\"cpu_s\":%.6f,\"rss_kb\":%d", number, total,
            seconds, used, 4 * Long.parseLong(statm.split(" ")[1]));
        if (count > 0) {
            Arrays.sort(samples, 0, count);
            System.out.printf(Locale.ROOT, ",\"p50_us\":%.1f,\"p99_us\":%.1f",
                samples[(int) ((count - 1) * 0.5)],
                samples[(int) ((count - 1) * 0.99)]);
        }
        System.out.println("}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    public static void main(String[] args) throws Exception {
        String pattern = args[0], kind = args[1];
        int tasks = Integer.parseInt(args[2]);
        double seconds = Double.parseDouble(args[3]);
        double warm = Double.parseDouble(args[4]);
        clients = Arrays.stream(args, 6, args.length).map(address -> {
            Config config = new Config();
            config.useSingleServer().setAddress("redis://" + address);
            return Redisson.create(config);
        }).toArray(RedissonClient[]::new);
        if (pattern.equals("start")) {
            Taken lock = make(kind, "bench", 0);
            lock.take();
            lock.give();
            clients[0].shutdown();
            return;
        }
        stamp = new RandomAccessFile(args[5], "rw");
        boolean holds = pattern.equals("hold");
        for (int i = 0; i < tasks; i++) {
            boolean own = holds || pattern.equals("cycles");
            Taken lock = make(kind, own ? "bench:" + i : "bench", i);
            if (holds) {
                lock.take();
            } else {
                Thread thread = new Thread(null, () -> work(pattern, lock),
                    "task", 1 << 18);
                thread.setDaemon(true);
                thread.start();
            }
        }
        if (!holds) {
            Thread.sleep((long) (warm * 1000));
        }
        synchronized (Driver.class) {
            measuring = true;
        }
        double at = now(), used = cpu();
        Thread.sleep((long) (seconds * 1000));
        used = cpu() - used;
        report(holds ? tasks : count, now() - at, used);
    }
}
