import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

/** The driver of Curator. */
final class CuratorDriver implements Driver.Library {
    private CuratorFramework client;

    public static void main(String[] args) throws Exception {
        Driver.drive(new CuratorDriver(), args);
    }

    @Override public void connect(String[] addresses) throws Exception {
        client = CuratorFrameworkFactory.newClient(addresses[0],
            new RetryForever(100));
        client.start();
        client.blockUntilConnected();
    }

    @Override public void close() {
        client.close();
    }

    @Override public Driver.Taken make(String kind, String name, int i) {
        if (!kind.equals("zookeeper")) {
            return null;
        }
        var lock = new InterProcessMutex(client, "/" + name);
        return new Driver.Taken() {
            @Override public void take() throws Exception {
                lock.acquire();
            }

            @Override public void give() throws Exception {
                lock.release();
            }
        };
    }
}
