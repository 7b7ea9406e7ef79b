"""The driver of redis-py, python-redis-lock and kazoo.

spec/bench/peers/run says what it is told and prints.

    python peer.py LIBRARY PATTERN KIND TASKS SECONDS WARM_UP FILE ADDRESS...
"""

import os
import sys
import threading
import time

import redis
import redis_lock
from kazoo.client import KazooClient

LIBRARY, PATTERN, KIND = sys.argv[1:4]
TASKS, SECONDS, WARM_UP = int(sys.argv[4]), *map(float, sys.argv[5:7])
FILE, ADDRESS = sys.argv[7:9]
HOLD, REST, LEASE = 0.005, 0.001, 30
now = time.monotonic

if LIBRARY == "kazoo":
    client = KazooClient(ADDRESS)
else:
    client = redis.Redis.from_url("redis://" + ADDRESS)
samples = []
total = 0
measuring = False


def make(name):
    if LIBRARY == "kazoo":
        return client.Lock("/" + name)
    if LIBRARY == "redis-py":
        return client.lock(name, timeout=LEASE)
    return redis_lock.Lock(
        client, name, expire=LEASE, auto_renewal=PATTERN == "hold"
    )


def sample(seconds):
    global total
    total += 1
    if measuring:
        samples.append(seconds)


def cycle(name):
    lock = make(name)
    while True:
        at = now()
        lock.acquire()
        lock.release()
        sample(now() - at)


stamp = os.open(FILE, os.O_RDWR) if FILE else None


def put(at):
    os.pwrite(stamp, b"%020.9f" % at, 0)


def get():
    return float(os.pread(stamp, 20, 0) or 0)


def pass_on(_):
    lock = make("bench")
    while True:
        lock.acquire()
        at, released = now(), get()
        if released > 0:
            sample(at - released)
        put(0)
        time.sleep(HOLD)
        put(now())
        mine = get()
        lock.release()
        while mine == get():
            time.sleep(REST)


def report(count, seconds, cpu):
    with open("/proc/self/statm") as file:
        rss = int(file.read().split()[1]) * 4
    text = f'"count":{count},"total":{total},"seconds":{seconds:.6f}'
    text += f',"cpu_s":{cpu:.6f},"rss_kb":{rss}'
    if samples:
        samples.sort()
        for share in 50, 99:
            value = samples[(len(samples) - 1) * share // 100] * 1e6
            text += f',"p{share}_us":{value:.1f}'
    print("{" + text + "}", flush=True)
    os._exit(0)


def main():
    global measuring
    own = "zookeeper" if LIBRARY == "kazoo" else "lock"
    if KIND != own or PATTERN == "readers":
        sys.exit(3)
    if LIBRARY == "kazoo":
        client.start()
    if PATTERN == "hold" and LIBRARY == "redis-py":
        sys.exit(3)
    if PATTERN == "start":
        lock = make("bench")
        lock.acquire()
        lock.release()
        return
    if PATTERN == "hold":
        if TASKS > 1000:  # a thread each
            sys.exit(3)
        locks = [make(f"bench:{i}") for i in range(TASKS)]
        for lock in locks:
            lock.acquire()
    else:
        work = pass_on if PATTERN == "handover" else cycle
        for i in range(TASKS):
            name = f"bench:{i}" if PATTERN == "cycles" else "bench"
            threading.Thread(target=work, args=(name,), daemon=True).start()
        time.sleep(WARM_UP)
    measuring = True
    at, cpu = now(), time.process_time()
    time.sleep(SECONDS)
    measuring = False
    seconds, cpu = now() - at, time.process_time() - cpu
    report(TASKS if PATTERN == "hold" else len(samples), seconds, cpu)


main()
