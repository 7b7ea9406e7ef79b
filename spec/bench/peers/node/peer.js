// The driver of node-redlock and redis-semaphore; spec/bench/peers/run says
// what it is told and prints.
//
//    node peer.js LIBRARY PATTERN KIND TASKS SECONDS WARM_UP FILE ADDRESS...
"use strict";

const fs = require("fs");
const Redis = require("ioredis");

const [LIBRARY, PATTERN, KIND, ...more] = process.argv.slice(2);
const [TASKS, SECONDS, WARM_UP] = more.slice(0, 3).map(Number);
const [FILE, ...ADDRESSES] = more.slice(3);
const [HOLD, REST, LEASE, PERMITS] = [5, 1, 30000, 4];

// Of several servers only a red lock has use.
const clients = ADDRESSES.map((address) => new Redis("redis://" + address));
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const samples = [];
let total = 0;
let measuring = false;

// Each library as its documentation shows it; null: it has no such kind.
const libraries = {
  "node-redlock"() {
    if (PATTERN === "hold" || !["lock", "red"].includes(KIND)) return null;
    const Redlock = require("redlock");
    const redlock = new Redlock(clients, { retryCount: -1 });
    return (name) => async () => {
      const lock = await redlock.lock(name, LEASE);
      return () => lock.unlock();
    };
  },
  "redis-semaphore"() {
    const { Mutex, RedlockMutex, Semaphore } = require("redis-semaphore");
    const options = { acquireTimeout: 3600000 };
    const make = {
      lock: (name) => new Mutex(clients[0], name, options),
      red: (name) => new RedlockMutex(clients, name, options),
      semaphore: (name) => new Semaphore(clients[0], name, PERMITS, options),
    }[KIND];
    if (!make) return null;
    return (name) => {
      const lock = make(name);
      return async () => {
        await lock.acquire();
        return () => lock.release();
      };
    };
  },
};

function sample(seconds) {
  total++;
  if (measuring) samples.push(seconds);
}

async function cycle(take) {
  for (;;) {
    const at = now();
    const give = await take();
    await give();
    sample(now() - at);
  }
}

const stamp = FILE ? fs.openSync(FILE, "r+") : null;
const bytes = Buffer.alloc(20);

function put(at) {
  fs.writeSync(stamp, at.toFixed(9).padStart(20, "0"), 0);
}

function get() {
  fs.readSync(stamp, bytes, 0, 20, 0);
  return Number(bytes.toString());
}

async function passOn(take) {
  for (;;) {
    const give = await take();
    const [at, released] = [now(), get()];
    if (released > 0) sample(at - released);
    put(0);
    await sleep(HOLD);
    put(now());
    const mine = get();
    await give();
    while (mine === get()) await sleep(REST);
  }
}

function report(count, seconds, used) {
  const result = {
    count,
    total,
    seconds,
    cpu_s: (used.user + used.system) / 1e6,
    rss_kb: Math.round(process.memoryUsage().rss / 1024),
  };
  if (samples.length) {
    samples.sort((a, b) => a - b);
    for (const share of [50, 99]) {
      const i = Math.floor(((samples.length - 1) * share) / 100);
      result[`p${share}_us`] = samples[i] * 1e6;
    }
  }
  fs.writeSync(1, JSON.stringify(result) + "\n");
  process.exit(0);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

async function main() {
  const make = PATTERN === "readers" ? null : libraries[LIBRARY]();
  if (!make) process.exit(3);
  if (PATTERN === "start") {
    await (await make("bench")())();
    process.exit(0);
  }
  const work = PATTERN === "handover" ? passOn : cycle;
  for (let i = 0; i < TASKS; i++) {
    const own = PATTERN === "cycles" || PATTERN === "hold";
    const take = make(own ? "bench:" + i : "bench");
    if (PATTERN === "hold") await take();
    else work(take).catch(fail);
  }
  if (PATTERN !== "hold") await sleep(WARM_UP * 1000);
  measuring = true;
  const [at, used] = [now(), process.cpuUsage()];
  await sleep(SECONDS * 1000);
  measuring = false;
  const seconds = now() - at;
  const count = PATTERN === "hold" ? TASKS : samples.length;
  report(count, seconds, process.cpuUsage(used));
}

main().catch(fail);
