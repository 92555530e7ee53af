"""How answers look: tables and lines for a person, JSON for a program, a bar while something takes long."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

BAR_WIDTH = 30
DRAWN_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Shown:
    """One answer, both ways. `code`: what the program ends with."""

    document: Any
    text: str
    code: int = 0

    def print(self, options: argparse.Namespace) -> int:
        print(json.dumps(self.document, ensure_ascii=False) if options.json else self.text, flush=True)
        return self.code


def complain(
    options: argparse.Namespace,
    message: str,
    exit_code: int,
    *,
    code: str = "",
    outcome: str = "denied",
    hint: str = "",
) -> int:
    """A mistake on standard error; the exit code."""
    if options.json:
        error = {"code": code or "failed", "message": message, "outcome": outcome, "hint": hint}
        print(json.dumps({"error": error}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"holdfast: {message}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)
    return exit_code


# --- text -------------------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "none") -> str:
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return empty
    cells.insert(0, [column.upper() for column in columns])
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def fields(pairs: Iterable[tuple[str, Any]]) -> str:
    """One thing, a line for each of its properties that there is."""
    known = [(name, _cell(value)) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in known)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    # A name may hold anything; a line break or an escape sequence in it must not draw on the terminal.
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(value))


def plain(text: str) -> str:
    """A name as it may be printed inside a line."""
    return _cell(text)


def lasting(ms: int | None) -> str | None:
    """A length of time as a person says it."""
    if ms is None:
        return None
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


# --- progress ---------------------------------------------------------------------------------------------------------


class _Drawn:
    """One line on standard error that is drawn over and over, and only when a person looks at it."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _draw(self, text: str) -> None:
        line = f"{self._what} {text}"[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


class Bar(_Drawn):
    """How much of a whole is done."""

    def at(self, part: float, note: str = "") -> None:
        if self._shown:
            done = max(0.0, min(1.0, part))
            full = round(done * BAR_WIDTH)
            self._draw(f"[{'#' * full}{'.' * (BAR_WIDTH - full)}] {100 * done:3.0f} % {note}")


class Amount(_Drawn):
    """How much has come, and how fast, of what nobody knows the size of."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(what)
        self._clock = clock
        self._began, self._next = clock(), 0.0

    def at(self, size_bytes: int) -> None:
        now = self._clock()
        if self._shown and now >= self._next:
            self._next = now + DRAWN_EVERY_S
            lasted_s = now - self._began
            rate = f", {size_text(round(size_bytes / lasted_s))} a second" if lasted_s >= DRAWN_EVERY_S else ""
            self._draw(size_text(size_bytes) + rate)


def size_text(size_bytes: int) -> str:
    return f"{size_bytes:,} bytes" if size_bytes < 1 << 20 else f"{size_bytes / (1 << 20):,.1f} MiB"
