"""`python -m tests.fuzz [--bytes 100M] [--decoder NAME] [--seed N] [--into FILE]`: a process a decoder, and a table."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fuzz.decoders import DECODERS
from tests.fuzz.running import row_of

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=size_of, default=size_of("100M"))
    parser.add_argument("--decoder", action="append", choices=[each.name for each in DECODERS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--into", type=Path, help="keep the table there")
    options = parser.parse_args()
    table = []
    for name in options.decoder or [each.name for each in DECODERS]:
        # A process of its own: what it holds at most is this decoder's.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            row = pool.submit(row_of, name, options.bytes, options.seed).result()
        table.append(row)
        print(json.dumps(row), flush=True)
        if options.into is not None:
            options.into.write_text(json.dumps(table, indent=1) + "\n")
    return 1 if any("broken" in row for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
