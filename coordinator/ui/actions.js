// What changes something: always asked about first, sent under one request id however often it is sent.

import { access, change, newRequestId } from "./api.js";
import { focusOn, h, render } from "./dom.js";

/**
 * A button that asks, sends, and tells. `ask`: { title, text: [sentences], verb, method, path, query, body, done }.
 * `done(answer)` is what to say; `then()` what to do after it.
 */
export function actionButton(label, key, ask, then, kind = "small danger") {
  return h("button", {
    type: "button", class: kind, "data-key": key, on: { click: () => confirmed(ask, key, then) },
  }, label);
}

function confirmed(ask, key, then) {
  const requestId = newRequestId();
  const trouble = h("p", { class: "refused", role: "alert" });
  const go = h("button", { class: "primary danger", value: "go" }, ask.verb);
  const leave = h("button", { type: "button", autofocus: true }, "Leave it");
  const heading = h("h2", { id: "dialog-title" }, ask.title);
  const form = h("form", { method: "dialog" }, heading, ask.text.map((text) => h("p", {}, text)),
    trouble, h("div", { class: "choices" }, leave, go));
  const dialog = open(form, key);
  leave.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    render(trouble);
    try {
      const answer = await change(ask.method ?? "POST", ask.path, requestId, { query: ask.query, body: ask.body });
      dialog.close();
      notice(ask.done(answer));
      then?.(answer);
    } catch (error) {
      render(trouble, told(error));
      go.disabled = error.outcome === "denied";
      go.textContent = go.disabled ? ask.verb : "Try again";
    }
  });
}

/** What an error means for what was asked. */
function told(error) {
  const meaning = {
    denied: " Nothing was changed.",
    retry: " Nothing was changed; try again.",
    unknown: " It is not known whether it took effect. Trying again is safe: it applies once.",
  };
  return `${error.message}${meaning[error.outcome] ?? ""}`;
}

function open(form, key) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    dialog.remove();
    // The button may have been drawn anew meanwhile.
    focusOn(key);
  });
  dialog.showModal();
  return dialog;
}

function notice(text, kind = "") {
  const close = h("button", { type: "button", class: "small", "aria-label": "Dismiss" }, "×");
  const element = h("div", { class: `notice ${kind}` }, h("span", {}, text), close);
  close.addEventListener("click", () => element.remove());
  setTimeout(() => element.remove(), 10_000);
  document.getElementById("notices").append(element);
}

export function askForToken(changed, why = "") {
  const typed = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false", placeholder: "hf_…", autofocus: true });
  typed.value = access.token;
  const forget = h("button", { type: "button" }, "Forget it");
  const leave = h("button", { type: "button" }, "Leave it");
  const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, "Access token"),
    why ? h("p", { class: "refused" }, why) : null,
    h("p", { class: "hint" }, "Sent with every request of this tab, kept until the tab is closed, and written nowhere else. "
      + "Where the cluster asks for no tokens, none is needed."),
    h("label", { class: "field" }, h("span", {}, "Token"), typed),
    h("div", { class: "choices" }, forget, leave, h("button", { class: "primary" }, "Use it")));
  const dialog = open(form, "access");
  const use = (text) => {
    access.token = text;
    dialog.close();
    changed();
  };
  leave.addEventListener("click", () => dialog.close());
  forget.addEventListener("click", () => use(""));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    use(typed.value.trim());
  });
}
