"""`python -m tests.fuzz [--bytes 100M] [--decoder NAME] [--seed N] [--into FILE]`: a process a decoder, and a table.

With `--ports` the same bytes go to each operation and each port of a real cluster instead.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fuzz.decoders import DECODERS
from tests.fuzz.ports import fuzz_ports, to_standard_error
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
    parser.add_argument("--ports", action="store_true", help="to the ports of three real nodes")
    options = parser.parse_args()
    if options.ports:
        return _ports(options.bytes, options.seed, options.into)
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


def _ports(size: int, seed: int, into: Path | None) -> int:
    report = fuzz_ports(size, seed, to_standard_error)
    if into is not None:
        into.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: told for name, told in report.items() if name != "endpoints"}))
    return 0 if report["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
