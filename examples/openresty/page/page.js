// Asks twice a second who holds and who waits, and shows what has changed.

"use strict";

const EVERY = 500;                      // milliseconds
const LINES = 8;                        // of what happened
const $ = (id) => document.getElementById(id);

const known = {};                       // lock -> owner -> "holds" or "waits"
const verbs = {
  print: "prints", read: "reads", write: "writes",
};

// An owner is a name and, so that it is not another's, a number.
function nameOf(owner) {
  return owner.replace(/ [0-9a-f]{6}$/, "");
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function row(who, text) {
  const made = element("li", "");
  made.append(element("b", nameOf(who.owner)), " ",
    element("span", text, "how"));
  return made;
}

function holderRow(who) {
  const made = row(who, verbs[who.mode] || "holds it");
  if (who.lease !== undefined) {
    made.append(element("span", `lease ${Math.ceil(who.lease)} s`, "lease"));
  }
  return made;
}

function waiterRow(who) {
  return row(who, who.mode === "print" ? "" : `to ${who.mode}`);
}

function fill(list, rows) {
  list.replaceChildren(...(rows.length ? rows : [element("li", "nobody",
    "nobody")]));
}

function sectionOf(lock) {
  let section = $(`lock-${lock.name}`);
  if (!section) {
    section = $("lock").content.cloneNode(true).firstElementChild;
    section.id = `lock-${lock.name}`;
    section.querySelector(".name").textContent = lock.name;
    $("locks").append(section);
  }
  return section;
}

function tell(text) {
  const time = new Date().toLocaleTimeString();
  const line = element("li", "");
  line.append(element("time", time), " ", text);
  $("log").append(line);
  while ($("log").children.length > LINES) $("log").firstChild.remove();
}

// Says what is not as it was.
function compare(name, now) {
  const before = known[name] || {};
  known[name] = now;
  for (const owner in before) {
    if (now[owner]) continue;
    tell(before[owner] === "holds" ? `${nameOf(owner)} gave ${name} back`
      : `${nameOf(owner)} left the line for ${name}`);
  }
  for (const owner in now) {
    if (now[owner] === before[owner]) continue;
    tell(now[owner] === "holds" ? `${nameOf(owner)} got ${name}`
      : `${nameOf(owner)} waits for ${name}`);
  }
}

function show(lock) {
  const section = sectionOf(lock);
  const { holders, waiters } = lock;
  const state = holders.length ? "held" : "free";
  const label = section.querySelector(".state");
  label.textContent = state;
  label.dataset.state = state;
  fill(section.querySelector(".holders"), holders.map(holderRow));
  fill(section.querySelector(".waiters"), waiters.map(waiterRow));
  const now = {};
  for (const who of waiters) now[who.owner] = "waits";
  for (const who of holders) now[who.owner] = "holds";
  compare(lock.name, now);
}

function setLink(text, isLive) {
  const link = $("link");
  if (link.textContent !== text) link.textContent = text;
  link.dataset.live = isLive;
}

async function look() {
  try {
    const reply = await fetch("locks", { signal: AbortSignal.timeout(5000) });
    if (!reply.ok) throw new Error(await reply.text());
    (await reply.json()).forEach(show);
    setLink("live", true);
  } catch (error) {
    setLink(`not live: ${error.message}`, false);
  }
  setTimeout(look, EVERY);
}

async function ask(event) {
  event.preventDefault();
  const form = new FormData(event.target);
  const wanted = new URLSearchParams(form);
  try {
    const reply = await fetch(`hold?${wanted}`, { method: "POST" });
    if (!reply.ok) tell(`${form.get("who")}: ${await reply.text()}`);
  } catch (error) {
    tell(`${form.get("who")}: ${error.message}`);
  }
}

$("ask").addEventListener("submit", ask);
look();
