// What the whole page knows of the cluster, asked every two seconds while somebody looks: the latest, and ten minutes of it.

import { at, get } from "./api.js";

const EVERY_MS = 2000;
const KEPT = 300;
const ANSWER_MS = 1500;

class Feed extends EventTarget {
  constructor() {
    super();
    this.cluster = null;
    this.telemetry = null;
    this.withheld = "";
    this.members = new Map();
    this.rates = new Map();
    this.points = [];
    this.timer = null;
    this.asking = false;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.tick()));
    this.tick();
  }

  pause() {
    clearTimeout(this.timer);
    // What happens meanwhile is not known, and no line is drawn over it.
    this.points.push({ at: Date.now() });
    this.rates.clear();
  }

  async tick() {
    clearTimeout(this.timer);
    if (this.asking) return;
    this.asking = true;
    const began = performance.now();
    try {
      await this.ask();
    } finally {
      this.asking = false;
      this.dispatchEvent(new Event("tick"));
      if (!document.hidden) this.timer = setTimeout(() => this.tick(), Math.max(250, EVERY_MS - (performance.now() - began)));
    }
  }

  async ask() {
    const late = AbortSignal.timeout(ANSWER_MS * 4);
    const [cluster, telemetry] = await Promise.allSettled([
      get("/api/v1/cluster", {}, late), get("/api/v1/telemetry", {}, late),
    ]);
    this.problem = cluster.reason ?? (telemetry.reason?.status === 403 ? null : telemetry.reason) ?? null;
    /** Why there are no numbers though the node is well: a token of one namespace does not reach the cluster's. */
    this.withheld = telemetry.reason?.status === 403 ? telemetry.reason.message : "";
    if (this.withheld) this.telemetry = null;
    if (telemetry.status === "fulfilled") this.telemetry = telemetry.value;
    if (cluster.status === "fulfilled") {
      this.cluster = cluster.value;
      const ids = cluster.value.members.map((member) => member.id);
      for (const known of this.members.keys()) if (!ids.includes(known)) this.members.delete(known);
      await Promise.all(ids.map((id) => this.askMember(id)));
    } else {
      // The numbers of before are left standing; rates would be told of a time that nobody saw.
      this.rates.clear();
    }
    this.points.push(this.point(telemetry.status === "fulfilled" ? telemetry.value : null));
    if (this.points.length > KEPT) this.points.shift();
  }

  async askMember(id) {
    try {
      const account = await get(at("cluster", "members", id), { timeout_ms: 1000 }, AbortSignal.timeout(ANSWER_MS * 2));
      this.rates.set(id, rates(this.members.get(id)?.account, account));
      this.members.set(id, { account });
    } catch (error) {
      this.rates.delete(id);
      this.members.set(id, { error });
    }
  }

  point(numbers) {
    const told = [...this.rates.values()].filter(Boolean);
    const sum = (name) => (told.length ? told.reduce((total, each) => total + each[name], 0) : null);
    const commits = told.reduce((total, each) => total.map((number, place) => number + each.buckets[place]),
      told[0]?.buckets.map(() => 0) ?? []);
    return {
      at: Date.now(),
      renewals: sum("renewals"), failures: sum("failures"), commits: sum("commits"),
      p50: quantile(commits, told[0]?.bounds, 0.5), p99: quantile(commits, told[0]?.bounds, 0.99),
      backlog: numbers?.sweep_backlog ?? null, orphans: numbers?.orphans ?? null,
      active: numbers?.active_leases ?? null, expired: numbers?.expired_leases ?? null,
    };
  }
}

/** What came between two accounts of one member, a second; nothing if it was restarted in between. */
function rates(before, now) {
  const stamped = Object.assign(now, { seen: performance.now() });
  if (!before) return null;
  const seconds = (stamped.seen - before.seen) / 1000;
  const buckets = now.commits.counts.map((number, place) => number - before.commits.counts[place]);
  const [renewals, failures] = [now.renewals - before.renewals, now.renewal_failures - before.renewal_failures];
  if (seconds <= 0 || renewals < 0 || failures < 0 || buckets.some((each) => each < 0)) return null;
  const commits = buckets.reduce((total, each) => total + each, 0);
  return {
    clock: (now.clock.now_ms - before.clock.now_ms) / 1000 / seconds,
    renewals: renewals / seconds, failures: failures / seconds, commits: commits / seconds,
    buckets, bounds: now.commits.bounds_ms,
  };
}

/** Where a share of the observations lies, by straight lines within a bucket; nothing without observations. */
function quantile(buckets, bounds, share) {
  const total = buckets.reduce((sum, each) => sum + each, 0);
  if (!total) return null;
  let passed = 0;
  for (let place = 0; place < buckets.length; place += 1) {
    if (passed + buckets[place] >= total * share) {
      const low = place ? bounds[place - 1] : 0;
      const high = bounds[place] ?? bounds.at(-1);
      return low + ((high - low) * (total * share - passed)) / buckets[place];
    }
    passed += buckets[place];
  }
  return bounds.at(-1);
}

export const feed = new Feed();
