// The graph around one resource: layers by distance, sources before it and targets after it, as wide as the page allows.

import { address, h, s } from "./dom.js";
import { cut, plural, shortened } from "./format.js";

const BOX = { width: 168, height: 40 };
const GAP = { along: 64, across: 20 };
const EDGE_OF_PAGE = 14;
const MARGIN = 26;
const WIDE = 620;

/**
 * `picture`: { nodes: [{ id, layer, about, kinds, marker }], edges: [{ source, target, kinds }], middle }.
 * Side by side where there is room, one below the other on a phone.
 */
export function drawGraph(picture, width) {
  const layers = layered(picture.nodes);
  const { places, height } = width >= WIDE ? sideways(layers, width) : downwards(layers, width);
  const way = width >= WIDE ? besides : below;
  const label = `${plural(picture.nodes.length, "resource")} and ${plural(picture.edges.length, "edge")} around ${picture.middle}`;
  const reach = { top: 0, bottom: height };
  const lines = picture.edges.map((edge) => line(edge, places, way, reach)).filter(Boolean);
  const drawn = reach.bottom - reach.top;
  return s("svg", { class: "graph", role: "group", "aria-label": label, viewBox: `0 ${reach.top} ${width} ${drawn}`, height: drawn },
    s("defs", {}, ["plain", "cycle", "path"].map(arrow)), lines, picture.nodes.map((node) => box(node, places.get(node.id))));
}

function layered(nodes) {
  const layers = new Map();
  for (const node of nodes) layers.set(node.layer, [...(layers.get(node.layer) ?? []), node]);
  return [...layers.keys()].sort((a, b) => a - b).map((layer) => layers.get(layer));
}

function sideways(layers, width) {
  const tallest = Math.max(...layers.map((layer) => layer.length));
  const height = 2 * EDGE_OF_PAGE + tallest * (BOX.height + GAP.across);
  const room = width - 2 * EDGE_OF_PAGE;
  const along = Math.max(30, Math.min(GAP.along, room / layers.length - BOX.width));
  const boxWidth = Math.min(BOX.width * 1.3, (room - along * (layers.length - 1)) / layers.length);
  const used = layers.length * boxWidth + (layers.length - 1) * along;
  const places = new Map();
  layers.forEach((layer, column) => {
    const taken = layer.length * (BOX.height + GAP.across) - GAP.across;
    const top = (height - taken) / 2;
    layer.forEach((node, row) => places.set(node.id, {
      x: (width - used) / 2 + column * (boxWidth + along), y: top + row * (BOX.height + GAP.across),
      width: boxWidth, height: BOX.height, layer: column, span: { top, bottom: top + taken },
    }));
  });
  return { places, height };
}

function downwards(layers, width) {
  const room = width - 2 * MARGIN;
  const across = Math.max(1, Math.floor((room + 10) / 125));
  const boxWidth = (room - (across - 1) * 10) / across;
  const places = new Map();
  let y = EDGE_OF_PAGE;
  layers.forEach((layer, row) => {
    layer.forEach((node, number) => {
      const first = number - (number % across);
      const left = (width - Math.min(across, layer.length - first) * (boxWidth + 10) + 10) / 2;
      places.set(node.id, {
        x: left + (number % across) * (boxWidth + 10), y: y + Math.floor(number / across) * (BOX.height + 14),
        width: boxWidth, height: BOX.height, layer: row, page: width,
        first: number < across, last: first + across >= layer.length,
      });
    });
    y += Math.ceil(layer.length / across) * (BOX.height + 14) + 24;
  });
  return { places, height: y - 38 + EDGE_OF_PAGE + 8 };
}

function box(node, place) {
  const letters = Math.floor((place.width - 18) / 7.3);
  const middle = place.x + place.width / 2;
  if (node.marker) {
    return s("text", { class: "more-marker", x: middle, y: place.y + place.height / 2 + 4, "text-anchor": "middle" }, node.marker);
  }
  const shape = s("g", { class: ["node", ...node.kinds].join(" ") }, s("title", {}, `${node.id}\n${node.about}`),
    s("rect", { x: place.x, y: place.y, width: place.width, height: place.height, rx: 5 }),
    s("text", { x: place.x + 9, y: place.y + 17 }, shortened(node.id, letters)),
    s("text", { class: "about", x: place.x + 9, y: place.y + 32 }, cut(node.about, Math.floor((place.width - 18) / 6.7))));
  const link = s("a", { href: address("graph", { id: node.id }), "data-key": `node ${node.id}`, "aria-label": `${node.id}: ${node.about}` }, shape);
  return [link, node.before ? hidden(node.before, place, -1) : null, node.after ? hidden(node.after, place, 1) : null];
}

/** That there are more edges than are drawn, where they would be. */
function hidden(number, place, side) {
  const text = side < 0 ? `▸ ${number} more in` : `${number} more out ▸`;
  return s("text", {
    class: "more-marker", x: side < 0 ? place.x : place.x + place.width, y: place.y + place.height + 11,
    "text-anchor": side < 0 ? "start" : "end",
  }, text);
}

function line(edge, places, way, reach) {
  const [from, to] = [places.get(edge.source), places.get(edge.target)];
  if (!from || !to) return null;
  const kind = edge.kinds.includes("path") ? "path" : edge.kinds.includes("cycle") ? "cycle" : "plain";
  const d = way(from, to, [...places.values()], reach);
  return s("path", { class: `edge ${kind}`, d, "marker-end": `url(#arrow-${kind})` }, s("title", {}, `${edge.source} refers to ${edge.target}`));
}

const toItself = (place) => `M${place.x + place.width - 26},${place.y}c4,-20 22,-20 22,-3`;

/** From layer to layer; past other layers it goes over or under them, so that it never seems to touch what it passes. */
function besides(from, to, places, reach) {
  if (from === to) return toItself(from);
  const [y1, y2] = [from.y + from.height / 2, to.y + to.height / 2];
  if (from.layer === to.layer) {
    const x = from.x + from.width;
    return `M${x},${y1}C${x + 28},${y1} ${x + 28},${y2} ${x + 3},${y2}`;
  }
  const [x1, x2] = [from.x + from.width, to.x - 3];
  if (to.layer === from.layer + 1) {
    const bend = (x2 - x1) / 2;
    return `M${x1},${y1}C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
  }
  const [low, high] = [Math.min(from.layer, to.layer), Math.max(from.layer, to.layer)];
  const backwards = to.layer < from.layer;
  const between = places.filter((place) => (backwards ? place.layer >= low && place.layer <= high : place.layer > low && place.layer < high));
  const level = (y1 + y2) / 2;
  const over = Math.min(...between.map((place) => place.span.top)) - 12;
  const under = Math.max(...between.map((place) => place.span.bottom)) + 12;
  const crest = level - over <= under - level ? over : under;
  // A curve rises three quarters of the way to where it is bent to.
  const bent = (crest - level / 4) / 0.75;
  reach.top = Math.min(reach.top, crest - 6);
  reach.bottom = Math.max(reach.bottom, crest + 6);
  const edgeOf = (place) => (crest === over ? place.y : place.y + place.height);
  const extreme = (place) => edgeOf(place) === (crest === over ? place.span.top : place.span.bottom);
  if (backwards && extreme(from) && extreme(to)) {
    const [left, right] = [to.x + to.width / 2, from.x + from.width / 2];
    return `M${right},${edgeOf(from)}C${right},${bent} ${left},${bent} ${left},${edgeOf(to) + (crest === over ? -3 : 3)}`;
  }
  const out = backwards ? 44 : 20;
  return `M${x1},${y1}C${x1 + out},${bent} ${x2 - out},${bent} ${x2},${y2}`;
}

/** The same from row to row: onwards past other rows along the left side, back along the right. */
function below(from, to) {
  if (from === to) return toItself(from);
  const [x1, x2] = [from.x + from.width / 2, to.x + to.width / 2];
  if (to.layer === from.layer + 1 && from.last && to.first) {
    const [y1, y2] = [from.y + from.height, to.y - 3];
    return `M${x1},${y1}C${x1},${y1 + 20} ${x2},${y2 - 20} ${x2},${y2}`;
  }
  const [y1, y2] = [from.y + from.height / 2, to.y + to.height / 2];
  if (to.layer > from.layer) return `M${from.x},${y1}C2,${y1} 2,${y2} ${to.x - 3},${y2}`;
  return `M${from.x + from.width},${y1}C${from.page - 2},${y1} ${from.page - 2},${y2} ${to.x + to.width + 3},${y2}`;
}

function arrow(kind) {
  return s("marker", {
    id: `arrow-${kind}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse",
  }, s("path", { class: `arrow ${kind}`, d: "M0,0L8,4L0,8Z" }));
}

/** Of what is drawn. */
export function legend({ nodes, edges }) {
  const rows = {
    middle: ["middle", "this resource"], path: ["edge path", "the path that keeps it alive"], cycle: ["edge cycle", "on a cycle ⟳"],
    reclaiming: ["reclaiming", "clean-up under way"], lost: ["lost", "would be reclaimed ✕"],
  };
  const seen = new Set([...nodes, ...edges].flatMap((each) => each.kinds));
  return h("ul", { class: "keys" }, Object.keys(rows).filter((kind) => seen.has(kind)).map((kind) => {
    const [style, text] = rows[kind];
    const sample = style.startsWith("edge") ? s("path", { class: style, d: "M1,6H25" })
      : s("g", { class: `node ${style}` }, s("rect", { x: 2, y: 1.5, width: 22, height: 9, rx: 2 }));
    return h("li", {}, s("svg", { class: "graph", viewBox: "0 0 26 12", "aria-hidden": "true" }, sample), text);
  }));
}
