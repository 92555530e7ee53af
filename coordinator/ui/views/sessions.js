// Sessions: one for a client process, with all it owns.

import { actionButton } from "../actions.js";
import { at, get } from "../api.js";
import { facts, field, h, input, named, panel, pill, searchForm, table, to } from "../dom.js";
import { count, duration, plural } from "../format.js";
import { pagedList } from "../pages.js";
import { IDENTITY } from "./leases.js";

export default {
  title: "Sessions",
  mount(root, parameters, live) {
    const asked = (parameters.get("id") ?? parameters.get("find") ?? "").trim();
    root.append(panel("Find sessions", {},
      searchForm("sessions", [field("Session id, or the beginning of a client", input("find", asked, "worker-"))])));
    if (IDENTITY.test(asked)) one(root, asked, live);
    else list(root, asked, live);
  },
};

function one(root, id, live) {
  const place = panel("Session", {});
  root.append(place);
  const again = live.keep(place, async (signal) => {
    const session = await get(at("sessions", id), {}, signal);
    return [
      h("h1", {}, h("code", {}, session.session_id)),
      facts([
        ["State", state(session)], ["Client", named(session.client_id)], ["Left", duration(session.ttl_ms)],
        ["Owns", plural(session.leases, "lease or lock", "leases and locks")],
      ]),
      h("p", {}, session.state === "ACTIVE" ? ending(session, () => again(), "danger") : null),
    ];
  }, () => 2000);
}

function list(root, prefix, live) {
  const place = panel(prefix ? "Sessions of clients that begin so" : "Sessions", { id: "sessions" });
  root.append(place);
  const again = pagedList(place, live.signal, {
    path: "/api/v1/sessions", query: { prefix }, items: "sessions",
    draw: (sessions) => table(null, [
      ["Session", (session) => to("sessions", { id: session.session_id }, h("code", {}, session.session_id))],
      ["Client", (session) => named(session.client_id)],
      ["State", state],
      ["Left", (session) => duration(session.ttl_ms), "number"],
      ["Owns", (session) => count(session.leases), "number"],
      ["", (session) => (session.state === "ACTIVE" ? ending(session, () => again(), "small danger") : null), "actions"],
    ], sessions, { empty: prefix ? "No client that begins so has a session." : "There is no session in this namespace." }),
  });
}

const state = (session) => pill(session.state === "ACTIVE" ? "good" : "warn", session.state.toLowerCase());

function ending(session, again, kind) {
  return actionButton("End", `end ${session.session_id}`, {
    title: "End this session?",
    text: [`All that “${session.client_id}” owns by it ends with it: ${plural(session.leases, "lease or lock", "leases and locks")}.`],
    verb: "End it", method: "DELETE", path: at("sessions", session.session_id), query: { forced: true },
    done: (answer) => `The session ended, and ${plural(answer.leases, "lease or lock", "leases and locks")} with it.`,
  }, again, kind);
}
