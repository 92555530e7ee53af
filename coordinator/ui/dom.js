// Elements made of text and other elements. Text from outside only ever becomes a text node: there is no other way in.

const SVG = "http://www.w3.org/2000/svg";

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, properties, ...children) {
  return build(document.createElement(tag), properties, children);
}

export function s(tag, properties, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

/** A name that somebody chose: set apart, so that no direction mark in it turns the rest of the line around. */
export function named(text) {
  return h("bdi", { class: "name" }, text);
}

/** A link to a view: what is in the address is all there is to a view, so every view can be passed on. */
export function to(view, parameters, ...children) {
  return h("a", { href: address(view, parameters), "data-key": address(view, parameters) }, ...children);
}

export function address(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return `#/${view}${query ? "?" + query : ""}`;
}

/** New content for `container`. Who was on an element with a data-key stays on its successor. */
export function render(container, ...children) {
  const active = document.activeElement;
  const key = container.contains(active) ? active.getAttribute("data-key") : null;
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  container.replaceChildren(...shown);
  if (key !== null) focusOn(key);
}

export function focusOn(key) {
  document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

export function panel(title, { aside, id } = {}, ...children) {
  const head = h("header", {}, h("h2", {}, title), aside ? h("span", { class: "aside" }, aside) : null);
  return h("section", { class: "panel", id, "aria-label": title }, head, ...children);
}

export function pill(kind, text) {
  return h("span", { class: `pill ${kind}` }, text);
}

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined);
  return h("dl", { class: "facts" }, shown.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
}

/** Columns are [title, cell(row), kind]; kind is "number", "actions" or nothing. On a phone every row is a card. */
export function table(caption, columns, rows, { empty, current } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const heads = columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map((row) =>
    h("tr", { "aria-current": current?.(row) ? "true" : null },
      columns.map(([title, cell, kind]) => tableCell(title, cell(row), kind))));
  return h("table", { class: "cards" },
    caption ? h("caption", {}, caption) : null, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body));
}

/** "–" is said where there is a column for it; a card leaves it out. */
export function tableCell(title, content, kind) {
  const classes = [kind, content === "–" ? "nothing" : null].filter(Boolean).join(" ");
  return h("td", { class: classes || null, "data-label": title }, h("div", { class: "cell" }, content));
}

export function field(label, control) {
  return h("label", { class: "field" }, h("span", {}, label), control);
}

export function choice(name, options, chosen) {
  const made = options.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  return h("select", { name, "data-key": `choice ${name}` }, made);
}

/** A form whose fields become the view's address. */
export function searchForm(view, fields, { verb = "Search", keep = {} } = {}) {
  const form = h("form", { class: "search", role: "search" }, fields, h("button", { class: "primary" }, verb));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const before = location.hash;
    location.hash = address(view, { ...keep, ...Object.fromEntries(new FormData(form)) });
    if (location.hash === before) dispatchEvent(new HashChangeEvent("hashchange"));
  });
  return form;
}

export function input(name, value, placeholder) {
  return h("input", {
    name, value: value ?? "", placeholder, autocomplete: "off", spellcheck: "false", "data-key": `input ${name}`,
  });
}
