"""The side of redis-py's Lock in the interop specs; or of kazoo's.

It reads commands from a list in Redis and answers into another;
spec/interop/peer.lua gives them and says what they are.

    python peer.py NAME LEASE ADDRESS MEMBER...

NAME is that of the lists, LEASE the one of who names none, in milliseconds,
ADDRESS the server of everything, and MEMBERs are those of RedLocks: redis-py
has none, so here it is a lock on each server of a majority. Each task of a
command is a thread here, since that is who holds a lock of redis-py's.

If the environment has LOCKS, zk://HOST:PORT, the locks are kazoo's, there.
"""

import os
import queue
import sys
import threading
import time

import redis
from redis.exceptions import LockError

NAME, LEASE, ADDRESS, *MEMBERS = sys.argv[1:]
PAUSE = 0.005  # seconds between two tries


def connect(address):
    return redis.Redis.from_url(address, decode_responses=True)


client = connect(ADDRESS)
majority = MEMBERS[: len(MEMBERS) // 2 + 1]
servers = {"simple": [client], "red_simple": [connect(m) for m in majority]}


class Ensemble:
    """kazoo's client, with the methods of redis-py's that are used here."""

    def __init__(self, url):
        from kazoo.client import KazooClient

        self.client = KazooClient(url[len("zk://") :], int(LEASE) / 1000)
        self.client.start()

    def lock(self, name, timeout, sleep):
        from kazoo.exceptions import LockTimeout

        lock = self.client.Lock("/" + name, extra_lock_patterns=["-lock-"])
        acquire = lock.acquire

        def within(blocking_timeout):
            if blocking_timeout == 0:
                return acquire(blocking=False)
            try:
                return acquire(timeout=blocking_timeout)
            except LockTimeout:
                return False

        lock.acquire = within
        return lock


if "LOCKS" in os.environ:
    servers = {"lock": [Ensemble(os.environ["LOCKS"])]}


def release(lock):
    try:
        lock.release()
        return True
    except LockError:
        return False


def extend(lock, seconds):
    try:
        return lock.extend(seconds, replace_ttl=True)
    except LockError:
        return False


class Task(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.lines = queue.Queue()
        self.locks = {}
        self.start()

    def run(self):
        while True:
            number, _, verb, *more = self.lines.get()
            try:
                result = getattr(self, verb)(*more)
                answer = {True: "ok", False: "no"}.get(result, result)
            except Exception as error:
                answer = f"error {error!r}"
            client.rpush(NAME + ":answers", f"{number} {answer}")

    def take(self, kind, name, wait, lease):
        wait, lease = int(wait), int(LEASE) if int(lease) < 0 else int(lease)
        end = time.monotonic() + (3600 if wait < 0 else wait / 1000)
        while not self.attempt(kind, name, end, lease):
            if time.monotonic() >= end:
                return False
            time.sleep(PAUSE)
        return True

    def attempt(self, kind, name, end, lease):
        """All or nothing; waits for the first one only."""
        taken = self.locks[kind, name] = []
        for server in servers[kind]:
            lock = server.lock(name, timeout=lease / 1000, sleep=PAUSE)
            left = 0 if taken else max(0, end - time.monotonic())
            if not lock.acquire(blocking_timeout=left):
                self.give(kind, name)
                return False
            taken.append(lock)
        return True

    def give(self, kind, name):
        locks = self.locks.pop((kind, name), [])
        return bool(locks) and all([release(lock) for lock in locks])

    def state(self, kind, name):
        names = servers[kind][0].client.get_children("/" + name)
        held = len(self.locks.get((kind, name), []))
        return f"ok {int(bool(names))} {held} -2"

    def renew(self, kind, name, _, lease):
        locks = self.locks.get((kind, name), [])
        return bool(locks) and all(
            [extend(lock, int(lease) / 1000) for lock in locks]
        )

    def contend(self, kind, name, key, rounds):
        switches = 0
        for i in range(int(rounds)):
            if not self.take(kind, name, -1, -1):
                raise RuntimeError(f"not taken in round {i}")
            client.set(key, int(client.get(key)) + 1)
            client.incr(key + ":sum")
            if client.getset(key + ":last", NAME) != NAME:
                switches += 1
            if not self.give(kind, name):
                raise RuntimeError(f"lost in round {i}")
            client.get(key)  # others get a chance
        return f"ok {switches} 0"


def main():
    tasks = {}
    print("ready", flush=True)
    while True:
        # redis-py gives up on an answer that takes too long.
        reply = client.blpop([NAME + ":commands"], timeout=1)
        if reply:
            words = reply[1].split()
            if words[1] not in tasks:
                tasks[words[1]] = Task()
            tasks[words[1]].lines.put(words)


main()
