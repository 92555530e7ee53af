// Resources: find one, see what is around it, why it is alive, and what would go with something else.

import { actionButton } from "../actions.js";
import { at, get } from "../api.js";
import { choice, facts, field, h, input, named, panel, pill, render, searchForm, table, to } from "../dom.js";
import { drawGraph, legend } from "../drawing.js";
import { count, duration, plural } from "../format.js";
import { pagedList } from "../pages.js";
import { picture } from "../picture.js";
import { holderTable } from "./leases.js";

const LEASES_SHOWN = 10;
const STATES = [["", "any state"], ["live", "live"], ["unreferenced", "unreferenced"], ["suspect", "suspect: perhaps a leaked cycle"],
  ["reclaiming", "being reclaimed"], ["dead", "dead: clean-up given up"]];
const STANDING = { live: "good", unreferenced: "warn", suspect: "warn", reclaiming: "warn", dead: "bad" };

export default {
  title: "Resources",
  mount(root, parameters, live) {
    const id = parameters.get("id");
    const [state, prefix] = [parameters.get("state") ?? "", parameters.get("prefix") ?? id ?? ""];
    const form = searchForm("graph", [
      field("Beginning of an id", input("prefix", prefix, "tmp/")), field("State", choice("state", STATES, state)),
    ]);
    root.append(panel("Find resources", {}, form));
    if (id !== null) one(root, id, parameters, live);
    else list(root, prefix, state, live);
  },
};

function list(root, prefix, state, live) {
  const place = panel("Resources", { id: "resources" });
  root.append(place);
  pagedList(place, live.signal, {
    path: "/api/v1/resources", query: { prefix, state }, items: "resources",
    draw: (resources) => table(null, [
      ["Resource", (each) => to("graph", { id: each.resource_id }, named(each.resource_id))],
      ["State", (each) => [standing(each), each.pinned ? h("span", { class: "muted" }, " pinned") : null]],
      ["Provider", (each) => named(each.provider)],
      ["Kind", (each) => named(each.kind)],
      ["Leases", (each) => count(each.leases), "number"],
      ["Edges in", (each) => count(each.edges_in), "number"],
      ["Clean-up", (each) => (each.reclaim ? progress(each.reclaim) : "–")],
    ], resources, { empty: state || prefix ? "No resource is so." : "No resource is registered in this namespace." }),
  });
}

const progress = ({ state, attempt }) => (attempt ? `${state}, attempt ${count(attempt)}` : state);
const standing = (each) => pill(STANDING[each.state], each.state);

// --- one --------------------------------------------------------------------------------------------------------------

function one(root, id, parameters, live) {
  const view = { depth: Number(parameters.get("depth") ?? 2), limit: Number(parameters.get("limit") ?? 40), loss: null };
  const place = panel("Around it", { id: "graph" });
  const side = panel("Why it is there", { id: "explained" });
  const asking = panel("What if", { id: "what-if" });
  root.append(h("div", { class: "columns wide-left" }, h("div", { class: "kept" }, place, asking), side));
  let known = null;
  const draw = () => {
    if (known) render(drawn, showGraph(known, view, drawn.clientWidth || 600, widen));
  };
  const widen = () => {
    view.limit = Math.min(200, view.limit * 2);
    view.depth = Math.min(6, view.depth + 1);
    again();
  };
  const drawn = h("div", { class: "kept" });
  place.append(drawn);
  const again = live.keep(side, async (signal) => {
    known = null;
    try {
      known = await asked(id, view, signal);
    } catch (error) {
      if (error.code !== "unknown_resource") throw error;
      const { leases } = await get("/api/v1/leases", { resource: id, limit: LEASES_SHOWN }, signal);
      render(drawn, h("p", { class: "empty" }, "There is nothing to draw."));
      return unregistered(id, leases);
    }
    draw();
    fillQuestions(asking, known, (loss) => {
      view.loss = loss;
      draw();
    }, live);
    return told(known, () => again());
  }, () => 10_000);
  const observer = new ResizeObserver(() => draw());
  observer.observe(place);
  live.signal.addEventListener("abort", () => observer.disconnect());
}

async function asked(id, { depth, limit }, signal) {
  const [resource, explained, around, on] = await Promise.all([
    get(at("resources", id), {}, signal), get(at("resources", id) + "/explain", {}, signal),
    get("/api/v1/edges/around", { resource: id, depth, limit }, signal),
    get("/api/v1/leases", { resource: id, limit: LEASES_SHOWN }, signal),
  ]);
  return { resource, explained, around, leases: on.leases };
}

function showGraph({ around, explained }, view, width, widen) {
  const made = picture(around, explained, view.loss);
  const left = around.resources.reduce((sum, each) => sum + each.more_in + each.more_out, 0);
  return [
    drawGraph(made, width), legend(made),
    made.rings.map(({ way, more }) => h("div", { class: "cycle-found" }, pill("plain", `⟳ cycle of ${way.length}`),
      h("ol", { class: "path" }, shownPath([...way, way[0]]).map((each) => h("li", {}, each === null ? "…" : to("graph", { id: each }, named(each))))),
      more ? h("span", { class: "muted" }, `and ${count(more)} more on cycles with these`) : null)),
    left ? h("p", { class: "more" }, `${plural(left, "edge")} to what is not drawn.`,
      view.limit < 200 ? h("button", { type: "button", "data-key": "widen", on: { click: widen } }, "Draw more") : "This is as much as is drawn.") : null,
  ];
}

/** A resource that nobody registered can have leases; no more is known of it. */
function unregistered(id, leases) {
  return [h("h1", {}, named(id)),
    h("p", { id: "verdict-of-it" }, leases.length ? "It is leased, and registered by nobody: nothing is cleaned up when the last lease ends."
      : "Nobody has registered it or has a lease on it."),
    leases.length ? [h("h3", {}, "Leases on it"), holderTable(leases)] : null];
}

// --- why --------------------------------------------------------------------------------------------------------------

function told({ resource, explained, leases }, again) {
  return [
    h("h1", {}, named(resource.resource_id)),
    h("p", { id: "verdict-of-it" }, verdict(resource, explained)),
    explained.path.length ? [h("h3", {}, "The path that keeps it"),
      h("ol", { class: "path", id: "explain-path" }, shownPath(explained.path).map((each) => h("li", {},
        each === null ? "…" : to("graph", { id: each }, named(each)))))] : null,
    facts([
      ["State", standing(resource)], ["Provider", named(resource.provider)], ["Kind", named(resource.kind)],
      ["References", `${plural(resource.leases, "lease")}, ${plural(resource.edges_in, "edge")} to it`],
      ["Pinned", resource.pinned ? "yes: never reclaimed, except by its lifetime or by deleting it" : null],
      ["When it is lost", resource.on_lost], ["Safety buffer", duration(resource.safety_buffer_ms)],
      ["Lifetime left", resource.lifetime_left_ms === null ? null : duration(resource.lifetime_left_ms)],
      ...cleanUp(resource.reclaim),
    ]),
    leases.length ? [h("h3", {}, "Leases on it"), holderTable(leases)] : null,
    resource.leases > leases.length ? h("p", { class: "muted" }, `${count(resource.leases)} in all.`) : null,
    h("p", {}, resource.state === "reclaiming" || resource.state === "dead" ? null : deleting(resource, again)),
  ];
}

function cleanUp(reclaim) {
  if (!reclaim) return [];
  return [
    ["Clean-up", `${progress(reclaim)}, for ${duration(reclaim.age_ms)}`],
    ["Worker", reclaim.worker === null ? null : named(reclaim.worker)],
    ["Last error", reclaim.last_error ? h("span", { class: "refused" }, reclaim.last_error) : null],
  ];
}

const shownPath = (path) => (path.length <= 10 ? path : [...path.slice(0, 4), null, ...path.slice(-5)]);

function verdict(resource, { alive, undecided, root, waiting_for: waiting }) {
  if (undecided) return "Not decided: too many edges lead here, or they change faster than they can be followed.";
  if (alive) return ["It is kept. ", rootText(root)];
  if (!waiting) return "Nothing keeps it.";
  if (waiting.kind === "safety_buffer") return `Nothing keeps it; its safety buffer lasts ${duration(waiting.left_ms)} more.`;
  if (waiting.kind === "collection") return "Nothing that is kept leads to it: it waits for the collector.";
  if (resource.reclaim?.state === "claimed") return "It is out of use, and a worker is cleaning it up.";
  const closed = waiting.lane_closed_for_ms ? `, whose lane is closed for ${duration(waiting.lane_closed_for_ms)} after failures` : "";
  return `It is out of use and waits for a worker of its provider${closed}.`;
}

function rootText(root) {
  const where = ["“", named(root.resource_id), "”"];
  if (root.kind === "lease") {
    return [named(root.client_id), " has a lease on ", where, ` for ${duration(root.ttl_ms)} more`,
      root.session_id ? [", by its session ", to("sessions", { id: root.session_id }, h("code", {}, root.session_id))] : "", "."];
  }
  if (root.kind === "pinned") return [where, " is pinned."];
  if (root.kind === "orphan") return ["Nothing refers to ", where, ", and its policy has it stay."];
  if (root.kind === "blocked") return [where, " may not go: an edge of its says so."];
  return ["The safety buffer of ", where, ` lasts ${duration(root.hold_left_ms)} more.`];
}

function deleting(resource, again) {
  const forced = resource.reference_count > 0;
  return actionButton("Have it reclaimed", "delete", {
    title: "Have this resource reclaimed?",
    text: [`“${resource.resource_id}” goes out of use now; once its safety buffer is over, its clean-up goes to the workers of “${resource.provider}”.`,
      forced ? `It is still referred to ${plural(resource.reference_count, "time")}: its leases end and its edges are cut.` : "Nothing refers to it."],
    verb: forced ? "Reclaim it all the same" : "Reclaim it", method: "DELETE", path: at("resources", resource.resource_id),
    query: { force: String(forced) }, done: () => "Its clean-up is under way.",
  }, again, "danger");
}

// --- what if ----------------------------------------------------------------------------------------------------------

function fillQuestions(place, { resource, explained, around }, show, live) {
  const asked = questions(resource, explained, around);
  const key = JSON.stringify(asked);
  if (place.dataset.asked === key) return;
  place.dataset.asked = key;
  place.querySelector(".kept")?.remove();
  const answer = h("div", { id: "loss", role: "status" });
  const select = choice("what-if", asked, asked[0]?.[0]);
  const ask = h("button", { class: "primary", "data-key": "ask" }, "Show what would go");
  const clear = h("button", { type: "button", "data-key": "clear" }, "Clear");
  const form = h("form", { class: "search" }, field("If this happened", select), ask, clear);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const loss = await get(at("resources", resource.resource_id) + "/explain", { what_if: select.value }, live.signal);
      show(loss);
      render(answer, lossText(loss));
    } catch (error) {
      if (!live.signal.aborted) render(answer, h("p", { class: "refused" }, error.message));
    }
  });
  clear.addEventListener("click", () => {
    show(null);
    render(answer);
  });
  place.append(h("div", { class: "kept" }, form, answer));
}

function questions({ resource_id: id }, { root }, around) {
  const made = [];
  if (root?.client_id) made.push([`revoke:client/${root.client_id}`, `all leases of ${root.client_id} ended`]);
  if (root?.session_id) made.push([`revoke:session/${root.session_id}`, `session ${root.session_id} ended`]);
  if (root?.lease_id) made.push([`revoke:lease/${root.lease_id}`, `lease ${root.lease_id} ended`]);
  made.push([`delete:resource/${id}`, "this resource was deleted"]);
  for (const edge of around.edges.filter((each) => each.source_resource_id === id || each.target_resource_id === id).slice(0, 20)) {
    made.push([`delete:edge/${edge.source_resource_id}/${edge.target_resource_id}`,
      `edge cut: ${edge.source_resource_id} → ${edge.target_resource_id}`]);
  }
  return made;
}

function lossText(loss) {
  if (loss.undecided) return h("p", {}, "Not decided: too many edges to follow.");
  if (!loss.total) return h("p", {}, "Nothing would be reclaimed.");
  return [
    h("p", {}, `${plural(loss.total, "resource")} would be reclaimed, once buffers are over; this one ${loss.reclaims_this ? "too" : "would stay"}.`,
      loss.changed_meanwhile ? " Something was written meanwhile: ask again to be sure." : ""),
    h("ul", { class: "keys" }, loss.would_reclaim.slice(0, 20).map((each) => h("li", {}, "✕ ", to("graph", { id: each }, named(each))))),
    loss.total > 20 ? h("p", { class: "muted" }, `… and ${count(loss.total - 20)} more.`) : null,
  ];
}
