// Queues of tasks, and the shards and workers of one: who is suspected, what waits, what was given up.

import { actionButton } from "../actions.js";
import { at, get } from "../api.js";
import { facts, h, named, panel, pill, table, to } from "../dom.js";
import { count, duration, plural } from "../format.js";
import { pagedList } from "../pages.js";

const LISTED = 100;
const SHARDS_SHOWN = 240;
const AT_ONCE = 100;
const STANDING = { running: "good", paused: "warn", draining: "warn" };
const TASK = { ready: "plain", delayed: "plain", blocked: "warn", leased: "good", suspect: "warn", dead: "bad", done: "plain" };

export default {
  title: "Queues",
  mount(root, parameters, live) {
    const queue = parameters.get("queue");
    if (queue !== null) one(root, queue, parameters.get("state") ?? "", live);
    else list(root, live);
  },
};

function list(root, live) {
  const place = panel("Queues", { id: "queues" });
  root.append(place);
  let after = null;
  const again = live.keep(place, async (signal) => {
    const { queues, next } = await get("/api/v1/queues", { limit: LISTED, after }, signal);
    return [
      table(null, [
        ["Queue", (each) => to("queues", { queue: each.queue }, named(each.queue))],
        ["State", (each) => pill(STANDING[each.standing], each.standing)],
        ["Ready", (each) => count(each.ready), "number"],
        ["Oldest", (each) => (each.ready ? duration(each.oldest_ready_age_ms) : "–"), "number"],
        ["Leased", (each) => count(each.leased), "number"],
        ["Suspect", (each) => (each.suspect ? pill("warn", count(each.suspect)) : "0"), "number"],
        ["Delayed", (each) => count(each.delayed), "number"],
        ["Blocked", (each) => count(each.blocked), "number"],
        ["Dead", (each) => (each.dead ? pill("bad", count(each.dead)) : "0"), "number"],
        ["Workers", (each) => count(each.workers), "number"],
        ["Shards", (each) => count(each.shards), "number"],
      ], queues, { empty: "There is no queue in this namespace." }),
      next ? h("p", { class: "more" }, h("button", { type: "button", "data-key": "next", on: { click: () => { after = next; again(); } } }, "Next page")) : null,
    ];
  }, () => 4000);
}

function one(root, queue, state, live) {
  const [about, workers, shards, tasks] = [panel("Queue", { id: "queue-itself" }), panel("Workers that share shards", { id: "workers" }),
    panel("Shards", { id: "shards" }), panel(state ? `Tasks: ${state}` : "Tasks", { id: "tasks" })];
  root.append(h("p", {}, to("queues", {}, "← all queues")), about, h("div", { class: "columns" }, workers, shards), tasks);
  const again = live.keep(about, async (signal) => drawn(await get(at("queues", queue), {}, signal), () => again()), () => 3000);
  let suspects = new Set();
  live.keep(workers, async (signal) => {
    const { workers: found, next } = await get(at("queues", queue, "workers"), { limit: LISTED }, signal);
    suspects = new Set(found.filter((each) => each.state === "suspect").map((each) => each.worker_id));
    return [workerTable(queue, found, () => again()), next ? h("p", { class: "muted" }, "… and more.") : null];
  }, () => 3000);
  live.keep(shards, async (signal) => {
    const { shards: found, next } = await get(at("queues", queue, "shards"), { limit: SHARDS_SHOWN }, signal);
    return shardMap(found, suspects, next);
  }, () => 3000);
  pagedList(tasks, live.signal, {
    path: at("queues", queue, "tasks"), query: { state }, items: "tasks", wanted: 25, draw: (found) => taskTable(queue, found),
  });
}

function drawn(queue, again) {
  const states = ["ready", "delayed", "blocked", "leased", "suspect", "dead", "done"];
  return [
    h("h1", {}, named(queue.queue), " ", pill(STANDING[queue.standing], queue.standing)),
    h("p", { class: "keys" }, states.map((each) => h("span", {}, to("queues", { queue: queue.queue, state: each }, each), ` ${count(queue[each])}`))),
    facts([
      ["Handed out", `${count(queue.handed_out)}, completed ${count(queue.completed)}, failed ${count(queue.failed)}, taken from owners ${count(queue.bounced)}`],
      ["A task is a worker's for", `${duration(queue.lease_ms)}, renewed every ${duration(queue.heartbeat_ms)}`],
      ["Suspected after", `${plural(queue.suspect_beats, "beat")}; taken away ${plural(queue.debounce_beats, "beat")} after the lease ended`],
      ["Attempts", count(queue.max_attempts)],
    ]),
    h("p", {}, standings(queue, again), " ", queue.dead ? [letters(queue, "retry", again), " ", letters(queue, "purge", again)] : null),
  ];
}

function standings(queue, again) {
  const offered = queue.standing === "running" ? [["pause", "Pause", "Nothing is handed out any more; what is at work goes on."],
    ["drain", "Drain", "Nothing new is taken in; what is there is handed out."]] : [["resume", "Resume", "Tasks are taken in and handed out again."]];
  return offered.map(([verb, label, meaning]) => [actionButton(label, `${verb} queue`, {
    title: `${label} this queue?`, text: [`“${queue.queue}”: ${meaning}`], verb: label, path: at("queues", queue.queue, verb),
    done: (answer) => `The queue is ${answer.standing}.`,
  }, again, "small"), " "]);
}

function letters(queue, verb, again) {
  const retry = verb === "retry";
  const number = Math.min(queue.dead, AT_ONCE);
  return actionButton(retry ? "Retry dead letters" : "Purge dead letters", `${verb} letters`, {
    title: retry ? "Try dead letters again?" : "Forget dead letters?",
    text: [`The oldest ${count(number)} of “${queue.queue}”.`, retry ? "Each gets all its attempts again." : "They are gone for good."],
    verb: retry ? "Retry them" : "Forget them", path: at("queues", queue.queue, verb),
    body: retry ? { max: number } : { state: "dead", max: number },
    done: (answer) => `${count(answer.retried ?? answer.purged)} done, ${count(answer.left)} left.`,
  }, again, retry ? "small" : "small danger");
}

function workerTable(queue, workers, again) {
  return table(null, [
    ["Worker", (worker) => named(worker.worker_id)],
    ["State", (worker) => pill(worker.state === "present" ? "good" : "warn", worker.state)],
    ["Shards", (worker) => `${count(worker.shards)}${worker.revoking ? `, ${count(worker.revoking)} asked back` : ""}`, "number"],
    ["Given up in", (worker) => duration(worker.revoked_in_ms), "number"],
    ["", (worker) => actionButton("Remove", `remove ${worker.worker_id}`, {
      title: "Remove this worker?",
      text: [`All that “${worker.worker_id}” has is for others at once. Only for a worker that has stopped: one that works on would share its shards with another.`],
      verb: "Remove it", method: "DELETE", path: at("queues", queue, "workers", worker.worker_id), query: { forced: true },
      done: (answer) => `Removed; ${plural(answer.shards, "shard")} are for others now.`,
    }, again), "actions"],
  ], workers, { empty: "No worker shares shards of this queue." });
}

function shardMap(shards, suspects, next) {
  if (!shards.length) return h("p", { class: "empty" }, "This queue has no shards.");
  return [
    h("ul", { class: "shards" }, shards.map((shard) => {
      const kind = shard.owner === null ? "waiting" : shard.revoking ? "revoking" : suspects.has(shard.owner) ? "suspect" : "owned";
      const word = { waiting: "waits for an owner", revoking: "asked back from ", suspect: "suspect: ", owned: "" }[kind];
      return h("li", { class: kind }, named(shard.shard), h("small", {}, word, shard.owner === null ? "" : named(shard.owner)));
    })),
    next ? h("p", { class: "muted" }, `The first ${count(SHARDS_SHOWN)} by name.`) : null,
  ];
}

function taskTable(queue, tasks) {
  return table(null, [
    ["Task", (task) => h("code", {}, task.task_id)],
    ["State", (task) => pill(TASK[task.state], task.state)],
    ["Owner", (task) => (task.owner === null ? "–" : named(task.owner))],
    ["Attempt", (task) => count(task.attempt), "number"],
    ["Taken away", (task) => count(task.bounces), "number"],
    ["Left", (task) => duration(task.ttl_ms), "number"],
    ["Last error", (task) => (task.last_error ? h("span", { class: "narrow-wrap" }, task.last_error) : "–")],
    ["", (task) => [task.owner === null ? null : ofTask(queue, task, "Revoke", "POST", "/revoke", "It is taken from its owner at once, for others."),
      ofTask(queue, task, "Drop", "DELETE", "", "It is not wanted any more, whatever its state.")], "actions"],
  ], tasks, { empty: "No task is so." });
}

function ofTask(queue, task, label, method, end, meaning) {
  return actionButton(label, `${label} ${task.task_id}`, {
    title: `${label} this task?`, text: [`Task ${task.task_id} of “${queue}”. ${meaning}`], verb: label, method,
    path: at("queues", queue, "tasks", task.task_id) + end, done: () => `${label}: done.`,
  }, () => dispatchEvent(new HashChangeEvent("hashchange")));
}
