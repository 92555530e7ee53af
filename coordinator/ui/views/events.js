// Events as they happen, filtered by the node.

import { follow, get } from "../api.js";
import { address, field, h, input, named, panel, pill, render, searchForm, tableCell, to } from "../dom.js";
import { count, timeOfDay } from "../format.js";

const KEPT = 200;

export default {
  title: "Events",
  async mount(root, parameters, live) {
    const asked = { prefix: parameters.get("prefix") ?? "", owner: parameters.get("owner") ?? "" };
    const chosen = new Set((parameters.get("about") ?? "").split(",").filter(Boolean));
    const chips = h("fieldset", {}, h("legend", {}, "About"));
    const about = h("input", { type: "hidden", name: "about", value: [...chosen].join(",") });
    const form = searchForm("events", [field("Key begins with", input("prefix", asked.prefix, "any")), field("Client", input("owner", asked.owner, "any")), about], { verb: "Filter" });
    const state = h("span", { class: "aside" }, pill("plain", "connecting"));
    const pause = h("button", { type: "button", class: "small", "aria-pressed": "false" }, "Pause");
    const rows = h("tbody", { id: "events" });
    const missed = h("p", { class: "refused", role: "status", hidden: true });
    const nothing = h("p", { class: "empty" }, "Nothing happened since this page was opened. Renewals are no events: there are too many.");
    const list = h("section", { class: "panel", "aria-label": "Events" },
      h("header", {}, h("h2", {}, "Events"), pause, state), missed, nothing, h("table", { class: "cards" },
        h("thead", {}, h("tr", {}, ["Time", "Event", "Key", "Client", "Token", "Revision"].map((title, place) => h("th", { scope: "col", class: place > 3 ? "number" : null }, title)))), rows));
    root.append(panel("Filters", {}, chips, form), list);
    const kinds = await offered(live.signal);
    drawChips(chips, kinds, chosen, asked);
    show(rows, { asked, chosen, kinds, state, pause, missed, nothing }, live);
  },
};

/** The kinds there are, as the interface itself lists them. */
async function offered(signal) {
  const document = await get("/openapi.json", {}, signal);
  const asked = document.paths["/api/v1/watch"].get.parameters.find((each) => each.name === "kinds");
  return asked.schema.items.enum;
}

function drawChips(place, kinds, chosen, asked) {
  for (const noun of new Set(kinds.map((kind) => kind.split("_")[0]))) {
    place.append(h("button", {
      type: "button", class: "small", "aria-pressed": String(chosen.has(noun)), "data-key": `about ${noun}`,
      on: { click: () => {
        if (!chosen.delete(noun)) chosen.add(noun);
        location.hash = address("events", { ...asked, about: [...chosen].join(",") });
      } },
    }, noun));
  }
}

function show(rows, { asked, chosen, kinds, state, pause, missed, nothing }, live) {
  let paused = false;
  let waiting = [];
  const wanted = chosen.size ? kinds.filter((kind) => chosen.has(kind.split("_")[0])).join(",") : "";
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused) add(waiting.splice(0));
    label();
  });
  const label = () => { pause.textContent = paused ? `Paused, ${count(waiting.length)} new` : "Pause"; };
  const add = (events) => {
    rows.prepend(...events.map(row).reverse());
    render(nothing, `Newest first; the last ${count(KEPT)} are kept here.`);
    while (rows.children.length > KEPT) rows.lastChild.remove();
  };
  let batch = [];
  follow({ ...asked, kinds: wanted }, {
    event(event) {
      event.at = timeOfDay();
      if (paused) {
        waiting = [...waiting, event].slice(-KEPT);
        label();
        return;
      }
      // A burst is drawn once a frame.
      if (!batch.length) requestAnimationFrame(() => add(batch.splice(0).slice(-KEPT)));
      batch.push(event);
    },
    gap(text) {
      render(missed, text);
      missed.hidden = false;
    },
    state: (now, text) => render(state, now === "live" ? pill("good", "live") : pill("warn", text ?? "away")),
  }, live.signal);
}

/** Where more is told of what it happened to, by the first word of its kind. */
const ABOUT = {
  lock: (key) => ["locks", { key }], wait: (key) => ["locks", { key }], lease: (find) => ["leases", { find }],
  resource: (id) => ["graph", { id }], reclaim: (id) => ["graph", { id }], session: (find) => ["sessions", { find }],
  queue: (queue) => ["queues", { queue }], task: (queue) => ["queues", { queue }],
  worker: (queue) => ["queues", { queue }],
};

function keyOf(event) {
  const where = ABOUT[event.kind.split("_")[0]]?.(event.key);
  return where ? to(...where, named(event.key)) : named(event.key);
}

function row(event) {
  const cells = [["Time", event.at], ["Event", h("code", {}, event.kind)], ["Key", keyOf(event)],
    ["Client", event.owner ? named(event.owner) : "–"], ["Token", event.fencing_token ? count(event.fencing_token) : "–"], ["Revision", count(event.revision)]];
  return h("tr", {}, cells.map(([title, cell], place) => tableCell(title, cell, place > 3 ? "number" : null)));
}
