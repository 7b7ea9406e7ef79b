"""The side of redis-py's Lock in the interop specs.

It reads commands from a list in Redis and answers into another;
spec/interop/peer.lua gives them and says what they are.

    python peer.py NAME LEASE ADDRESS

NAME is that of the lists, LEASE the one of who names none, in milliseconds,
ADDRESS the server. Each task of a command is a thread here, since that is who
holds a lock of redis-py's.
"""

import queue
import sys
import threading

import redis
from redis.exceptions import LockError

NAME, LEASE, ADDRESS = sys.argv[1], int(sys.argv[2]), sys.argv[3]
PAUSE = 0.005  # seconds between two tries

client = redis.Redis.from_url(ADDRESS, decode_responses=True)


class Task(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.lines = queue.Queue()
        self.locks = {}
        self.start()

    def run(self):
        while True:
            number, _, verb, _, name, *more = self.lines.get()
            try:
                result = getattr(self, verb)(name, *more)
                answer = {True: "ok", False: "no"}.get(result, result)
            except Exception as error:
                answer = f"error {error!r}"
            client.rpush(NAME + ":answers", f"{number} {answer}")

    def take(self, name, wait, lease):
        wait, lease = int(wait), int(lease)
        lock = client.lock(
            name,
            timeout=(LEASE if lease < 0 else lease) / 1000,
            sleep=PAUSE,
            blocking_timeout=None if wait < 0 else wait / 1000,
        )
        if not lock.acquire(blocking=wait != 0):
            return False
        self.locks[name] = lock
        return True

    def give(self, name):
        lock = self.locks.pop(name, None)
        if not lock:
            return False
        try:
            lock.release()
            return True
        except LockError:
            return False

    def renew(self, name, _, lease):
        lock = self.locks.get(name)
        if not lock:
            return False
        try:
            return lock.extend(int(lease) / 1000, replace_ttl=True)
        except LockError:
            return False

    def contend(self, name, key, rounds):
        switches = 0
        for i in range(int(rounds)):
            if not self.take(name, -1, -1):
                raise RuntimeError(f"not taken in round {i}")
            client.set(key, int(client.get(key)) + 1)
            client.incr(key + ":sum")
            if client.getset(key + ":last", NAME) != NAME:
                switches += 1
            if not self.give(name):
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
