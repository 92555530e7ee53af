"""Whether text can be read: the contrast of every visible text with what is behind it (WCAG 2, 1.4.3)."""

from __future__ import annotations

from typing import Any

from tests.ui.browser import Page

LEAST = 4.5

MEASURE = """
(() => {
  const channels = (text) => {
    const found = text.match(/rgba?\\(([^)]+)\\)/);
    if (!found) return null;
    const [r, g, b, a = 1] = found[1].split(/[ ,/]+/).map(Number);
    return { r, g, b, a };
  };
  const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ({ r, g, b }) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const over = (top, below) => ({
    r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a),
    b: top.b * top.a + below.b * (1 - top.a), a: 1,
  });
  const behind = (element) => {
    const node = element.closest("g.node");
    if (node) return channels(getComputedStyle(node.querySelector("rect")).fill);
    for (let each = element; each; each = each.parentElement) {
      const colour = channels(getComputedStyle(each).backgroundColor);
      if (colour && colour.a > 0) return colour.a === 1 ? colour : over(colour, behind(each.parentElement));
    }
    return { r: 255, g: 255, b: 255, a: 1 };
  };
  const found = [];
  let looked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    const text = walker.currentNode.data.trim();
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE", "title", "OPTION"].includes(element.tagName)) continue;
    if (!box.width || !box.height || style.visibility === "hidden" || box.right < 0) continue;
    const colour = channels(element instanceof SVGElement ? style.fill : style.color);
    const ground = behind(element);
    const [bright, dark] = [light(over(colour, ground)), light(ground)].sort((a, b) => b - a);
    looked += 1;
    const ratio = (bright + 0.05) / (dark + 0.05);
    const where = `${element.tagName} ${element.getAttribute("class") ?? ""}`;
    if (ratio < %s) found.push(`${ratio.toFixed(2)} ${text.slice(0, 40)} (${where})`);
  }
  return { looked, found };
})()
"""


def too_faint(page: Page) -> list[str]:
    """Texts below the least contrast, each with its ratio."""
    seen: dict[str, Any] = page.value(MEASURE % LEAST)
    assert seen["looked"] > 10, "the page has hardly any text"
    found: list[str] = seen["found"]
    return found
