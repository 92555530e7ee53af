"""Tables of the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    columns = list(head)
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield ""


def yes(true: bool) -> str:
    return "yes" if true else "**no**"


def in_one_line(text: str, most: int = 1_000) -> str:
    """What a program said, so that it does not end the paragraph or the code that it is in."""
    told = " ".join(text.split()).replace("`", "'")
    return told if len(told) <= most else f"{told[:most]}…"
