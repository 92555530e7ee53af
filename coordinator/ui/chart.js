// Lines over time in plain SVG, drawn at the width there is. Gaps stay gaps.

import { h, s, render } from "./dom.js";

const HEIGHT = 132;
const LEFT = 46;
const BOTTOM = 18;
const SPAN_MS = 600_000;

/** `lines`: [[field, label], …] of the points; `format` writes a value with its unit. */
export function chart(title, lines, format, note) {
  const drawing = s("svg", { role: "img", height: HEIGHT });
  const legend = h("dl", { class: "legend" });
  const element = h("section", { class: "panel chart", "aria-label": title },
    h("header", {}, h("h2", {}, title), note ? h("span", { class: "aside" }, note) : null), drawing, legend);
  let points = [];
  let pointed = null;

  function draw() {
    const width = drawing.clientWidth || 320;
    const now = points.at(-1)?.at ?? Date.now();
    const first = Math.max(now - SPAN_MS, Math.min(points[0]?.at ?? now, now - 60_000));
    const x = (at) => LEFT + ((at - first) / (now - first)) * (width - LEFT - 2);
    const top = ceiling(Math.max(0, ...points.flatMap((point) => lines.map(([name]) => point[name] ?? 0))));
    const y = (value) => 8 + (1 - value / top) * (HEIGHT - BOTTOM - 8);
    const seen = points.filter((point) => point.at >= first);
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    drawing.setAttribute("aria-label", spoken(title, lines, points, format));
    render(drawing, frame(x, y, top, first, now, width, format),
      lines.map(([name], place) => line(seen, name, place, x, y)), cursor(x));
    showLegend(pointed === null ? seen.at(-1) : nearest(seen, pointed, x));
  }

  function cursor(x) {
    const point = pointed === null ? null : nearest(points, pointed, x);
    return point ? s("line", { class: "cursor", x1: x(point.at), x2: x(point.at), y1: 4, y2: HEIGHT - BOTTOM }) : null;
  }

  function showLegend(point) {
    render(legend, lines.map(([name, label], place) => h("div", {},
      h("dt", {}, s("svg", { "aria-hidden": "true" }, s("line", { class: `series-${place}`, x1: 0, x2: 20, y1: 4, y2: 4 })), label),
      h("dd", {}, format(point?.[name] ?? null)))));
  }

  drawing.addEventListener("pointermove", (event) => {
    pointed = event.clientX - drawing.getBoundingClientRect().left;
    draw();
  });
  drawing.addEventListener("pointerleave", () => {
    pointed = null;
    draw();
  });
  new ResizeObserver(draw).observe(drawing);
  return {
    element,
    show(known) {
      points = known;
      draw();
    },
  };
}

function frame(x, y, top, first, now, width, format) {
  const levels = [0, top / 2, top].map((value) => [
    s("line", { class: "grid", x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
    s("text", { class: "axis", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
  ]);
  const minutes = Math.round((now - first) / 60_000);
  return [levels,
    s("text", { class: "axis", x: LEFT, y: HEIGHT - 3 }, `${minutes} min ago`),
    s("text", { class: "axis", x: width - 2, y: HEIGHT - 3, "text-anchor": "end" }, "now")];
}

function line(points, name, place, x, y) {
  const runs = [];
  let run = [];
  for (const point of points) {
    const value = point[name];
    if (value === null || value === undefined) {
      if (run.length) runs.push(run);
      run = [];
    } else run.push([x(point.at), y(value)]);
  }
  if (run.length) runs.push(run);
  return runs.map((each) => {
    const path = each.map(([left, down]) => `${left.toFixed(1)},${down.toFixed(1)}`).join("L");
    const end = each.length === 1 ? `M${path}h1.5` : `M${path}`;
    const area = place || each.length === 1 ? null
      : s("path", { class: "area series-0", d: `${end}V${y(0)}H${each[0][0].toFixed(1)}Z` });
    return [area, s("path", { class: `line series-${place}`, d: end })];
  });
}

function nearest(points, left, x) {
  const known = points.filter((point) => Object.keys(point).length > 1);
  return known.reduce((best, point) => (!best || Math.abs(x(point.at) - left) < Math.abs(x(best.at) - left) ? point : best), null);
}

function spoken(title, lines, points, format) {
  const parts = lines.map(([name, label]) => {
    const values = points.map((point) => point[name]).filter((value) => value !== null && value !== undefined);
    if (!values.length) return `${label}: no values yet`;
    return `${label}: now ${format(values.at(-1))}, highest ${format(Math.max(...values))}`;
  });
  return `${title}. ${parts.join("; ")}.`;
}

/** 1, 2 or 5 times a power of ten, not below `value`. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}
