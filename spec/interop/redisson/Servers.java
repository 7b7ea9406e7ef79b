import java.util.stream.Stream;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.ShardedSubscriptionMode;

/**
 * Where Redisson connects to: redis://HOST:PORT,
 * redis+cluster://HOST:PORT,... or redis+sentinel://HOST:PORT,.../MASTER.
 */
final class Servers {
    private static final String CLUSTER = "redis+cluster://";
    private static final String SENTINEL = "redis+sentinel://";

    private Servers() {
    }

    static void use(Config config, String address) {
        if (address.startsWith(CLUSTER)) {
            useCluster(config, address.substring(CLUSTER.length()));
        } else if (address.startsWith(SENTINEL)) {
            useSentinel(config, address.substring(SENTINEL.length()));
        } else {
            config.useSingleServer().setAddress(address)
                .setConnectionMinimumIdleSize(4)
                .setSubscriptionConnectionMinimumIdleSize(1);
        }
    }

    private static String[] split(String hosts) {
        return Stream.of(hosts.split(",")).map(host -> "redis://" + host)
            .toArray(String[]::new);
    }

    /** The specs' questions are about now, which replicas do not know. */
    private static void askMasters(BaseMasterSlaveServersConfig<?> servers) {
        servers.setReadMode(ReadMode.MASTER)
            .setMasterConnectionMinimumIdleSize(4)
            .setSlaveConnectionMinimumIdleSize(1)
            .setSubscriptionConnectionMinimumIdleSize(1);
    }

    private static void useCluster(Config config, String hosts) {
        ClusterServersConfig servers = config.useClusterServers();
        askMasters(servers.addNodeAddress(split(hosts))
            .setShardedSubscriptionMode(ShardedSubscriptionMode.valueOf(
                System.getenv().getOrDefault("SHARDED", "AUTO"))));
    }

    private static void useSentinel(Config config, String address) {
        String[] parts = address.split("/");
        SentinelServersConfig servers = config.useSentinelServers();
        askMasters(servers.setMasterName(parts[1])
            .addSentinelAddress(split(parts[0])));
    }
}
