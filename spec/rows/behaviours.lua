--- Redisson's own tests of its locks, as far as they apply to any client, and
--- which kinds of ours pass them: each kind in `kinds`, except those listed as
---
---   no        the test does not apply to them: why
---   differs   they behave differently, as a test of that name asserts: how
---
--- spec/redis/behaviours_spec.lua checks that there is a test of that name for
--- each kind that passes or differs.
---
--- Left out are tests of Java internals and of the rate limiter, which rlock
--- lacks. What RedissonReadWriteLockTest and RedissonFasterMultiLockTest repeat
--- from RedissonLockTest is listed there.

local kinds = require "spec.tools.kinds"

local function names(test) return table.concat(kinds.names(test), " ") end

local function is_ours(kind) return kind ~= kinds.of.few end
local function is_single(kind) return is_ours(kind) and not kind.pair end

local LOCKS, SINGLE = names(is_ours), names(is_single)
local PAIRS = "readwrite fair_readwrite"

-- The kinds with tests: each has a spec of its name, or rows in another.
local specs = { "multi", "red", "counters", "renewal" }
for _, kind in ipairs(require "rlock.lock.kinds") do
  specs[#specs + 1] = kind.name
end

local ENTERED_ONCE = { ["mutex simple"] = "they cannot be entered twice" }
local POLLING = { ["simple spin red"] = "their waiters poll" }
local BY_MEMBERS = { ["multi red"] = "their members are asked instead" }
local NO_DEADLINES = { fair_write = "its queue has no deadlines" }
local ONE_BY_ONE = { permits = "permits are taken and released one by one" }

return {
  specs = specs,

  { class = "RedissonLockTest", kinds = LOCKS,
    { "testSubscriptionsPerConnection", no = POLLING },
    { "testSinglePubSub", no = POLLING },
    { "testLockIsNotRenewedAfterInterruptedTryLock" },
    { "testRedisFailed" },
    { "testRemainTimeToLive2", no = ENTERED_ONCE, differs = BY_MEMBERS },
    { "testTryLockWait" },
    { "testLockUninterruptibly",
      differs = { [LOCKS] = "a task that is cancelled ends its lock()" } },
    { "testForceUnlock",
      differs = { ["multi red"] = "the locks they are made of are broken" } },
    { "testExpire" },
    { "testRemainTimeToLive", differs = BY_MEMBERS },
    { "testInCluster",
      no = { red = "its servers are independent of each other" },
      differs = { [LOCKS] = "on a node that has every slot: rlock follows no "
        .. "redirections" } },
    { "testAutoExpire" },
    { "testGetHoldCount", no = ENTERED_ONCE, differs = BY_MEMBERS },
    { "testIsHeldByCurrentThread" },
    { "testIsHeldByCurrentThreadOtherThread" },
    { "testIsLocked", differs = BY_MEMBERS },
    { "testIsLockedOtherThread", differs = BY_MEMBERS },
    { "testLockFailoverInCluster",
      no = { [LOCKS] = "rlock follows no redirections" } },
    { "testUnlockFail" },
    { "testLockUnlock" },
    { "testReentrancy", no = ENTERED_ONCE },
    { "testConcurrency_SingleInstance" },
    { "testConcurrencyLoop_MultiInstance" },
    { "testConcurrency_MultiInstance" },
    { "testLockListener", differs = {
      [LOCKS] = "the holder is told, without any keyspace events" } },
  },

  { class = "RedissonLockExpirationRenewalTest", kinds = LOCKS,
    { "testLockAfterTimeout", kinds = SINGLE },
    { "testReadLockAfterTimeout", kinds = "read fair_read" },
    { "testWriteLockAfterTimeout", kinds = "write fair_write" },
    { "testLockReentrantRenew", no = ENTERED_ONCE },
  },

  { class = "RedissonNonReentrantLockTest", kinds = "mutex simple",
    { "testContendingThreadBlocksAndAcquiresOnRelease" },
    { "testSameThreadReacquireThrows" },
    { "testCrossInstanceSameThreadReentryThrows" },
  },

  { class = "RedissonNonReentrantFairLockTest", kinds = "fair",
    { "testContendingThreadBlocksAndAcquiresOnRelease",
      no = { fair = "our only fair lock may be entered again" } },
    { "testSameThreadReacquireThrows",
      no = { fair = "our only fair lock may be entered again" } },
    { "testCrossInstanceSameThreadReentryThrows",
      no = { fair = "our only fair lock may be entered again" } },
  },

  { class = "RedissonSpinLockTest", kinds = "spin",
    { "testTryLockAsync" },
    { "testTimedTryLockAsync" },
    { "testTryLockAsyncWaitTime" },
    { "testTryLockAsyncFailed" },
    { "testTryLockAsyncSucceed" },
  },

  { class = "RedissonFencedLockTest", kinds = "fenced",
    { "testTokenIncrease",
      differs = { fenced = "tokens grow, but not by one" } },
  },

  { class = "RedissonFairLockTest", kinds = "fair fair_write",
    { "testLeaseTimeout" },
    { "testMultipleLocks" },
    { "testTryLockNonDelayed" },
    { "testConcurrency_MultiInstance_Ordering" },
    { "testAcquireFailedNotCalledOnRedisTimeout" },
    { "testWaitTimeoutDrift", no = NO_DEADLINES },
    { "testLockAcquiredTimeoutDrift", no = NO_DEADLINES },
    { "testFirstThreadDeathTimeoutDrift", no = NO_DEADLINES },
    { "testAcquireFailedTimeoutDrift_Descrete", no = NO_DEADLINES },
    { "testLockAcquiredBooleanTimeoutDrift_Descrete", no = NO_DEADLINES },
    { "testLockAcquiredTimeoutDrift_Descrete", no = NO_DEADLINES },
    { "testAbandonedTimeoutDrift_Descrete", no = NO_DEADLINES },
  },

  { class = "RedissonReadWriteLockTest", kinds = PAIRS,
    { "testReadLockExpiration" },
    { "testReadLockIsLocked" },
    { "testReadLockExpirationRenewal" },
    { "testName" },
    { "testWriteLockExpiration" },
    { "testReadLockLeaseTimeoutDiffThreadsWRR" },
    { "testReadLockLeaseTimeoutDiffThreadsRRW" },
    { "testReadLockLeaseTimeout" },
    { "testWR" },
    { "testWriteRead" },
    { "testWriteReadReentrancy" },
    { "testWriteLock" },
    { "testMultiRead" },
    { "testForceUnlock" },
    { "testReadWriteTTL" },
    { "testExpireRead" },
    { "testExpireWrite" },
    { "testHoldCount" },
    { "testReentrancy" },
    { "testMultiInstanceReadLockZombieCleanup" },
  },

  { class = "RedissonMultiLockTest", kinds = "multi red",
    { "testLockUnlock" },
    { "testWaitAndLeaseTimeouts",
      differs = { red = "at most one has it: each may get one server" } },
    { "testMultiThreads" },
    { "test()" },
  },

  { class = "RedissonFasterMultiLockTest", kinds = "multi",
    { "testSimpleLock" },
    { "testReentrantLock" },
    { "testRenewExpiration" },
    { "testTryLock" },
  },

  { class = "RedissonLockHeavyTest", kinds = "reentrant",
    { "lockUnlockRLock" },
    { "tryLockUnlockRLock" },
  },

  { class = "RedissonSemaphoreTest", kinds = "semaphore",
    { "testAcquireAfterAddPermits" },
    { "testZero" },
    { "testAcquireWithoutSetPermits" },
    { "testTrySetPermits" },
    { "testTrySetPermitsTTL" },
    { "testAddPermits" },
    { "testReducePermits" },
    { "testBlockingAcquire" },
    { "testBlockingNAcquire" },
    { "testTryNAcquire" },
    { "testReleaseWithoutPermits" },
    { "testDrainPermits" },
    { "testReleaseAcquire" },
    { "testReleaseIfExists",
      no = { semaphore = "rlock has no such release" } },
    { "testConcurrency_SingleInstance" },
    { "testConcurrencyLoopMax_MultiInstance" },
    { "testConcurrencyLoop_MultiInstance" },
    { "testConcurrency_MultiInstance_1_permits" },
  },

  { class = "RedissonPermitExpirableSemaphoreTest", kinds = "permits",
    { "testGetInClusterNameMapper",
      no = { permits = "rlock maps no names and follows no redirections" } },
    { "testUpdateLeaseTime",
      differs = { permits = "a lease is never shortened" } },
    { "testNotExistent" },
    { "testAvailablePermits" },
    { "testAcquiredPermits" },
    { "testGetPermits" },
    { "testExpiration" },
    { "testExpire" },
    { "testExpireTryAcquire" },
    { "testTrySetPermits",
      differs = { permits = "set() says how many in all, every time" } },
    { "testSetPermits" },
    { "testAddPermits",
      differs = { permits = "set() says how many in all" } },
    { "testBlockingAcquire" },
    { "testBlockingAcquireMany", no = ONE_BY_ONE },
    { "testTryAcquire" },
    { "testTryAcquireMany", no = ONE_BY_ONE },
    { "testReleaseWithoutPermits" },
    { "testReleaseExpired" },
    { "testConcurrency_SingleInstance" },
    { "testConcurrencyLoop_MultiInstance" },
    { "testAcquire" },
    { "testRelease" },
    { "testAcquireAsyncMany", no = ONE_BY_ONE },
    { "testReleaseAsyncMany", no = ONE_BY_ONE },
    { "testReleaseManyExpiredDoesNotThrow", no = ONE_BY_ONE },
    { "testTryReleaseManyExpired", no = ONE_BY_ONE },
    { "testReleaseManyNotExistOrExpired", no = ONE_BY_ONE },
    { "testGetLeaseTime",
      no = { permits = "nobody but the server is asked for it" } },
    { "testConcurrencyMultiPermits1", no = ONE_BY_ONE },
    { "testConcurrencyMultiPermits2", no = ONE_BY_ONE },
  },

  { class = "RedissonCountDownLatchTest", kinds = "latch",
    { "testAwaitTimeout" },
    { "testAwaitTimeoutFail" },
    { "testMultiAwait" },
    { "testCountDown" },
    { "testDelete" },
    { "testDeleteFailed" },
    { "testTrySetCount" },
    { "testCount" },
    { "testSingleCountDownAwait_SingleInstance" },
  },
}
