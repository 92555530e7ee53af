"""Levels: below a level exactly what the release before did, from it on the new rules, whoever applies the entries."""

from __future__ import annotations

import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack
import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import check_command, encode_command, result_parts
from coordinator.machine.invariants import check
from coordinator.machine.levels import LEVEL, OLDEST, TooNew
from coordinator.machine.machine import FormatError, Machine
from coordinator.machine.requests import Requests
from coordinator.machine.results import LevelRaised
from tests.machine.driver import Driver

DATA = Path(__file__).resolve().parents[1] / "data"
HISTORIES: dict[str, Any] = msgpack.unpackb(zlib.decompress((DATA / "level1.histories").read_bytes()))
"""Written by the release before levels; see tests/data/README.md."""
FORMAT_6 = (DATA / "format6.snapshot").read_bytes()
RAISE = c.RaiseLevel(LEVEL)


def frozen(machine: Machine) -> bytes:
    return b"".join(machine.freeze().chunks())


def restored(state: bytes, known_level: int = LEVEL) -> Machine:
    machine = Machine(known_level)
    machine.restore([state])
    check(machine.state)
    return machine


def header(state: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(state)
    found: list[Any] = next(unpacker)
    return found


def with_header(state: bytes, *kind: int) -> bytes:
    """The same state under another format and, in some, a level."""
    magic, _, *counters = header(state)
    return msgpack.packb([magic, *kind, *counters]) + state[len(msgpack.packb(header(state))) :]


# --- what the release before wrote ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("known_level", range(OLDEST, LEVEL + 1))
def test_an_old_log_gives_the_old_results_and_the_old_state(name: str, known_level: int) -> None:
    told = HISTORIES[name]
    machine, results = Machine(known_level), blake2b(digest_size=16)
    if told["memory"]:
        machine.state.requests = Requests(*told["memory"])
    expected = dict(told["digests"])
    assert len(told["entries"]) > 60 and len(expected) > 3
    for index, now_ms, commands in told["entries"]:
        for result in machine.apply(index, now_ms, commands):
            results.update(msgpack.packb(result_parts(result)))
        if index in expected:
            assert machine.digest() == expected[index], f"another state after entry {index}"
    assert results.digest() == told["results"], "another answer was given"
    assert blake2b(frozen(machine), digest_size=16).digest() == told["snapshot"], "other bytes were written"


def test_a_snapshot_of_format_6_is_read_and_written_as_it_was() -> None:
    machine = restored(FORMAT_6)
    assert machine.level == OLDEST and header(FORMAT_6)[1] == 6
    assert machine.digest() == HISTORIES["everything"]["digests"][-1][1]
    assert frozen(machine) == FORMAT_6, "a node of the release before must be able to install it"
    counts, copies = machine.counts(), machine.state.copies
    assert counts.active_leases > 40 and counts.locks > 4 and counts.waiters == 2 and counts.sessions == 2
    assert machine.graph_counts().edges > 3 and machine.state.tasks.live > 5 and machine.state.workers
    assert copies.tombstones and copies.holders and machine.state.access.tokens


def test_from_format_6_to_the_next_level_and_on() -> None:
    """A replica that never stopped, one restored before the rise and one after it go on alike."""
    straight, before = restored(FORMAT_6), restored(FORMAT_6)
    index, now_ms = straight.revision, straight.now_ms

    def apply(*machines: Machine) -> None:
        nonlocal index, now_ms
        index, now_ms = index + 1, now_ms + 700
        work = [c.AcquireLease(f"new/{index}", "ann", 5_000), c.ClaimReclaims("disk", "w9", 5, 1_000), c.Sweep(10)]
        entry = [encode_command(each) for each in work]
        assert len({str(machine.apply(index, now_ms, entry)) for machine in machines}) == 1
        assert len({machine.digest() for machine in machines}) == 1

    apply(straight, before)
    index += 1
    for machine in (straight, before := restored(frozen(before))):
        assert machine.apply(index, now_ms, [encode_command(RAISE)]) == [LevelRaised(LEVEL)]
    after = restored(frozen(straight))
    assert (after.level, header(frozen(straight))[1:3]) == (LEVEL, [7, LEVEL])
    for _ in range(60):
        apply(straight, before, after)
    assert frozen(straight) == frozen(before) == frozen(after)


# --- what this node does not know -----------------------------------------------------------------------------------


def raised() -> Machine:
    machine = restored(FORMAT_6)
    machine.apply(machine.revision + 1, machine.now_ms, [encode_command(RAISE)])
    return machine


def test_a_state_of_a_level_that_is_not_known_is_refused_and_says_what_to_do() -> None:
    older = restored(FORMAT_6, OLDEST)
    before = older.digest()
    with pytest.raises(TooNew, match=rf"of level {LEVEL}, and this node knows levels up to 1: start it with a release"):
        older.restore([frozen(raised())])
    assert older.digest() == before, "all or nothing"


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ((8, 3), TooNew, "format 8, and this node reads up to 7: start it with a newer release"),
        ((7, LEVEL + 1), TooNew, f"of level {LEVEL + 1}"),
        ((7, OLDEST), FormatError, "no level that its format could have"),
        ((7, 0), FormatError, "no level"),
        ((5,), FormatError, "restore it with the version that wrote it"),
    ],
)
def test_other_formats_are_refused(kind: tuple[int, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Machine().restore([with_header(FORMAT_6, *kind)])


def test_an_entry_that_raises_to_an_unknown_level_is_not_applied() -> None:
    machine = Machine(OLDEST)
    with pytest.raises(TooNew, match=f"start it with a release that knows level {LEVEL}"):
        machine.apply(1, 0, [encode_command(RAISE)])


def test_whoever_would_put_an_unknown_level_into_the_log_is_told() -> None:
    refused = check_command(c.RaiseLevel(LEVEL + 1))
    assert refused is not None and refused.code == "level_unknown"
    assert check_command(RAISE) is None
    malformed = check_command(c.RaiseLevel(0))
    assert malformed is not None and malformed.code == "malformed"


def test_a_level_is_raised_once_and_never_lowered() -> None:
    driver = Driver()
    assert driver.do(c.RaiseLevel(OLDEST)) == LevelRaised(OLDEST)
    before = driver.machine.digest()
    assert driver.do(RAISE) == LevelRaised(LEVEL)
    assert driver.machine.digest() != before, "two nodes that differ in it must be told apart"
    assert driver.do(RAISE) == LevelRaised(LEVEL)
    assert driver.code(c.RaiseLevel(OLDEST)) == "level_lower"
    assert driver.machine.level == LEVEL


def test_the_level_counts_from_the_command_after_it() -> None:
    driver = Driver()
    entry = [encode_command(each) for each in (c.RaiseLevel(OLDEST), RAISE, c.RaiseLevel(OLDEST))]
    assert [type(result) for result in driver.entry(*entry)] == [LevelRaised, LevelRaised, r.Denied]
