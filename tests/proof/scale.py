"""`python -m tests.proof.scale`: a great deal at once, on three real nodes: waiters, expiries, load, large entries.

Each part says what it set out to reach and whether it did; of one that broke, it is said why, and the others have their
figures. Times are only compared with times of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from bench.holdfast import ROOT, Holdfast, holdfast
from tests.proof.scale_crowds import expiries, waiters
from tests.proof.scale_loads import entries, overload

Part = Callable[[Holdfast], Coroutine[Any, Any, dict[str, Any]]]
PARTS: dict[str, Part] = {"waiters": waiters, "expiries": expiries, "overload": overload, "entries": entries}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.scale", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="only these")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    figures = {name: tried(PARTS[name]) for name in options.parts}
    for name, told in figures.items():
        print(f"{name}: {json.dumps(told)}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(told["reached"] for told in figures.values()) else 1


def tried(part: Part) -> dict[str, Any]:
    began = time.monotonic()
    try:
        return measured(part)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is what came of this part)
        traceback.print_exc()
        seconds, why = round(time.monotonic() - began, 1), f"{type(error).__name__}: {error}"
        return {"goal": "to come to its end", "reached": False, "seconds": seconds, "why": why}


def measured(part: Part) -> dict[str, Any]:
    """In a cluster of its own: what one part leaves behind is nothing to the next."""
    began, load = time.monotonic(), os.getloadavg()[0]
    # Not in /tmp, which may be in memory: what is journaled must reach a disk.
    place = tempfile.TemporaryDirectory(dir=ROOT, prefix=".scale-", suffix=".tmp")
    with place as directory, holdfast(Path(directory)) as nodes:
        told = asyncio.run(part(nodes))
    # What else the machine did: times, and so their ratios, say little beside others.
    return {**told, "seconds": round(time.monotonic() - began, 1), "load_before": round(load, 1)}


if __name__ == "__main__":
    sys.exit(main())
