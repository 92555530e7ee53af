// Lists that come in pages: the node looks at a bounded number of rows a time, so a page may be short and not the last.

import { connection, get } from "./api.js";
import { count, timeOfDay } from "./format.js";
import { h, render } from "./dom.js";

const PAGES_IN_A_ROW = 400;

/**
 * A list with "more": asks on by itself until a page's worth is found. `items` is the list's name in the answer,
 * `draw(items)` makes the table. What it gives back asks anew from the start.
 */
export function pagedList(place, signal, { path, query = {}, items, wanted = 50, draw }) {
  const found = [];
  const list = h("div", {});
  const foot = h("p", { class: "more", role: "status" });
  let stopped = false;
  place.append(list, foot);

  async function more(after) {
    stopped = false;
    const goal = found.length + wanted;
    for (let page = 0; page < PAGES_IN_A_ROW && !signal.aborted; page += 1) {
      if (page) render(foot, `Looking through the next rows (page ${count(page + 1)}), ${count(found.length)} found so far …`, stopButton());
      const answer = await get(path, { ...query, limit: Math.min(wanted, goal - found.length), after }, signal);
      found.push(...answer[items]);
      after = answer.next ?? null;
      if (after === null || found.length >= goal || stopped) break;
    }
    if (signal.aborted) return;
    render(list, draw(found));
    render(foot, after === null ? (found.length ? `${count(found.length)} in all, as of ${timeOfDay()}.` : "")
      : [`${count(found.length)} shown, as of ${timeOfDay()}.`, h("button", { type: "button", "data-key": "more", on: { click: () => go(after) } }, "Show more")]);
  }

  const stopButton = () => h("button", { type: "button", "data-key": "stop", on: { click: () => { stopped = true; } } }, "Stop");

  let failedAt;

  function go(after) {
    failedAt = undefined;
    more(after).catch((error) => {
      if (signal.aborted) return;
      failedAt = after;
      render(foot, h("span", { class: "refused" }, error.message),
        h("button", { type: "button", "data-key": "more", on: { click: () => go(after) } }, "Try again"));
    });
  }

  connection.addEventListener("reachable", (event) => {
    if (event.detail && failedAt !== undefined) go(failedAt);
  }, { signal });

  render(foot, "Asking …");
  go(null);
  return () => {
    found.length = 0;
    go(null);
  };
}
