// Which of the drawn resources are on a cycle: Tarjan's strongly connected components, without recursion.

/** The shortest way round from a member of such a set back to itself, that member first. */
export function ring(start, members, edges) {
  const within = new Set(members);
  const before = new Map();
  const rim = [start];
  while (rim.length) {
    const id = rim.shift();
    for (const [source, target] of edges) {
      if (source !== id || !within.has(target)) continue;
      if (target === start) return way(id, before, start);
      if (!before.has(target)) {
        before.set(target, id);
        rim.push(target);
      }
    }
  }
  return [start];
}

function way(last, before, start) {
  const back = [last];
  while (back.at(-1) !== start) back.push(before.get(back.at(-1)));
  return back.reverse();
}

/** Sets of ids that lead to each other; `edges` are [source, target]. A resource that refers to itself is one. */
export function cycles(ids, edges) {
  const onwards = new Map(ids.map((id) => [id, []]));
  for (const [source, target] of edges) if (onwards.has(source) && onwards.has(target)) onwards.get(source).push(target);
  const found = [];
  const number = new Map();
  const low = new Map();
  const stack = [];
  const stacked = new Set();
  for (const id of ids) if (!number.has(id)) visit(id);
  return found;

  function visit(start) {
    const work = [[start, 0]];
    while (work.length) {
      const frame = work.at(-1);
      const [id, place] = frame;
      if (place === 0) {
        number.set(id, number.size);
        low.set(id, number.get(id));
        stack.push(id);
        stacked.add(id);
      }
      const targets = onwards.get(id);
      if (place < targets.length) {
        frame[1] += 1;
        const target = targets[place];
        if (!number.has(target)) work.push([target, 0]);
        else if (stacked.has(target)) low.set(id, Math.min(low.get(id), number.get(target)));
        continue;
      }
      work.pop();
      const parent = work.at(-1)?.[0];
      if (parent !== undefined) low.set(parent, Math.min(low.get(parent), low.get(id)));
      if (low.get(id) === number.get(id)) close(id, targets);
    }
  }

  function close(id, targets) {
    const set = [];
    let member;
    do {
      member = stack.pop();
      stacked.delete(member);
      set.push(member);
    } while (member !== id);
    if (set.length > 1 || targets.includes(id)) found.push(set.reverse());
  }
}
