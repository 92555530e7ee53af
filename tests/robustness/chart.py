"""One run as a picture: operations a second, how long they took, who led, and what was done to the cluster when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from tests.robustness.faults import Happened

COLORS = ("#2f6fde", "#e08a1e", "#4a9d5b", "#a24bb5", "#c0463c", "#777777")
LEFT, WIDTH, LANE, GAP = 150, 1_000, 90, 26
_STYLE = (
    "body{font:14px sans-serif;margin:2em;color:#222;background:#fff}text{font:12px sans-serif;fill:#333}"
    ".g{stroke:#ccc}@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}text{fill:#ddd}.g{stroke:#555}}"
)


@dataclass
class Record:
    """What happened in each second of the run."""

    began_s: float
    operations: dict[int, list[float]] = field(default_factory=dict)
    """By second: how long each operation took that ended in it, in seconds."""
    leaders: dict[int, str | None] = field(default_factory=dict)

    def told(self, called_s: float, returned_s: float) -> None:
        self.operations.setdefault(int(returned_s - self.began_s), []).append(returned_s - called_s)


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def draw(path: Path, title: str, record: Record, faults: Sequence[Happened], nodes: Sequence[str]) -> None:
    seconds = max([*record.operations, *record.leaders, 1]) + 1
    scale = WIDTH / seconds
    rates = [float(len(record.operations.get(second, ()))) for second in range(seconds)]
    slow = [1000 * quantile(record.operations.get(second, ()), 0.99) for second in range(seconds)]
    parts = [*_line("operations/s", rates, 0, scale), *_line("p99, ms", slow, 1, scale)]
    top = 2 * (LANE + GAP)
    parts.append(f"<text x='{LEFT - 8}' y='{top + 14}' text-anchor='end'>leader</text>")
    for second, leader in record.leaders.items():
        color = COLORS[nodes.index(leader) % len(COLORS)] if leader in nodes else "none"
        x = LEFT + second * scale
        parts.append(
            f"<rect x='{x:.1f}' y='{top}' width='{scale + 0.5:.1f}' height='18' fill='{color}'>"
            f"<title>{second} s: {leader}</title></rect>"
        )
    kinds = sorted({fault.kind for fault in faults})
    for row, kind in enumerate(kinds, start=1):
        y = top + 10 + 22 * row
        parts.append(f"<text x='{LEFT - 8}' y='{y + 12}' text-anchor='end'>{escape(kind)}</text>")
        for fault in faults:
            if fault.kind == kind:
                x, wide = (fault.began_s - record.began_s) * scale, max(2.0, (fault.ended_s - fault.began_s) * scale)
                parts.append(
                    f"<rect x='{LEFT + x:.1f}' y='{y}' width='{wide:.1f}' height='14' fill='{COLORS[4]}'>"
                    f"<title>{escape(fault.kind)} at {fault.target}</title></rect>"
                )
    height = top + 60 + 22 * len(kinds)
    parts += [
        f"<text x='{LEFT + mark * scale:.1f}' y='{height - 6}' text-anchor='middle'>{mark} s</text>"
        for mark in range(0, seconds + 1, max(1, seconds // 10))
    ]
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{LEFT + WIDTH + 30}' height='{height}'>{''.join(parts)}</svg>"
    )
    legend = " ".join(f"<b style='color:{COLORS[place % len(COLORS)]}'>{name}</b>" for place, name in enumerate(nodes))
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><p>leader: {legend}</p>{svg}\n"
    )


def _line(name: str, values: Sequence[float], lane: int, scale: float) -> list[str]:
    top, most = lane * (LANE + GAP), max([*values, 1.0])
    places = " ".join(
        f"{LEFT + second * scale:.1f},{top + LANE - value / most * LANE:.1f}" for second, value in enumerate(values)
    )
    return [
        f"<line class='g' x1='{LEFT}' x2='{LEFT + WIDTH}' y1='{top + LANE}' y2='{top + LANE}'/>",
        f"<text x='{LEFT - 8}' y='{top + 14}' text-anchor='end'>{escape(name)}</text>",
        f"<text x='{LEFT - 8}' y='{top + 30}' text-anchor='end'>up to {most:,.0f}</text>",
        f"<polyline points='{places}' fill='none' stroke='{COLORS[lane]}' stroke-width='1.5'/>",
    ]
