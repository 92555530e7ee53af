"""What clients write down while they work: a line a happening, written at once, so that a kill loses none.

Times are of `coordinator.client.clock`, which all processes of a host share: what one was promised can be held against
what another saw.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coordinator.client import clock

Record = dict[str, Any]
"""`at`, `who`, `what`, and what belongs to that."""


class Recorder:
    def __init__(self, directory: Path, who: str) -> None:
        self._file = (directory / f"{who}.jsonl").open("a", buffering=1)
        self._who = who

    def note(self, what: str, **more: Any) -> None:
        self._file.write(json.dumps({"at": clock.now(), "who": self._who, "what": what, **more}) + "\n")

    def close(self) -> None:
        self._file.close()


def read(directory: Path) -> list[Record]:
    """All of all clients, in the order of time."""
    found = [record for path in directory.glob("*.jsonl") for record in read_one(directory, path.stem)]
    return sorted(found, key=lambda record: float(record["at"]))


def read_one(directory: Path, who: str) -> list[Record]:
    """A line that a kill cut short, or that is being written, is none."""
    path = directory / f"{who}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def of(records: Iterable[Record], *kinds: str) -> list[Record]:
    return [record for record in records if record["what"] in kinds]
