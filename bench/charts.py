"""Charts of results as plain SVG: grouped bars on a logarithmic axis, readable in light and dark."""

from __future__ import annotations

import math
from pathlib import Path
from xml.sax.saxutils import escape

_COLORS = ("#2f6fde", "#e08a1e", "#4a9d5b", "#a24bb5", "#c0463c")
LETTER = 7
"""Pixels of one, about."""
_BOLD = 9
"""Of one in a title."""
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.t{font-size:15px;font-weight:bold}.g{stroke:#ccc}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#555}}"
)


def grouped_bars(path: Path, title: str, unit: str, groups: list[str], series: dict[str, list[float]]) -> None:
    """One group of bars a label, one bar a series. Of a value that is not positive only the figure is shown."""
    values = [value for row in series.values() for value in row if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.05))
    high = max(high, low + 1)
    # So wide that neither labels nor names run into each other.
    step = max(84, LETTER * max(len(line) for group in groups for line in group.split("\n")) + 10)
    legend = max(110, LETTER * max(map(len, series)) + 30)
    left, height, top, bottom = 60, 320, 50, 74
    width = left + 20 + max(step * len(groups), legend * len(series), _BOLD * len(title) + LETTER * len(unit))
    scale = (height - top - bottom) / (high - low)

    def y_of(value: float) -> float:
        return height - bottom - (math.log10(value) - low) * scale

    parts = [f"<text class='t' x='{left}' y='20'>{escape(title)}</text>"]
    for power in range(low, high + 1):
        y = y_of(10.0**power)
        parts.append(f"<line class='g' x1='{left}' x2='{width - 10}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end'>{10.0**power:g}</text>")
    parts.append(f"<text x='{width - 10}' y='20' text-anchor='end'>{escape(unit)}</text>")
    bar = (step - 24) / len(series)
    for number, (name, row) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        parts.append(f"<rect x='{left + legend * number}' y='{top - 24}' width='10' height='10' fill='{color}'/>")
        parts.append(f"<text x='{left + legend * number + 14}' y='{top - 15}'>{escape(name)}</text>")
        for position, value in enumerate(row):
            x, y = left + 12 + step * position + bar * number, y_of(value) if value > 0 else height - bottom
            tall = height - bottom - y
            parts.append(
                f"<rect x='{x:.1f}' y='{y:.1f}' width='{bar - 3:.1f}' height='{tall:.1f}' fill='{color}'>"
                f"<title>{escape(name)}: {value:g}</title></rect>"
            )
            label = f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
            parts.append(
                f"<text x='{x + bar / 2:.1f}' y='{y - 3:.1f}' text-anchor='middle' style='font-size:9px'>{label}</text>"
            )
    for position, group in enumerate(groups):
        for line, text in enumerate(group.split("\n")):
            x = left + step / 2 + step * position
            parts.append(
                f"<text x='{x}' y='{height - bottom + 16 + 14 * line}' text-anchor='middle'>{escape(text)}</text>"
            )
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'><style>{_STYLE}</style>"
    path.write_text(svg + "".join(parts) + "</svg>\n")
