// The cluster at a glance: its members, its numbers, and the last ten minutes.

import { actionButton } from "../actions.js";
import { chart } from "../chart.js";
import { h, named, pill, render, s, table, to } from "../dom.js";
import { feed } from "../feed.js";
import { bytes, compact, count, duration, rate } from "../format.js";

const LOW_DISK = 0.1;
const LAG_SEEN = 1000;
const CLOCKS_APART_MS = 5000;
const STANDS = 0.2;

export default {
  title: "Overview",
  mount(root, parameters, live) {
    const members = h("div", { class: "kept" });
    const verdict = h("span", { class: "aside", id: "verdict" });
    const cluster = h("section", { class: "panel", "aria-label": "Cluster", id: "cluster" },
      h("header", {}, h("h2", {}, "Cluster"), verdict), members);
    const tiles = h("dl", { class: "tiles", "aria-label": "Numbers" });
    const charts = [
      chart("Renewals", [["renewals", "renewed"], ["failures", "refused"]], rate, "all nodes"),
      chart("Commit latency", [["p50", "median"], ["p99", "99 %"]], duration, "all nodes"),
      chart("Leases by state", [["active", "active"], ["expired", "expired, not yet removed"]], compact),
      chart("Sweep backlog", [["backlog", "due, not worked off"]], compact),
      chart("Orphans", [["orphans", "resources nothing refers to"]], compact),
      chart("Commits", [["commits", "commands committed"]], rate, "all nodes"),
    ];
    root.append(cluster, tiles, h("div", { class: "charts" }, charts.map((each) => each.element)));
    live.onTick(() => {
      render(members, memberTable());
      render(verdict, feed.cluster ? summary() : "");
      render(tiles, numbers());
      for (const each of charts) each.show(feed.points);
    });
  },
};

// --- members ----------------------------------------------------------------------------------------------------------

function summary() {
  const { leader, term, revision } = feed.cluster;
  const led = leader === null ? pill("bad", "no leader") : [named(leader), " leads"];
  return [led, ` in term ${count(term)}, revision ${count(revision)}`];
}

function memberTable() {
  if (!feed.cluster) return h("p", { class: "empty" }, feed.problem ? feed.problem.message : "Asking the node …");
  const newest = Math.max(0, ...[...feed.members.values()].map((each) => each.account?.commit ?? 0));
  return table(null, [
    ["Member", (member) => [named(member.id), h("span", { class: "sub" }, member.http)]],
    ["Role", role],
    ["Term", (member) => count(account(member)?.term ?? member.term), "number"],
    ["Applied", (member) => [count(account(member)?.applied ?? member.applied), lag(member, newest)], "number"],
    ["Leader lease", lease],
    ["Cluster clock", clock],
    ["Disk", disk],
    ["Renewals", (member) => rate(feed.rates.get(member.id)?.renewals), "number"],
    ["Writes queued", (member) => count(account(member)?.queue_depth), "number"],
    ["", (member) => (member.role === "follower" && account(member) && feed.cluster.leader !== null ? transfer(member) : null), "actions"],
  ], feed.cluster.members, { empty: "This node knows of no members." });
}

const account = (member) => feed.members.get(member.id)?.account;

function role(member) {
  const known = feed.members.get(member.id);
  if (known?.error?.status === 403) return [pill("plain", member.role), h("span", { class: "sub" }, "more is not for this token")];
  if (known?.error) return [pill("bad", "no answer"), h("span", { class: "sub narrow-wrap" }, known.error.message)];
  if (!known) return pill("plain", member.role);
  if (!known.account.ready) return [pill("warn", member.role), h("span", { class: "sub narrow-wrap" }, known.account.reason)];
  return pill("good", member.role);
}

function lag(member, newest) {
  const applied = account(member)?.applied;
  if (applied === undefined) return null;
  const behind = newest - applied;
  return h("span", { class: "sub" }, behind > LAG_SEEN ? pill("warn", `${count(behind)} behind`) : `${count(Math.max(0, behind))} behind`);
}

function lease(member) {
  const valid = account(member)?.leader_lease;
  if (valid === null || valid === undefined) return "–";
  return valid ? pill("good", "held") : pill("warn", "not held");
}

function clock(member) {
  const told = account(member)?.clock;
  if (!told) return "–";
  const others = [...feed.members.values()].map((each) => each.account?.clock?.minus_wall_ms).filter((each) => each !== undefined);
  const apart = Math.max(...others) - Math.min(...others);
  const speed = feed.rates.get(member.id)?.clock;
  const state = speed === undefined ? "" : speed < STANDS ? pill("warn", "stands still") : "advancing";
  return [duration(told.now_ms), h("span", { class: "sub" }, state,
    apart > CLOCKS_APART_MS ? [" ", pill("warn", `walls ${duration(apart)} apart`)] : null)];
}

function disk(member) {
  const told = account(member)?.disk;
  if (!told) return "–";
  const free = told.free_bytes / told.total_bytes;
  const used = s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" }, s("rect", { width: 100 * (1 - free), height: 10 }));
  return [h("span", { class: "line" }, h("span", { class: `bar ${free < LOW_DISK ? "low" : ""}`, "aria-hidden": "true" }, used),
    ` ${bytes(told.free_bytes)} free`), free < LOW_DISK ? [" ", pill("bad", "nearly full")] : null,
    h("span", { class: "sub" }, `log ${bytes(told.log_bytes)}, snapshots ${bytes(told.snapshot_bytes)}`)];
}

function transfer(member) {
  return actionButton("Make leader", `transfer ${member.id}`, {
    title: `Make ${member.id} the leader?`,
    text: ["Writes wait for a moment while leadership moves. No lease or lock loses time by it."],
    verb: "Make leader", path: "/api/v1/cluster/transfer", body: { target: member.id },
    done: (answer) => `${answer.leader ?? "Nobody"} leads in term ${answer.term}.`,
  }, () => feed.tick(), "small");
}

// --- numbers ----------------------------------------------------------------------------------------------------------

function numbers() {
  const told = feed.telemetry;
  if (!told) return feed.withheld ? h("div", { class: "tile" }, h("dt", {}, feed.withheld)) : [];
  const tile = (name, value, view, kind = "") =>
    h("div", { class: `tile ${kind}` }, h("dt", {}, view ? to(view[0], view[1], name) : name), h("dd", {}, value));
  const { reclaims, dispatch, copies } = told;
  return [
    tile("Active leases", compact(told.active_leases), ["leases", {}]),
    tile("Sessions", compact(told.sessions), ["sessions", {}]),
    tile("Locks", compact(told.locks), ["locks", {}]),
    tile("Waiting for locks", compact(told.waiters), ["locks", {}]),
    tile("Resources", compact(told.resources), ["graph", {}]),
    tile("Suspects", compact(told.suspects), ["graph", { state: "suspect" }], told.suspects ? "warn" : ""),
    tile("Clean-ups open", compact(reclaims.pending + reclaims.delayed + reclaims.claimed), ["reclaims", {}]),
    tile("Dead clean-ups", compact(reclaims.dead), ["reclaims", { state: "dead" }], reclaims.dead ? "bad" : ""),
    tile("Closed lanes", compact(reclaims.closed_lanes), ["reclaims", {}], reclaims.closed_lanes ? "warn" : ""),
    tile("Tasks ready", compact(dispatch.ready), ["queues", {}]),
    tile("Suspect tasks", compact(dispatch.suspect), ["queues", {}], dispatch.suspect ? "warn" : ""),
    tile("Dead letters", compact(dispatch.dead), ["queues", {}], dispatch.dead ? "bad" : ""),
    tile("Tombstones", compact(copies.tombstones), ["tombstones", {}]),
    tile("Newest token", compact(told.last_fencing_token)),
  ];
}
