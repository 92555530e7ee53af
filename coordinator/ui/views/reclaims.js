// Clean-ups on their way to workers: how each provider's kinds are doing, and those that were given up.

import { actionButton } from "../actions.js";
import { get } from "../api.js";
import { choice, field, h, input, named, panel, pill, searchForm, table, to } from "../dom.js";
import { count, duration } from "../format.js";
import { pagedList } from "../pages.js";

const STATES = [["", "any state"], ["pending", "pending"], ["delayed", "delayed"], ["claimed", "claimed"], ["dead", "dead: given up"]];
const AT_ONCE = 100;
const COLOURS = { pending: "plain", delayed: "warn", claimed: "good", dead: "bad" };

export default {
  title: "Clean-ups",
  mount(root, parameters, live) {
    const [state, provider] = [parameters.get("state") ?? "", parameters.get("provider") ?? ""];
    root.append(panel("Find clean-ups", {}, searchForm("reclaims", [
      field("Provider", input("provider", provider, "any")), field("State", choice("state", STATES, state)),
    ])));
    const lanes = panel("Lanes", { aside: "one for each provider and kind", id: "lanes" });
    root.append(lanes);
    const again = live.keep(lanes, async (signal) => laneTable((await get("/api/v1/reclaims", { provider, limit: 1 }, signal)).lanes, () => again()), () => 4000);
    const place = panel("Clean-ups", { id: "reclaims" });
    root.append(place);
    pagedList(place, live.signal, {
      path: "/api/v1/reclaims", query: { provider, state }, items: "items", wanted: 25,
      draw: (items) => table(null, [
        ["Resource", (item) => to("graph", { id: item.resource_id }, named(item.resource_id))],
        ["Provider", (item) => named(item.provider)],
        ["Kind", (item) => named(item.kind)],
        ["State", (item) => pill(COLOURS[item.state], item.state)],
        ["Attempt", (item) => count(item.attempt), "number"],
        ["Since", (item) => duration(item.age_ms), "number"],
        ["Worker", (item) => (item.worker === null ? "–" : named(item.worker))],
        ["Last error", (item) => (item.last_error ? h("span", { class: "narrow-wrap" }, item.last_error) : "–")],
      ], items, { empty: "No clean-up is so." }),
    });
  },
};

function laneTable(lanes, again) {
  return table(null, [
    ["Provider", (lane) => named(lane.provider)],
    ["Kind", (lane) => named(lane.kind)],
    ["Pending", (lane) => count(lane.pending), "number"],
    ["Delayed", (lane) => count(lane.delayed), "number"],
    ["Claimed", (lane) => count(lane.claimed), "number"],
    ["Dead", (lane) => (lane.dead ? pill("bad", count(lane.dead)) : "0"), "number"],
    ["Failures in a row", (lane) => count(lane.failures), "number"],
    ["Lane", (lane) => (lane.closed_for_ms ? pill("warn", `closed for ${duration(lane.closed_for_ms)}`) : pill("good", "open"))],
    ["", (lane) => (lane.dead ? [letters(lane, "retry", again), letters(lane, "purge", again)] : null), "actions"],
  ], lanes, { empty: "Nothing is waiting to be cleaned up." });
}

function letters(lane, verb, again) {
  const number = Math.min(lane.dead, AT_ONCE);
  const retry = verb === "retry";
  return actionButton(retry ? "Retry dead" : "Purge dead", `${verb} ${lane.provider} ${lane.kind}`, {
    title: retry ? "Try dead clean-ups again?" : "Forget dead clean-ups?",
    text: [`The oldest ${count(number)} of “${lane.kind}” of “${lane.provider}”.`,
      retry ? "Each gets all its attempts again." : "Their resources are forgotten though nothing was cleaned up. This cannot be taken back."],
    verb: retry ? "Retry them" : "Forget them", path: `/api/v1/reclaims/${verb}`,
    body: { provider: lane.provider, kind: lane.kind, max: number },
    done: (answer) => `${count(answer.retried ?? answer.purged)} done, ${count(answer.left)} left.`,
  }, again, retry ? "small" : "small danger");
}
