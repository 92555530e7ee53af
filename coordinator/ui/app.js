// The frame of the page: which view is shown, how the connection is, which namespace, token and theme are used.

import { askForToken } from "./actions.js";
import { access, connection, get, space } from "./api.js";
import { address, h, named, render } from "./dom.js";
import { feed } from "./feed.js";
import { timeOfDay } from "./format.js";
import { Live } from "./live.js";
import events from "./views/events.js";
import graph from "./views/graph.js";
import leases from "./views/leases.js";
import locks from "./views/locks.js";
import overview from "./views/overview.js";
import queues from "./views/queues.js";
import reclaims from "./views/reclaims.js";
import sessions from "./views/sessions.js";
import tombstones from "./views/tombstones.js";

const VIEWS = { overview, locks, leases, sessions, graph, reclaims, queues, tombstones, events };
const NO_LEADER = "No leader is known: an election is under way, or a quorum is missing. Writes wait; leases and locks lose no time by it.";
const NAMESPACES = 500;
const THEME = "holdfast-theme";
const THEMES = { system: "light", light: "dark", dark: "system" };

const place = (id) => document.getElementById(id);
let live = null;
let tokenAsked = false;
let here = null;

// --- views ------------------------------------------------------------------------------------------------------------

function show() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  if (location.hash && !location.hash.startsWith("#/")) return;
  const name = path in VIEWS ? path : "overview";
  const view = VIEWS[name];
  live?.end();
  live = new Live();
  const mine = live;
  document.title = `${view.title} – Holdfast`;
  render(place("views"), Object.entries(VIEWS).map(([each, { title }]) =>
    h("a", { href: address(each), "aria-current": each === name ? "page" : null, "data-key": `view ${each}` }, title)));
  // On a phone the list of views is wider than the page.
  const [list, current] = [place("views"), place("views").querySelector("[aria-current]")];
  list.scrollLeft = current.offsetLeft - (list.clientWidth - current.offsetWidth) / 2;
  render(place("main"));
  Promise.resolve(view.mount(place("main"), new URLSearchParams(query ?? ""), live)).catch((error) => {
    if (!mine.signal.aborted) place("main").append(h("p", { class: "refused" }, error.message));
  });
}

// --- how it is going --------------------------------------------------------------------------------------------------

let since = null;

function showConnection(reachable) {
  since = reachable ? null : (since ?? new Date());
  showTrouble();
  if (reachable) {
    feed.tick();
    findOut();
  }
}

/** Which node this page is from; behind one address there may be several in turn. */
async function findOut() {
  here = (await get("/healthz").catch(() => null))?.node ?? here;
}

function showTrouble() {
  const { cluster, problem } = feed;
  if (since) {
    const others = (cluster?.members ?? []).filter((member) => member.id !== here);
    tell("bad", "no answer", `The node at ${location.host} has not answered since ${timeOfDay(since)}. What is shown is from before; `
      + `this page tries again by itself.${others.length ? " Other nodes: " : ""}`, others);
  } else if (problem) tell("warn", problem.status === 401 ? "token needed" : "not ready", problem.message);
  else if (cluster?.leader === null) tell("warn", "no leader", NO_LEADER);
  else if (cluster) tell("good", "live", "");
}

/** Only when it changed: what is read aloud is not to be repeated every two seconds. */
function tell(kind, word, text, others = []) {
  const [trouble, pill] = [place("trouble"), place("connection")];
  const now = `${kind} ${text} ${location.hash}`;
  if (trouble.dataset.told === now) return;
  trouble.dataset.told = now;
  [pill.className, pill.textContent] = [`pill ${kind}`, word];
  trouble.className = kind === "bad" ? "trouble" : "trouble mild";
  trouble.hidden = !text;
  render(trouble, text, others.map((member, number) => [number ? ", " : "", h("a", { href: elsewhere(member) }, member.id)]));
}

const elsewhere = (member) => `${location.protocol}//${member.http}${location.pathname}${location.hash}`;

function showWhereabouts() {
  const { cluster, members } = feed;
  if (!cluster) return;
  render(place("whereabouts"), "cluster ", named(cluster.cluster_id), here ? [", seen from ", named(here)] : "");
  const versions = new Set([...members.values()].map((each) => each.account?.version).filter(Boolean));
  place("version").textContent = versions.size ? `Holdfast ${[...versions].sort().join(" and ")}` : "";
}

// --- namespace, token, theme ------------------------------------------------------------------------------------------

async function showNamespaces() {
  const select = place("namespace");
  let names = [space.name];
  try {
    names = (await get("/api/v1/namespaces")).namespaces.map((each) => each.namespace);
  } catch { /* told of by the connection; the list stays short */ }
  if (names.length && !names.includes(space.name)) {
    space.name = names[0];
    show();
  }
  render(select, [...new Set([space.name, ...names])].slice(0, NAMESPACES).map((name) => h("option", { value: name, selected: name === space.name }, name)));
}

function setTheme(name) {
  localStorage.setItem(THEME, name);
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  place("theme").textContent = `Theme: ${name}`;
}

function showAccess() {
  place("access").textContent = access.token ? "Token: set" : "Token: none";
}

function restart() {
  showAccess();
  showNamespaces();
  feed.tick();
  show();
}

place("theme").addEventListener("click", () => setTheme(THEMES[localStorage.getItem(THEME) ?? "system"]));
place("access").addEventListener("click", () => askForToken(restart));
place("skip").addEventListener("click", (event) => {
  event.preventDefault();
  place("main").focus();
});
place("namespace").addEventListener("change", (event) => {
  space.name = event.target.value;
  show();
});
connection.addEventListener("reachable", (event) => showConnection(event.detail));
connection.addEventListener("token-wanted", (event) => {
  // Asked once: whoever leaves the dialog wants to look around without.
  if (!tokenAsked && !document.querySelector("dialog")) askForToken(restart, event.detail);
  tokenAsked = true;
});
addEventListener("hashchange", show);
feed.addEventListener("tick", () => {
  showTrouble();
  showWhereabouts();
});

setTheme(localStorage.getItem(THEME) ?? "system");
showAccess();
show();
feed.start();
findOut();
showNamespaces();
