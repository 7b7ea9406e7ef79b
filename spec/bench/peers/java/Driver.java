import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Locale;

/**
 * The drivers of libraries in Java; spec/bench/peers/run says what they are
 * told and print.
 *
 * <p>java LIBRARY PATTERN KIND TASKS SECONDS WARM_UP FILE ADDRESS...
 */
final class Driver {
    private static final int HOLD = 5, REST = 1; // ms

    /** What a task takes and gives back. */
    interface Taken {
        void take() throws Exception;

        void give() throws Exception;
    }

    /** A library. */
    interface Library {
        void connect(String[] addresses) throws Exception;

        /** What the task i takes; null: the library has no such kind. */
        Taken make(String kind, String name, int i);

        void close();
    }

    private static Library library;
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

    private static Taken make(String kind, String name, int i) {
        Taken made = library.make(kind, name, i);
        if (made == null) {
            System.exit(3);
        }
        return made;
    }

    static void drive(Library its, String[] args) throws Exception {
        library = its;
        String pattern = args[0], kind = args[1];
        int tasks = Integer.parseInt(args[2]);
        double seconds = Double.parseDouble(args[3]);
        double warm = Double.parseDouble(args[4]);
        library.connect(Arrays.copyOfRange(args, 6, args.length));
        if (pattern.equals("start")) {
            Taken lock = make(kind, "bench", 0);
            lock.take();
            lock.give();
            library.close();
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
