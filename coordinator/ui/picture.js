// What is drawn of the graph: the surroundings the node told of, the path that keeps the resource, and what would be lost.

import { cycles, ring } from "./cycles.js";
import { plural } from "./format.js";

const PATH_SHOWN = 6;

export function picture(around, explained, loss) {
  const lost = new Set(loss?.would_reclaim ?? []);
  const path = explained.path ?? [];
  const known = new Map(around.resources.map((each) => [each.resource_id, each]));
  const pairs = around.edges.map((edge) => [edge.source_resource_id, edge.target_resource_id]);
  const found = cycles([...known.keys()], pairs);
  const cycleOf = new Map(found.flatMap((set, number) => set.map((id) => [id, number])));
  const { layers, markers } = withPath(around, path);
  const onPath = new Set(path);
  const nodes = [...layers].map(([id, layer]) => {
    const each = known.get(id);
    return { id, layer, ...described(id, each, around.resource_id, { cycleOf, onPath, lost, explained }) };
  });
  return { nodes: [...nodes, ...markers], edges: drawnEdges(pairs, path, layers, cycleOf, markers), middle: around.resource_id, rings: found.map((set) => roundtrip(set, around.resource_id, pairs)) };
}

/** One cycle of a set to show, through the resource in the middle if that is on one. */
function roundtrip(set, middle, pairs) {
  const way = ring(set.includes(middle) ? middle : set[0], set, pairs);
  return { way, more: set.length - way.length };
}

/** Layers by distance; what is on the path lies as far before the resource as the path says. A long path is cut short. */
function withPath(around, path) {
  const layers = new Map(around.resources.map((each) => [each.resource_id, each.distance]));
  const markers = [];
  const near = path.slice(-PATH_SHOWN - 1);
  near.forEach((id, place) => layers.set(id, place - near.length + 1));
  besideItsNeighbour(around, layers, new Set(near));
  if (path.length > near.length) {
    layers.set(path[0], -near.length - 1);
    markers.push({ id: "the path between", layer: -near.length, marker: `… ${path.length - near.length - 1} more …`, kinds: [], about: "" });
  }
  return { layers, markers };
}

/** What was reached from a resource that the path has moved lies beside that one, not where it was. */
function besideItsNeighbour({ resources, edges }, layers, fixed) {
  const distance = new Map(resources.map((each) => [each.resource_id, each.distance]));
  for (const { resource_id: id, distance: steps } of resources) {
    if (fixed.has(id) || steps === 0) continue;
    const onwards = steps > 0;
    const found = edges.find((edge) => {
      const [own, other] = onwards ? [edge.target_resource_id, edge.source_resource_id] : [edge.source_resource_id, edge.target_resource_id];
      return own === id && distance.get(other) === steps + (onwards ? -1 : 1);
    });
    if (found) layers.set(id, onwards ? layers.get(found.source_resource_id) + 1 : layers.get(found.target_resource_id) - 1);
  }
}

function described(id, each, middle, { cycleOf, onPath, lost, explained }) {
  const kinds = [];
  const words = [];
  if (id === middle) kinds.push("middle");
  if (cycleOf.has(id)) {
    kinds.push("cycle");
    words.push("⟳ cycle");
  }
  if (onPath.has(id)) kinds.push("path");
  if (each?.reclaim) {
    kinds.push("reclaiming");
    words.push(`clean-up ${each.reclaim}`);
  } else if (each && each.state !== "live") words.push(each.state);
  if (explained.root?.resource_id === id) words.unshift(explained.root.kind === "lease" ? `lease: ${explained.root.client_id}` : `root: ${explained.root.kind}`);
  else if (each?.leases) words.push(plural(each.leases, "lease"));
  if (each?.pinned) words.push("pinned");
  if (lost.has(id)) {
    kinds.push("lost");
    words.unshift("✕ goes");
  }
  return { kinds, about: words.join(", ") || "live", before: each?.more_in ?? 0, after: each?.more_out ?? 0 };
}

function drawnEdges(pairs, path, layers, cycleOf, markers) {
  const steps = new Set(path.slice(1).map((id, place) => JSON.stringify([path[place], id])));
  const drawn = new Map(pairs.map((pair) => [JSON.stringify(pair), pair]));
  for (const step of steps) drawn.set(step, JSON.parse(step));
  const edges = [...drawn].filter(([, pair]) => pair.every((id) => layers.has(id))).map(([key, [source, target]]) => {
    const kinds = [];
    if (steps.has(key)) kinds.push("path");
    if (cycleOf.has(source) && cycleOf.get(source) === cycleOf.get(target)) kinds.push("cycle");
    return { source, target, kinds };
  });
  if (markers.length) {
    const after = path[path.length - PATH_SHOWN - 1];
    edges.push({ source: path[0], target: markers[0].id, kinds: ["path"] }, { source: markers[0].id, target: after, kinds: ["path"] });
  }
  return edges;
}
