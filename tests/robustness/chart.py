"""One run as a picture: operations a second, how long requests took, who led, and what was done to the cluster when."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tests.robustness.record import Happened, Record, quantile

COLORS = ("#2f6fde", "#e08a1e", "#2f9e5f", "#a24bb5", "#8a8f98")
"""Of the nodes."""
FAULT, LINE = "#c0463c", "#3d5a80"
LEFT, WIDTH, RIGHT, LANE, GAP, ROW = 190, 1_000, 30, 110, 34, 22
LEADER_HIGH, FAULT_HIGH = 18, 14
TICKS = 10
HEAD_HIGH = 140
"""Of a page, above the picture and below it."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_STYLE = (
    "body{font:14px sans-serif;margin:1.5em;color:#222;background:#fff}h1{font-size:20px}"
    "text{font:12px sans-serif;fill:#333}.g{stroke:#e3e3e3}.a{stroke:#999}"
    ".k{display:inline-block;width:12px;height:12px;margin:0 4px 0 14px;vertical-align:-1px}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}text{fill:#ddd}.g{stroke:#333}.a{stroke:#888}}"
)


def draw(path: Path, title: str, record: Record, faults: Sequence[Happened], nodes: Sequence[str]) -> None:
    seconds = max([*record.seconds, *record.leaders, 1]) + 1
    scale = WIDTH / seconds
    kinds = sorted({fault.kind for fault in faults})
    top = GAP + 2 * (LANE + GAP)
    bottom = top + ROW * (1 + len(kinds))
    parts = [
        *_axis(seconds, scale, bottom),
        *_lane("operations/s", _rates(record, seconds), 0, scale),
        *_lane("p99 of requests, ms", _slowest(record, seconds), 1, scale),
        *_leaders(record, nodes, top, scale),
        *_faults(faults, kinds, record.began_s, top + ROW, scale),
    ]
    size = f"width='{LEFT + WIDTH + RIGHT}' height='{bottom + 30}'"
    keys = [(name, COLORS[place % len(COLORS)]) for place, name in enumerate(nodes)]
    legend = "".join(f"<span class=k style='background:{color}'></span>{escape(name)}" for name, color in keys)
    path.write_text(
        f"<!doctype html><meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><p>Who leads:{legend}<span class=k style='border:1px solid #999'></span>nobody"
        f"<span class=k style='background:{FAULT}'></span>a fault, as long as it lasts</p>"
        f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{''.join(parts)}</svg>\n"
    )


def photograph(page: Path) -> Path | None:
    """A PNG beside it, if there is a browser to make it with."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return None
    picture = page.with_suffix(".png")
    drawn = re.search(r"<svg[^>]*height='(\d+)'", page.read_text())
    high = HEAD_HIGH + (int(drawn[1]) if drawn else 0)
    asked = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size=1280,{high}"]
    command = [browser, *asked, f"--screenshot={picture.absolute()}", page.absolute().as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return picture if done.returncode == 0 and picture.exists() else None


def _rates(record: Record, seconds: int) -> list[float]:
    found = (record.seconds.get(second) for second in range(seconds))
    return [0.0 if each is None else float(each.operations) for each in found]


def _slowest(record: Record, seconds: int) -> list[float]:
    found = (record.seconds.get(second) for second in range(seconds))
    return [0.0 if each is None else 1000 * quantile(each.took_s, 0.99) for each in found]


def _label(text: str, y: float) -> str:
    return f"<text x='{LEFT - 10}' y='{y:.1f}' text-anchor='end'>{escape(text)}</text>"


def _axis(seconds: int, scale: float, bottom: int) -> Iterator[str]:
    step = _round_step(seconds / TICKS)
    for mark in range(0, seconds + 1, step):
        x = LEFT + mark * scale
        told = f"{mark // 60}:{mark % 60:02d}"
        yield f"<line class=g x1='{x:.1f}' x2='{x:.1f}' y1='{GAP - 10}' y2='{bottom}'/>"
        yield f"<text x='{x:.1f}' y='{bottom + 18}' text-anchor='middle'>{told}</text>"
    yield _label("minutes:seconds", bottom + 18)


def _round_step(seconds: float) -> int:
    return next((step for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600) if step >= seconds), 1_200)


def _lane(name: str, values: Sequence[float], lane: int, scale: float) -> Iterator[str]:
    """A line with its own scale, marked at nought, half and all."""
    top, most = GAP + lane * (LANE + GAP), _round_up(max([*values, 1.0]))
    yield f"<text x='{LEFT}' y='{top - 8}' font-weight='bold'>{escape(name)}</text>"
    for part in (0.0, 0.5, 1.0):
        y = top + LANE * (1 - part)
        yield f"<line class='{'a' if part == 0 else 'g'}' x1='{LEFT}' x2='{LEFT + WIDTH}' y1='{y}' y2='{y}'/>"
        yield _label(f"{most * part:,.0f}", y + 4)
    places = " ".join(
        f"{LEFT + (second + 0.5) * scale:.1f},{top + LANE - value / most * LANE:.1f}"
        for second, value in enumerate(values)
    )
    yield f"<polyline points='{places}' fill='none' stroke='{LINE}' stroke-width='1.3'/>"


def _round_up(value: float) -> float:
    step = 10.0 ** (len(str(int(value))) - 1)
    return next(step * times for times in (1, 2, 3, 4, 5, 6, 8, 10) if step * times >= value)


def _leaders(record: Record, nodes: Sequence[str], top: int, scale: float) -> Iterator[str]:
    """Looked at about twice a second; what was seen holds until the next look."""
    yield _label("leader", top + 13)
    looks = sorted(record.leaders.items())
    ends = [second for second, _ in looks[1:]] + [second + 1 for second, _ in looks[-1:]]
    for (second, leader), end in zip(looks, ends, strict=True):
        if leader not in nodes:
            continue
        color = COLORS[nodes.index(leader) % len(COLORS)]
        yield (
            f"<rect x='{LEFT + second * scale:.1f}' y='{top}' width='{(end - second) * scale + 0.3:.1f}' "
            f"height='{LEADER_HIGH}' fill='{color}'><title>{second} s: {leader}</title></rect>"
        )


def _faults(faults: Sequence[Happened], kinds: Sequence[str], began_s: float, top: int, scale: float) -> Iterator[str]:
    for row, kind in enumerate(kinds):
        y = top + 4 + ROW * row
        own = [fault for fault in faults if fault.kind == kind]
        yield _label(f"{kind} ({len(own)})", y + 11)
        for fault in own:
            x, wide = (fault.began_s - began_s) * scale, max(1.5, (fault.ended_s - fault.began_s) * scale)
            told = f"{fault.kind} at {fault.target}{', the leader' if fault.at_leader else ''}"
            yield (
                f"<rect x='{LEFT + x:.1f}' y='{y}' width='{wide:.1f}' height='{FAULT_HIGH}' fill='{FAULT}'>"
                f"<title>{escape(told)}</title></rect>"
            )
