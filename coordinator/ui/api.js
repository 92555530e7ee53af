// Calls to the node this page came from. Every other node is asked through it, so the page talks to one origin only.

const ROOT = new URL("../", document.baseURI);
const TOKEN = "holdfast-access-token";
const SPACE = "holdfast-namespace";

export const connection = new EventTarget();
let reachable = true;

/** The node answered, and refused. `outcome`: denied (nothing happened), retry (send it again), unknown. */
class Refusal extends Error {
  constructor(status, error) {
    super(error.message);
    Object.assign(this, { status, code: error.code, outcome: error.outcome, details: error.details ?? {} });
  }
}

/** The node did not answer. */
class Silence extends Error {
  constructor(wrote) {
    super(wrote ? "The node did not answer; the request may or may not have taken effect." : "The node does not answer.");
    this.outcome = wrote ? "unknown" : "retry";
  }
}

export const access = {
  get token() { return sessionStorage.getItem(TOKEN) ?? ""; },
  /** For this tab only, gone when it is closed. */
  set token(text) {
    if (text) sessionStorage.setItem(TOKEN, text);
    else sessionStorage.removeItem(TOKEN);
  },
};

export const space = {
  get name() { return sessionStorage.getItem(SPACE) ?? "default"; },
  set name(text) { sessionStorage.setItem(SPACE, text); },
};

/** What belongs to no namespace. A token may reach it and not the namespace that is looked at. */
const UNSPACED = /^\/(openapi\.json$|healthz$|api\/v1\/(cluster|telemetry|namespaces)\b)/;

function headers(path, more = {}) {
  // Headers are bytes: a namespace with other than Latin characters is sent as it is in UTF-8.
  const named = { "X-Holdfast-Namespace": String.fromCharCode(...new TextEncoder().encode(space.name)) };
  const given = { ...(UNSPACED.test(path) ? {} : named), ...more };
  if (access.token) given.Authorization = `Bearer ${access.token}`;
  return given;
}

function url(path, query = {}) {
  const made = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") made.searchParams.set(name, value);
  }
  return made;
}

/** A path of texts, whatever is in them. */
export const at = (...parts) => "/api/v1/" + parts.map(encodeURIComponent).join("/");

async function send(method, path, { query, body, signal, more } = {}) {
  const wrote = method !== "GET";
  let answer;
  try {
    answer = await fetch(url(path, query), {
      method, signal, cache: "no-store", credentials: "omit", redirect: "error",
      headers: headers(path, { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...more }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    tell(false);
    throw new Silence(wrote);
  }
  tell(true, answer.headers.get("X-Holdfast-Leader"));
  return answer;
}

async function refusal(answer) {
  let error = { message: `The node answered ${answer.status}.`, code: "unreadable", outcome: "unknown" };
  try {
    error = (await answer.json()).error ?? error;
  } catch { /* not ours: a proxy's page, perhaps */ }
  if (answer.status === 401) connection.dispatchEvent(new CustomEvent("token-wanted", { detail: error.message }));
  return new Refusal(answer.status, error);
}

export async function get(path, query, signal) {
  const answer = await send("GET", path, { query, signal });
  if (!answer.ok) throw await refusal(answer);
  try {
    return await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Silence(false);
  }
}

/** A write. `requestId` is the same when it is sent again, so that it applies once. */
export async function change(method, path, requestId, { query, body } = {}) {
  const answer = await send(method, path, {
    query, body: body ?? (method === "DELETE" ? undefined : {}), more: { "Idempotency-Key": requestId },
  });
  if (!answer.ok) throw await refusal(answer);
  return answer.json().catch(() => { throw new Silence(true); });
}

export const newRequestId = () => `ui-${[...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(16)).join("")}`;

function tell(now, leader) {
  if (now !== reachable) {
    reachable = now;
    connection.dispatchEvent(new CustomEvent("reachable", { detail: now }));
  }
  if (now) connection.dispatchEvent(new CustomEvent("answered", { detail: leader }));
}

// --- events -----------------------------------------------------------------------------------------------------------

const RETRY_MS = 1500;

/**
 * Follows /watch until `signal` aborts, across lost connections: it goes on after the last event it saw.
 * `on` has event(document), and perhaps gap(text) and state("live" | "away", text).
 */
export async function follow(query, on, signal) {
  let after = "";
  while (!signal.aborted) {
    try {
      const answer = await send("GET", "/api/v1/watch", {
        query: { ...query, after }, signal, more: { Accept: "text/event-stream" },
      });
      if (!answer.ok) throw await refusal(answer);
      on.state?.("live");
      for await (const [name, id, text] of messages(answer.body)) {
        if (id) after = id;
        if (name === "message") on.event(JSON.parse(text));
        if (name === "compacted") {
          on.gap?.("Events were missed: they are gone from the node's memory.");
          after = "";
        }
      }
      on.state?.("away", "The stream ended; it goes on where it stopped.");
    } catch (error) {
      if (signal.aborted) return;
      on.state?.("away", error.message);
      if (error.status === 410) {
        on.gap?.("Events were missed: they are gone from the node's memory.");
        after = "";
      } else if (error.outcome === "denied") return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield* message(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function* message(block) {
  let [name, id, text] = ["message", "", ""];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("id: ")) id = line.slice(4);
    if (line.startsWith("data: ")) text += line.slice(6);
  }
  if (text) yield [name, id, text];
}
