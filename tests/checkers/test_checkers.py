"""Each checker is shown a run that breaks its invariant and one that does not."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from cluster.options import Timing
from cluster.proposer import PAYLOAD_KIND
from coordinator.machine import commands as c
from coordinator.machine.codec import encode_command
from coordinator.machine.machine import Machine
from tests.checkers.clock_bounds import ClockBounds
from tests.checkers.digest_equal import DigestEqual, RestoredCopy
from tests.checkers.durable import Durable
from tests.checkers.log_matching import LogMatching
from tests.checkers.one_leader_per_term import OneLeaderPerTerm
from tests.checkers.one_valid_lease import OneValidLease
from tests.checkers.violation import Violation
from tests.reference.register import RegisterMachine, command


@dataclass
class FakeLog:
    entries: list[tuple[bytes, int, int]] = field(default_factory=list)

    def __getitem__(self, item: slice) -> list[tuple[bytes, int, int]]:
        return self.entries[item]

    @property
    def first_index(self) -> int:
        return self.entries[0][1] if self.entries else 0

    @property
    def last_index(self) -> int:
        return self.entries[-1][1] if self.entries else 0

    def term_at(self, index: int) -> int | None:
        return next((term for _, found, term in self.entries if found == index), None)


def node(name: str, term: int, *, lease: bool = True, clock_ms: int = 0, log: FakeLog | None = None) -> Any:
    return SimpleNamespace(
        options=SimpleNamespace(node_id=name),
        engine=SimpleNamespace(term=term, is_leader=True),
        leadership=SimpleNamespace(lease_valid=lambda: lease),
        cluster_clock=SimpleNamespace(_known_ms=clock_ms),
        journal=log or FakeLog(),
    )


def test_two_leaders_in_one_term() -> None:
    checker = OneLeaderPerTerm(LogMatching())
    checker.check([node("n1", 1), node("n2", 2)])
    checker.check([node("n1", 1)])
    with pytest.raises(Violation, match="n1 and n3 both lead in term 1"):
        checker.check([node("n3", 1)])


def test_a_leader_without_a_committed_entry() -> None:
    log = LogMatching()
    log.applied("n1", 2, 1, b"a")
    OneLeaderPerTerm(log).check([node("n1", 2, log=FakeLog([(b"x", 1, 0), (b"a", 2, 1)]))])
    with pytest.raises(Violation, match="leader_completeness"):
        OneLeaderPerTerm(log).check([node("n2", 3, log=FakeLog([(b"x", 1, 0)]))])
    with pytest.raises(Violation, match="leader_completeness"):
        OneLeaderPerTerm(log).check([node("n2", 3, log=FakeLog([(b"x", 1, 0), (b"b", 2, 2)]))])


def test_two_valid_leases() -> None:
    checker = OneValidLease()
    checker.check([node("n1", 1, lease=False), node("n2", 2)])
    with pytest.raises(Violation, match="n1 in term 1, n2 in term 2"):
        checker.check([node("n1", 1), node("n2", 2)])


def test_two_entries_at_one_index() -> None:
    log = LogMatching()
    log.applied("n1", 2, 1, b"a")
    log.applied("n2", 2, 1, b"a")
    with pytest.raises(Violation, match="log_matching"):
        log.applied("n3", 2, 2, b"a")


@pytest.mark.parametrize("other", [[(b"a", 1, 1), (b"z", 2, 1)], [(b"y", 1, 2), (b"b", 2, 1)]])
def test_one_index_and_term_with_another_content_or_prefix(other: list[tuple[bytes, int, int]]) -> None:
    log = LogMatching()
    log.check_log("n1", FakeLog([(b"a", 1, 1), (b"b", 2, 1), (b"c", 3, 2)]))
    log.check_log("n2", FakeLog([(b"b", 2, 1), (b"d", 3, 3)]))
    with pytest.raises(Violation, match="log_matching"):
        log.check_log("n3", FakeLog(other))


def test_a_committed_entry_that_nobody_applied() -> None:
    log = LogMatching()
    log.applied("n1", 2, 1, b"a")
    log.applied("n1", 4, 1, b"c")
    with pytest.raises(Violation, match="entry 3 was never applied"):
        list(log.payloads())


def test_diverged_states() -> None:
    checker = DigestEqual()
    checker.check("n1", 2, b"one")
    checker.check("n1", 2, b"one")
    checker.check("n2", 3, b"other")
    with pytest.raises(Violation, match="digest_equal"):
        checker.check("n2", 2, b"other")


def test_a_copy_that_does_not_know_what_the_node_knows() -> None:
    """What decides something and is in no snapshot: here, when somebody's time to wait is over."""
    machine, checker = Machine(), RestoredCopy(random.Random(1))

    def apply(now_ms: int, *commands: c.Command) -> None:
        raw = [encode_command(each, request_id=each.client_id.encode()) for each in commands]  # type: ignore[attr-defined]
        machine.apply(machine.revision + 1, now_ms, raw)
        checker.follow(machine, machine.revision, now_ms, raw)

    apply(0, c.AcquireLock("k", "a", 60_000), c.AcquireLock("k", "b", 60_000, 500))
    for now_ms in range(0, 400, 50):
        apply(now_ms)
    assert checker.restored > 0
    machine.state.agenda.clear()
    with pytest.raises(Violation, match="a restored copy"):
        for now_ms in range(400, 20_000, 50):
            apply(now_ms)


def batch(*commands: bytes) -> bytes:
    return PAYLOAD_KIND + msgpack.packb([0, list(commands)])


def test_writes_that_are_lost_doubled_or_not_what_was_told() -> None:
    first, second = command("put", "k", 1), command("put", "k", 2)
    durable = Durable()
    durable.acknowledge(first, 2)
    durable.deny(second)
    durable.check_log([(2, batch(first))])
    for log, told in [
        ([], "acknowledged at 2 and is at nowhere"),
        ([(3, batch(first))], "acknowledged at 2 and is at 3"),
        ([(2, batch(first)), (3, batch(first))], "in the log 2 times"),
        ([(2, batch(first, second))], "was denied and is in the log at 2"),
    ]:
        with pytest.raises(Violation, match=told):
            durable.check_log(log)


def test_a_state_that_is_not_what_the_log_gives() -> None:
    machine = RegisterMachine()
    machine.apply(2, 0, [command("put", "k", 1)])
    Durable.check_state("n1", machine, [(2, batch(command("put", "k", 1)))])
    with pytest.raises(Violation, match="differs from the log at 3"):
        Durable.check_state("n1", machine, [(2, batch(command("put", "k", 1))), (3, batch(command("put", "k", 2)))])


def sampled(*samples: tuple[float, bool, int]) -> ClockBounds:
    """A checker that saw (time, is there a lease, the cluster clock) one after the other."""
    checker = ClockBounds(Timing())
    for now, lease, clock_ms in samples:
        checker.sample(now, [node("n1", 1, lease=lease, clock_ms=clock_ms)])
    return checker


def test_the_clock_may_run_with_the_lease_and_stand_without() -> None:
    steps = [(second / 10, not 20 <= second < 80, 0) for second in range(100)]
    running = 0
    samples = []
    for now, lease, _ in steps:
        running += 100 if lease else 0
        samples.append((now, lease, running))
    assert sampled(*samples).outages == 1


def test_the_clock_runs_too_fast_or_through_an_outage() -> None:
    with pytest.raises(Violation, match="clock_bounds"):
        sampled(*((second / 10, True, second * 120) for second in range(100)))
    with pytest.raises(Violation, match="clock_bounds"):
        sampled(*((second / 10, second < 20, second * 100) for second in range(100)))


def test_the_clock_leaps_between_two_entries() -> None:
    checker = ClockBounds(Timing())
    checker.stamped(1, 1000, 5.0)
    checker.stamped(1, 1000, 5.2)
    checker.entered(2, 1, 1000)
    checker.stamped(2, 1200, 5.2)
    checker.entered(3, 2, 1200)
    checker.entered(3, 2, 1200)
    checker.stamped(3, 1650, 5.3)
    with pytest.raises(Violation, match=r"entry 4 of term 3 is stamped 450 ms after entry 3, and 101\.0 ms"):
        checker.entered(4, 3, 1650)


def test_the_clock_goes_back() -> None:
    checker = ClockBounds(Timing())
    checker.applied("n1", 1, 500)
    checker.applied("n1", 2, 400)
    with pytest.raises(Violation, match="went back from 400 to 399"):
        checker.applied("n1", 2, 399)
