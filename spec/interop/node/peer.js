// The side of node-redlock in the interop specs. It reads commands from a list
// in Redis and answers into another; spec/interop/peer.lua gives them and says
// what they are.
//
//    node peer.js NAME LEASE ADDRESS MEMBER...
//
// NAME is that of the lists, LEASE the one of who names none, in milliseconds,
// ADDRESS the server of everything, and MEMBERs are the servers of RedLocks.
"use strict";

const { once } = require("events");
const Redis = require("ioredis");
const Redlock = require("redlock");

const [NAME, LEASE, ADDRESS, ...MEMBERS] = process.argv.slice(2);
const PAUSE = 10; // milliseconds between two tries

// A server that is away counts as one that says no.
function connect(address) {
  const client = new Redis(address, {
    enableOfflineQueue: false,
    commandTimeout: 1000,
  });
  client.on("error", (error) => console.error(address, error.message));
  return client;
}

const client = connect(ADDRESS);

function library(clients) {
  if (!clients.length) return null;
  const redlock = new Redlock(clients, {
    retryDelay: PAUSE,
    retryJitter: PAUSE / 2,
  });
  redlock.on("clientError", (error) => console.error(error.message));
  return redlock;
}

const members = MEMBERS.map(connect);
const kinds = { simple: library([client]), red_simple: library(members) };

// What one task does; it has locks by kind and name.
class Task {
  constructor() {
    this.locks = new Map();
    this.last = Promise.resolve();
  }

  // After what it was told before.
  tell(words) {
    this.last = this.last.then(() => this.obey(words));
  }

  async obey([number, , verb, kind, name, ...more]) {
    let answer;
    try {
      const result = await this[verb](kind, name, ...more);
      answer = { true: "ok", false: "no" }[result] || result;
    } catch (error) {
      answer = "error " + error;
    }
    await client.rpush(NAME + ":answers", `${number} ${answer}`);
  }

  async take(kind, name, wait, lease) {
    const ms = Number(lease) < 0 ? Number(LEASE) : Number(lease);
    const tries = Number(wait) < 0 ? -1 : Math.floor(Number(wait) / PAUSE);
    try {
      // It takes a retryCount of 0 for none given.
      const lock = await kinds[kind].lockWithOptions(name, ms, {
        retryCount: tries || -Infinity,
      });
      this.locks.set(kind + name, lock);
      return true;
    } catch (error) {
      if (error instanceof Redlock.LockError) return false;
      throw error;
    }
  }

  async attempt(kind, name, act) {
    const lock = this.locks.get(kind + name);
    if (!lock) return false;
    try {
      await act(lock);
      return true;
    } catch (error) {
      if (error instanceof Redlock.LockError) return false;
      throw error;
    }
  }

  async give(kind, name) {
    const given = await this.attempt(kind, name, (lock) => lock.unlock());
    this.locks.delete(kind + name);
    return given;
  }

  renew(kind, name, id, lease) {
    return this.attempt(kind, name, (lock) => lock.extend(Number(lease)));
  }

  async contend(kind, name, key, rounds) {
    let switches = 0;
    for (let i = 0; i < Number(rounds); i++) {
      if (!(await this.take(kind, name, -1, -1))) {
        throw new Error("not taken in round " + i);
      }
      await client.set(key, Number(await client.get(key)) + 1);
      await client.incr(key + ":sum");
      if ((await client.getset(key + ":last", NAME)) !== NAME) switches++;
      if (!(await this.give(kind, name))) {
        throw new Error("lost in round " + i);
      }
      await client.get(key); // others get a chance
    }
    return `ok ${switches} 0`;
  }
}

async function main() {
  const tasks = new Map();
  const listener = new Redis(ADDRESS);
  await Promise.all([client, ...members].map((c) => once(c, "ready")));
  console.log("ready");
  for (;;) {
    const [, line] = await listener.blpop(NAME + ":commands", 0);
    const words = line.split(" ");
    if (!tasks.has(words[1])) tasks.set(words[1], new Task());
    tasks.get(words[1]).tell(words);
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
