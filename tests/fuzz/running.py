"""One decoder, so many bytes of damaged input: what became of them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.decoders import DECODERS, Decoder
from tests.fuzz.machines import Unchanged
from tests.fuzz.mutation import inputs


@dataclass
class Outcome:
    decoder: str
    seed: int
    bytes: int = 0
    inputs: int = 0
    taken: int = 0
    """Damaged, and good all the same."""
    refused: int = 0
    digests: int = 0
    """How often the state of a machine was compared; 0 for what reaches none."""
    slowest_ms: float = 0.0
    resident_before_kib: int = 0
    resident_peak_kib: int = 0
    """The most at any moment, as the kernel counted it: what is given back at once is in it too."""


class Broken(AssertionError):
    """An input that ended in anything but a plain refusal. It is in the text, to be fed again."""

    def __init__(self, told: str, outcome: Outcome) -> None:
        """`outcome`: as far as it came."""
        super().__init__(told)
        self.outcome = outcome


def fuzz(decoder: Decoder, size: int, seed: int = 1, progress: Callable[[Outcome], None] | None = None) -> Outcome:
    seeds, read = decoder.seeds(), decoder.reader()
    for raw in seeds:
        _feed(decoder, read, raw, Outcome(decoder.name, seed))
    outcome = Outcome(decoder.name, seed, resident_before_kib=_peak_from_now_kib())
    for raw in inputs(seeds, seed):
        _feed(decoder, read, raw, outcome)
        outcome.inputs += 1
        outcome.bytes += len(raw)
        if outcome.bytes >= size:
            break
        if progress is not None and outcome.inputs % 10_000 == 0:
            progress(outcome)
    outcome.resident_peak_kib = _peak_kib()
    unchanged: Unchanged | None = getattr(read, "unchanged", None)
    if unchanged is not None:
        try:
            unchanged.compare()
        except AssertionError as error:
            raise Broken(f"{decoder.name}: {error}, after all {outcome.inputs} inputs", outcome) from error
        outcome.digests = unchanged.digests
    return outcome


def row_of(name: str, size: int, seed: int) -> dict[str, Any]:
    """One row of the table; progress goes to standard error. One that broke has `broken`, and the same figures."""
    decoder = next(each for each in DECODERS if each.name == name)
    began = time.process_time()
    broken: dict[str, str] = {}
    try:
        outcome = fuzz(decoder, size, seed, _tell)
    except Broken as error:
        outcome, broken = error.outcome, {"broken": str(error)}
    return {**asdict(outcome), "cpu_s": round(time.process_time() - began, 1), **broken}


def _tell(outcome: Outcome) -> None:
    print(f"{outcome.decoder}: {outcome.bytes >> 20} MiB, {outcome.inputs} inputs", file=sys.stderr, flush=True)


def _feed(decoder: Decoder, read: Callable[[bytes], None], raw: bytes, outcome: Outcome) -> None:
    began = time.process_time()
    try:
        read(raw)
        outcome.taken += 1
    except decoder.refusals:
        outcome.refused += 1
    except BaseException as error:
        told = f"{decoder.name} ended with {type(error).__name__}: {error} on {raw[:4_000]!r}"
        raise Broken(told, outcome) from error
    outcome.slowest_ms = max(outcome.slowest_ms, round((time.process_time() - began) * 1000, 2))


def _peak_from_now_kib() -> int:
    """What there is now, from which the kernel counts the peak anew. Where it may not be asked to, the peak so far."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_kib()


def _peak_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM in /proc/self/status")
