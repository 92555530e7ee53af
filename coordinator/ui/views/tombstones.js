// Tombstones: what is dead and still waited for, and the holders of copies it waits for.

import { actionButton } from "../actions.js";
import { at } from "../api.js";
import { facts, h, named, panel, pill, render, table, to } from "../dom.js";
import { feed } from "../feed.js";
import { bytes, count, duration, plural } from "../format.js";
import { pagedList } from "../pages.js";

export default {
  title: "Tombstones",
  mount(root, parameters, live) {
    const numbers = h("div", {});
    const [dead, holders] = [panel("Tombstones", { aside: "oldest first", id: "tombstones" }), panel("Holders of copies", { id: "holders" })];
    root.append(panel("In the whole cluster", {}, numbers), h("div", { class: "columns" }, dead, holders));
    live.onTick(() => render(numbers, summary()));
    pagedList(dead, live.signal, {
      path: "/api/v1/tombstones", items: "tombstones", wanted: 25,
      draw: (found) => table(null, [
        ["Resource", (each) => named(each.resource_id)],
        ["Dead for", (each) => duration(each.age_ms), "number"],
        ["Waits for", (each) => [plural(each.waiting, "holder"), h("span", { class: "sub" }, each.waiting_for.slice(0, 3).map((name, place) => [place ? ", " : "", named(name)]))]],
        ["Revision", (each) => count(each.revision), "number"],
      ], found, { empty: "No tombstone stands: nothing dead is waited for." }),
    });
    const again = pagedList(holders, live.signal, {
      path: "/api/v1/holders", items: "holders", wanted: 25,
      draw: (found) => table(null, [
        ["Holder", (each) => named(each.holder_id)],
        ["State", (each) => (each.verified ? pill("good", "verified") : pill("warn", "to be verified"))],
        ["Behind", (each) => (each.behind ? pill("warn", plural(each.behind, "tombstone")) : "0"), "number"],
        ["Copies, about", (each) => count(each.copies_estimate), "number"],
        ["Session", (each) => (each.session_id ? to("sessions", { id: each.session_id }, h("code", {}, each.session_id)) : "none")],
        ["", (each) => removing(each, () => again()), "actions"],
      ], found, { empty: "Nobody has registered copies in this namespace." }),
    });
  },
};

function summary() {
  const copies = feed.telemetry?.copies;
  if (!copies) return h("p", { class: "empty" }, "Asking the node …");
  return facts([
    ["Stand", copies.tombstones ? `${plural(copies.tombstones, "tombstone")}, ${bytes(copies.tombstone_bytes)}, the oldest for ${duration(copies.oldest_ms)}` : "none"],
    ["Ever", `${count(copies.created)} made, ${count(copies.purged)} done with, ${count(copies.refused)} requests of the dead refused by this node`],
    ["Holders", copies.holders ? `${count(copies.holders)}, the furthest behind by ${plural(copies.furthest_behind, "revision")}` : "none"],
  ]);
}

function removing(holder, again) {
  return actionButton("Remove", `remove ${holder.holder_id}`, {
    title: "Remove this holder?",
    text: [`Nothing waits for “${holder.holder_id}” any more. If it comes back, it must verify all its copies before it uses one.`],
    verb: "Remove it", method: "DELETE", path: at("holders", holder.holder_id),
    done: () => "The holder is removed.",
  }, again);
}
