import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;

/** One term of a leader, by Curator's LeaderLatch or its LeaderSelector. */
final class Election {
    private static final long FOREVER = Long.MAX_VALUE;
    // Curator starts in the background, so it does not try just once.
    private static final long ONE_TRY = 2000;

    private final LeaderLatch latch;
    private final LeaderSelector selector;
    private final CountDownLatch took = new CountDownLatch(1);
    private final CountDownLatch done = new CountDownLatch(1);

    private Election(CuratorFramework client, String kind, String path,
            String id) throws Exception {
        boolean isLatch = kind.equals("leader-latch");
        latch = isLatch ? new LeaderLatch(client, path, id) : null;
        selector = isLatch ? null : new LeaderSelector(client, path,
            new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework framework)
                        throws Exception {
                    took.countDown();
                    done.await();
                }
            });
        if (!isLatch) {
            selector.setId(id);
        }
    }

    static boolean is(String kind) {
        return kind.startsWith("leader-");
    }

    /** Waits at most so many milliseconds to lead; null: not in time. */
    static Election lead(CuratorFramework client, String kind, String path,
            String id, long wait) throws Exception {
        Election election = new Election(client, kind, path, id);
        long most = wait < 0 ? FOREVER : wait == 0 ? ONE_TRY : wait;
        boolean leads;
        if (election.latch != null) {
            election.latch.start();
            leads = election.latch.await(most, TimeUnit.MILLISECONDS);
        } else {
            election.selector.start();
            leads = election.took.await(most, TimeUnit.MILLISECONDS);
        }
        if (leads) {
            return election;
        }
        election.resign();
        return null;
    }

    /** Resigns; a selector releases its mutex in a thread of its own. */
    void resign() throws Exception {
        if (latch != null) {
            latch.close();
            return;
        }
        done.countDown();
        if (took.getCount() > 0) {
            selector.close();
        }
        while (selector.getParticipants().stream()
                .anyMatch(one -> one.getId().equals(selector.getId()))) {
            Thread.sleep(1);
        }
        if (took.getCount() == 0) {
            selector.close();
        }
    }

    static String leader(CuratorFramework client, String kind, String path)
            throws Exception {
        Election election = new Election(client, kind, path, "");
        return election.latch != null ? election.latch.getLeader().getId()
            : election.selector.getLeader().getId();
    }
}
