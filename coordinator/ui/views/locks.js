// Locks: who holds one, who waits for it in which order, and what has just happened to it.

import { actionButton } from "../actions.js";
import { at, follow, get } from "../api.js";
import { facts, h, input, field, named, panel, pill, render, searchForm, table, to } from "../dom.js";
import { count, duration, plural, timeOfDay } from "../format.js";

const LISTED = 50;
const SHOWN = 100;
const HISTORY = 30;
const WAITS_FOR_THE_STREAM = 0;
const WORDS = {
  lock_granted: "granted to", lock_released: "released by", lock_expired: "expired for", lock_broken: "broken, was held by",
  wait_begun: "queued:", wait_expired: "gave up waiting:", wait_cancelled: "left the queue:",
};

export default {
  title: "Locks",
  mount(root, parameters, live) {
    const [key, prefix] = [parameters.get("key"), parameters.get("prefix") ?? ""];
    const form = searchForm("locks", [field("Key, or its beginning", input("prefix", key ?? prefix, "inventory/"))]);
    root.append(panel("Find a lock", {}, form));
    if (key !== null) one(root, key, live);
    else list(root, prefix, live);
  },
};

function list(root, prefix, live) {
  const place = panel(prefix ? "Locks that begin so" : "Locks", {});
  root.append(place);
  let after = "";
  const again = live.keep(place, async (signal) => {
    const { locks } = await get("/api/v1/locks", { prefix, after, limit: LISTED }, signal);
    const next = locks.length === LISTED ? h("button", {
      type: "button", "data-key": "next", on: { click: () => { after = locks.at(-1).lock_key; again(); } },
    }, "Next page") : null;
    return [
      prefix ? h("p", {}, to("locks", { key: prefix }, "Open the lock of exactly this name")) : null,
      table(null, [
        ["Key", (lock) => to("locks", { key: lock.lock_key }, named(lock.lock_key))],
        ["Holder", holdersOf],
        ["Mode", (lock) => mode(lock)],
        ["Left", (lock) => duration(lock.ttl_ms), "number"],
        ["Token", (lock) => count(lock.fencing_token), "number"],
        ["Waiting", (lock) => (lock.queue_length ? pill("warn", count(lock.queue_length)) : "0"), "number"],
      ], locks, { empty: prefix ? "No lock that is held or waited for begins so." : "No lock is held or waited for in this namespace." }),
      next ? h("p", { class: "more" }, next) : null,
    ];
  }, () => 5000);
}

function holdersOf(lock) {
  if (lock.holder === null) return h("span", { class: "muted" }, "nobody");
  const more = lock.holder_count - 1;
  return [named(lock.holder), more ? h("span", { class: "muted" }, ` and ${plural(more, "other")}`) : null];
}

const mode = (lock) => (lock.permits > 1 ? `semaphore of ${count(lock.permits)}` : lock.mode);

function one(root, key, live) {
  const place = panel("Lock", { id: "lock" });
  const history = h("ol", { class: "log", id: "lock-history" });
  const stream = h("span", { class: "aside" }, "");
  const calm = h("p", { class: "empty" }, "Nothing, since this page was opened.");
  const happened = h("section", { class: "panel", "aria-label": "What happened" },
    h("header", {}, h("h2", {}, "What happened"), stream), history, calm);
  root.append(h("div", { class: "columns wide-left" }, place, happened));
  let known = true;
  const again = live.keep(place, async (signal) => {
    try {
      const lock = await get(at("locks", key), { waiters: SHOWN, holders: SHOWN }, signal);
      known = true;
      return drawn(lock, () => again());
    } catch (error) {
      if (error.code !== "unknown_lock") throw error;
      known = false;
      return [h("h1", {}, named(key)), h("p", { class: "empty", id: "holder" },
        "Nobody holds it or waits for it. This page shows it as soon as somebody does. ",
        to("locks", { prefix: key }, "Look for keys that begin so"), ".")];
    }
  }, () => (known ? 2000 : WAITS_FOR_THE_STREAM));
  follow({ prefix: key, kinds: Object.keys(WORDS).join(",") }, {
    event(event) {
      if (event.key !== key) return;
      calm.hidden = true;
      history.prepend(h("li", {}, h("span", { class: "when" }, timeOfDay()), `${WORDS[event.kind] ?? event.kind} `,
        named(event.owner), event.fencing_token ? ` (token ${count(event.fencing_token)})` : ""));
      while (history.children.length > HISTORY) history.lastChild.remove();
      again();
    },
    gap: (text) => history.prepend(h("li", {}, text)),
    state(now, text) {
      render(stream, now === "live" ? pill("good", "live") : pill("warn", text ?? "away"));
      if (now === "live" && !known) again();
    },
  }, live.signal);
}

function drawn(lock, again) {
  return [
    h("h1", {}, named(lock.lock_key)),
    facts([
      ["Holder", h("span", { id: "holder" }, holdersOf(lock))],
      ["Mode", mode(lock)],
      ["Delay", lock.delay_left_ms ? `nobody gets it for ${duration(lock.delay_left_ms)}: its last hold was not given back` : null],
    ]),
    table("Holders", [
      ["Client", (holder) => named(holder.client_id)],
      ["Fencing token", (holder) => count(holder.fencing_token), "number"],
      ["Left", (holder) => duration(holder.ttl_ms), "number"],
      ["Entered", (holder) => plural(holder.hold_count, "time"), "number"],
      ["Session", (holder) => (holder.session_id ? to("sessions", { id: holder.session_id }, h("code", {}, holder.session_id)) : "none")],
    ], lock.holders, { empty: "It is not held." }),
    lock.holder_count > SHOWN ? h("p", { class: "muted" }, `… and ${count(lock.holder_count - SHOWN)} more.`) : null,
    h("h3", {}, `Queue: ${lock.queue_length ? `${count(lock.queue_length)} waiting, first in first out` : "nobody waits"}`),
    h("ol", { class: "queue", id: "queue" }, lock.waiters.map((waiter, place) => h("li", {},
      h("span", { class: "place" }, place + 1), h("span", {}, named(waiter.client_id), waiter.mode === "shared" ? " (shared)" : "",
        waiter.keys > 1 ? ` for ${count(waiter.keys)} locks at once` : ""),
      h("span", { class: "muted" }, `waits ${duration(waiter.wait_left_ms)} more`)))),
    lock.queue_length > SHOWN ? h("p", { class: "muted" }, `… and ${count(lock.queue_length - SHOWN)} more.`) : null,
    h("p", {}, lock.holders.length ? breaking(lock, again) : null),
  ];
}

function breaking(lock, again) {
  return actionButton("Break this lock", "break", {
    title: "Break this lock?",
    text: [`Every hold of “${lock.lock_key}” ends at once, and ${lock.queue_length ? "the first in the queue gets it" : "it is free"}.`,
      "Its holder is not stopped: until it notices, only what checks fencing tokens refuses its writes."],
    verb: "Break it", path: "/api/v1/locks/break", body: { lock_key: lock.lock_key },
    done: (answer) => `The lock was broken: ${plural(answer.holders, "hold")} ended.`,
  }, again, "danger");
}
