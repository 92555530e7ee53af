// Leases on resources: one by its id, or those on resources that begin with a text.

import { actionButton } from "../actions.js";
import { at, get } from "../api.js";
import { facts, field, h, input, named, panel, pill, searchForm, table, to } from "../dom.js";
import { feed } from "../feed.js";
import { count, duration } from "../format.js";
import { pagedList } from "../pages.js";

export const IDENTITY = /^[0-9a-fA-F]{16}$/;

export default {
  title: "Leases",
  mount(root, parameters, live) {
    const asked = (parameters.get("find") ?? "").trim();
    const held = feed.telemetry ? `${count(feed.telemetry.active_leases)} active in the cluster, locks included` : "";
    root.append(panel("Find leases", { aside: held },
      searchForm("leases", [field("Lease id, or the beginning of a resource", input("find", asked, "tmp/segment-"))])));
    if (IDENTITY.test(asked)) one(root, asked, live);
    else {
      if (asked) onResource(root, asked, live);
      list(root, asked, live);
    }
  },
};

function one(root, id, live) {
  const place = panel("Lease", {});
  root.append(place);
  const again = live.keep(place, async (signal) => {
    const lease = await get(at("leases", id), {}, signal);
    return [
      h("h1", {}, h("code", {}, lease.lease_id)),
      facts([
        ["State", pill(lease.state === "ACTIVE" ? "good" : "warn", lease.state.toLowerCase())],
        ["Owner", named(lease.owner)],
        [lease.kind === "lock" ? "Lock" : "Resource",
          lease.kind === "lock" ? to("locks", { key: lease.resource_id }, named(lease.resource_id)) : resource(lease)],
        ["Left", duration(lease.ttl_ms)], ["Fencing token", count(lease.fencing_token)],
        ["References", count(lease.reference_count)], ["Session", session(lease)],
      ]),
      h("p", {}, lease.state === "ACTIVE" && lease.kind === "resource" ? revoking(lease, () => again(), "danger") : null),
    ];
  }, () => 2000);
}

/** Found at once, however many leases there are; the list below has to be looked for. */
function onResource(root, id, live) {
  const place = h("div", { class: "kept" });
  root.append(place);
  live.keep(place, async (signal) => {
    const { leases } = await get("/api/v1/leases", { resource: id, limit: 50 }, signal);
    return leases.length ? panel("On the resource of this name", { id: "on-it" }, holderTable(leases)) : null;
  });
}

export function holderTable(leases) {
  return table(null, [
    ["Owner", (lease) => named(lease.owner)],
    ["Lease", (lease) => to("leases", { find: lease.lease_id }, h("code", {}, lease.lease_id))],
    ["Left", (lease) => duration(lease.ttl_ms), "number"],
  ], leases, { empty: "No lease is on it." });
}

function list(root, prefix, live) {
  const place = panel(prefix ? "Active leases on resources that begin so" : "Active leases", { id: "leases" });
  root.append(place);
  const again = pagedList(place, live.signal, {
    path: "/api/v1/leases", query: { prefix }, items: "leases",
    draw: (leases) => table(null, [
      ["Lease", (lease) => to("leases", { find: lease.lease_id }, h("code", {}, lease.lease_id))],
      ["Resource", resource],
      ["Owner", (lease) => named(lease.owner)],
      ["Left", (lease) => duration(lease.ttl_ms), "number"],
      ["Token", (lease) => count(lease.fencing_token), "number"],
      ["Session", session],
      ["", (lease) => revoking(lease, () => again(), "small danger"), "actions"],
    ], leases, { empty: prefix ? "There is no active lease on a resource that begins so." : "There is no active lease on a resource in this namespace." }),
  });
}

const resource = (lease) => to("graph", { id: lease.resource_id }, named(lease.resource_id));
const session = (lease) => (lease.session_id ? to("sessions", { id: lease.session_id }, h("code", {}, lease.session_id)) : "none");

function revoking(lease, again, kind) {
  return actionButton("Revoke", `revoke ${lease.lease_id}`, {
    title: "Revoke this lease?",
    text: [`The lease of “${lease.owner}” on “${lease.resource_id}” ends now, as if it had been given back.`,
      "If nothing else refers to the resource, it is reclaimed once its safety buffer is over."],
    verb: "Revoke it", path: "/api/v1/leases/release", query: { forced: true }, body: { resource_id: lease.resource_id, client_id: lease.owner },
    done: (answer) => `Revoked; ${count(answer.remaining_reference_count)} references are left.`,
  }, again, kind);
}
