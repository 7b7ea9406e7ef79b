import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.stream.Stream;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Redisson's side of the interop specs. It reads commands from a list in Redis
 * and answers into another; spec/interop/peer.lua gives them and says what
 * they are. Each task of a command is a thread here, since that is who holds
 * a lock of Redisson's.
 *
 * <p>Arguments: NAME WATCHDOG ADDRESS MEMBER..., that is the name of the lists,
 * the watchdog's lease in milliseconds, the server of everything, and the
 * servers of RedLocks. If there is LOCKS in the environment, the locks are
 * there instead (see Servers); SHARDED is Redisson's shardedSubscriptionMode.
 */
public final class Peer {
    private final String name;
    private final int watchdog;
    private final String address;
    private final String[] members;
    private final RedissonClient control;
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final Map<String, Actions> actions = new ConcurrentHashMap<>();

    private Peer(String[] args) {
        name = args[0];
        watchdog = Integer.parseInt(args[1]);
        address = args[2];
        members = Stream.of(args).skip(3).toArray(String[]::new);
        control = connect(address);
    }

    public static void main(String[] args) throws Exception {
        new Peer(args).serve();
    }

    private RedissonClient connect(String server) {
        return Redisson.create(configure(server));
    }

    private Config configure(String server) {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setLockWatchdogTimeout(watchdog);
        config.setThreads(4);
        config.setNettyThreads(4);
        Servers.use(config, server);
        return config;
    }

    /** A member that is away is given up soon. */
    private RedissonClient connectToMember(String server) {
        Config config = configure(server);
        config.useSingleServer().setRetryAttempts(0).setTimeout(1000)
            .setConnectTimeout(1000);
        return Redisson.create(config);
    }

    private RedissonClient[] connectToMembers() {
        return Stream.of(members).map(this::connectToMember)
            .toArray(RedissonClient[]::new);
    }

    private void serve() throws InterruptedException {
        RBlockingQueue<String> commands =
            control.getBlockingQueue(name + ":commands");
        String locks = System.getenv("LOCKS");
        RedissonClient client = connect(locks == null ? address : locks);
        RedissonClient store = locks == null ? client : control;
        Kinds kinds = new Kinds(client, this::connectToMembers);
        System.out.println("ready");
        while (true) {
            String[] words = commands.take().split(" ");
            String task = words[1];
            threads.computeIfAbsent(task,
                    key -> Executors.newSingleThreadExecutor())
                .execute(() -> run(words, actions.computeIfAbsent(task,
                    key -> new Actions(client, store, kinds, name,
                        task))));
        }
    }

    private void run(String[] words, Actions who) {
        RQueue<String> answers = control.getQueue(name + ":answers");
        String answer;
        try {
            answer = who.act(words);
        } catch (Exception e) {
            e.printStackTrace();
            answer = "error " + e;
        }
        answers.add(words[0] + " " + answer);
    }
}
