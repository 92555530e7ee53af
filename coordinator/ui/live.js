// The life of a view: what it asks again and again, while it is shown and somebody looks.

import { connection } from "./api.js";
import { h, render } from "./dom.js";
import { feed } from "./feed.js";

export class Live {
  constructor() {
    this.controller = new AbortController();
    this.signal = this.controller.signal;
  }

  end() {
    this.controller.abort();
  }

  onTick(draw) {
    feed.addEventListener("tick", draw, { signal: this.signal });
    draw();
  }

  /**
   * What `draw(signal)` makes, in `place`: now, after `everyMs()` again and again (not without it), when the node is
   * back after it did not answer, and when again() is called.
   * What was shown before stays when an answer does not come, under the reason.
   */
  keep(place, draw, everyMs = () => 0) {
    let timer = null;
    let turn = 0;
    const trouble = h("p", { class: "refused", role: "status", hidden: true });
    const content = h("div", { class: "kept" });
    place.append(trouble, content);
    const again = async () => {
      clearTimeout(timer);
      const mine = (turn += 1);
      try {
        const made = await draw(this.signal);
        if (this.signal.aborted || mine !== turn) return;
        trouble.hidden = true;
        if (made !== undefined) render(content, made);
      } catch (error) {
        if (this.signal.aborted || mine !== turn) return;
        if (!error.outcome) console.error(error);
        render(trouble, error.message);
        trouble.hidden = false;
        if (error.status === 404) render(content);
      }
      if (everyMs() && !this.signal.aborted) timer = setTimeout(() => (document.hidden ? null : again()), everyMs());
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : again()), { signal: this.signal });
    connection.addEventListener("reachable", (event) => event.detail && again(), { signal: this.signal });
    this.signal.addEventListener("abort", () => clearTimeout(timer));
    again();
    return again;
  }
}
