"""The door: one result a command, batches, namespaces and quotas, events with revisions, freezing and restoring."""

from __future__ import annotations

import random

import msgpack
import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.events import Compacted, Event, EventRing
from coordinator.machine.faults import InvariantBroken
from coordinator.machine.invariants import check
from coordinator.machine.leaserows import BOUNDED
from coordinator.machine.machine import FormatError, Machine
from tests.machine.drawing import draw_command
from tests.machine.driver import Driver
from tests.machine.twin import Twin


@pytest.fixture
def driver() -> Driver:
    return Driver()


def busy_machine(seed: int = 3, steps: int = 150) -> Machine:
    chance, twin = random.Random(seed), Twin()
    for _ in range(steps):
        twin.do(draw_command(twin, chance.choice), chance.randbytes(4))
    return twin.machine


def test_one_result_a_command_in_order(driver: Driver) -> None:
    results = driver.entry(
        encode_command(c.AcquireLease("r", "a", 100)), b"nonsense", encode_command(c.ReleaseLease("r", "a"))
    )
    assert [type(result) for result in results] == [r.LeaseGranted, r.Denied, r.LeaseReleased]


def test_the_clock_never_goes_back() -> None:
    machine = Machine()
    machine.apply(1, 10, [])
    machine.apply(2, 5, [])
    assert (machine.now_ms, machine.revision) == (10, 2)


# --- namespaces ---------------------------------------------------------------------------------------------------


def test_an_unknown_namespace_is_refused(driver: Driver) -> None:
    before = driver.machine.digest()
    denied = driver.do(c.AcquireLease("r", "a", 100), namespace="nowhere")
    assert denied.code == "unknown_namespace"
    assert driver.machine.digest() == before


@pytest.mark.parametrize(
    ("quota", "commands"),
    [
        ("leases", [c.AcquireLease("r1", "a", 9), c.AcquireLease("r2", "a", 9), c.AcquireLease("r3", "a", 9)]),
        ("leases", [c.AcquireLeases(("r1", "r2", "r3"), "a", 9)]),
        ("locks", [c.AcquireLock("k1", "a", 9), c.AcquireLock("k2", "a", 9), c.AcquireLock("k3", "a", 9)]),
        ("locks", [c.AcquireLocks(("k1", "k2", "k3"), "a", 9)]),
        ("waiters", [c.AcquireLock("k1", client, 9, 9) for client in "abcd"]),
        ("sessions", [c.CreateSession(client, 9) for client in "abc"]),
        ("name_bytes", [c.AcquireLease("r" * 30, "a", 9), c.AcquireLease("s" * 30, "a", 9)]),
    ],
)
def test_quotas_are_enforced_with_a_typed_denial(driver: Driver, quota: str, commands: list[c.Command]) -> None:
    driver.do(c.PutNamespace(2, 2, 2, 2, 40), namespace="small")
    results = [driver.do(command, namespace="small") for command in commands]
    assert not any(isinstance(result, r.Denied) for result in results[:-1])
    last = results[-1]
    assert isinstance(last, r.Denied) and last.code == "quota_exceeded" and last.details["quota"] == quota


def test_what_is_held_already_needs_no_quota(driver: Driver) -> None:
    driver.do(c.PutNamespace(1, 1, 1, 1, 40), namespace="small")
    for _ in range(3):
        assert isinstance(driver.do(c.AcquireLease("r", "a", 9), namespace="small"), r.LeaseGranted)
        assert isinstance(driver.do(c.AcquireLock("k", "a", 9), namespace="small"), r.LockGranted)


def test_only_an_empty_namespace_can_be_deleted(driver: Driver) -> None:
    driver.do(c.PutNamespace(9, 9, 9, 9, 99), namespace="n")
    driver.do(c.AcquireLease("r", "a", 10_000), namespace="n", request_id=b"id")
    assert driver.do(c.DeleteNamespace(), namespace="n").code == "namespace_in_use"
    assert driver.do(c.DeleteNamespace()).code == "namespace_in_use"
    driver.do(c.ReleaseLease("r", "a"), namespace="n")
    assert driver.do(c.DeleteNamespace(), namespace="n", request_id=b"id2") == r.NamespaceChanged()
    assert driver.kinds() == ["namespace_deleted"]
    assert driver.machine.counts().remembered_requests == 0
    assert driver.do(c.DeleteNamespace(), namespace="n").code == "unknown_namespace"


# --- events -------------------------------------------------------------------------------------------------------


def test_events_carry_the_entrys_revision_and_come_in_order(driver: Driver) -> None:
    driver.lease()
    driver.lock()
    driver.lock(client="b")
    driver.do(c.ReleaseLease("r", "a"))
    events = driver.events(since=0)
    assert [(event.revision, event.kind) for event in events] == [
        (1, "lease_acquired"), (2, "lock_granted"), (4, "lease_released"),
    ]  # fmt: skip
    assert driver.events(since=2) == events[2:]


def test_a_ring_says_what_it_has_dropped() -> None:
    ring = EventRing(max_events=4)
    for revision in range(1, 5):
        ring.add(revision, (Event(revision, "lease_acquired", "n", "k", "o"),) * 2)
    assert ring.since(1) == Compacted(3)
    assert isinstance(kept := ring.since(2), list) and [event.revision for event in kept] == [3, 3, 4, 4]
    assert ring.since(4) == []


def test_a_restored_machine_has_no_older_events() -> None:
    machine, other = busy_machine(), Machine()
    other.restore(machine.freeze().chunks())
    assert other.events_since(machine.revision) == []
    assert other.events_since(machine.revision - 1) == Compacted(machine.revision + 1)


# --- freezing and restoring -----------------------------------------------------------------------------------------


def test_a_frozen_state_is_read_once() -> None:
    frozen = busy_machine().freeze()
    list(frozen.chunks())
    with pytest.raises(InvariantBroken):
        list(frozen.chunks())


@pytest.mark.parametrize("cut", [1, 7, 1000, 1 << 20])
def test_a_restore_does_not_depend_on_how_the_bytes_are_cut(cut: int) -> None:
    machine, other = busy_machine(), Machine()
    whole = b"".join(machine.freeze().chunks())
    other.restore(whole[at : at + cut] for at in range(0, len(whole), cut))
    assert other.digest() == machine.digest()
    check(other.state)


def test_a_state_of_another_format_is_refused() -> None:
    """A later one is told apart (`test_levels`): not damaged, but for a newer release."""
    magic = "holdfast-machine"
    for header in ([1, 1, 1, 1], [magic, 5, 0, 0], [magic, 7], [magic, True], [magic], [magic, "6"], [], "text", 5):
        with pytest.raises(FormatError):
            Machine().restore([msgpack.packb(header)])


def test_a_damaged_state_is_refused_and_the_old_one_stays() -> None:
    machine, other = busy_machine(), busy_machine(9)
    whole = b"".join(machine.freeze().chunks())
    before = other.digest()
    for size in range(0, len(whole) - 1, max(1, len(whole) // 60)):
        with pytest.raises(FormatError):
            other.restore([whole[:size]])
    assert other.digest() == before


def test_a_frozen_state_is_read_while_the_machine_moves_on() -> None:
    """In pieces, with entries between them: rows change before and behind the reader."""
    chance, twin = random.Random(4), Twin()
    names = tuple(f"r{number}" for number in range(20_000))
    for first in range(0, len(names), 5_000):
        twin.machine.apply(first + 1, 0, [encode_command(c.AcquireLeases(names[first : first + 5_000], "a", 1_000))])
    at_once = b"".join(twin.machine.freeze().chunks())
    reading, index, now_ms = twin.machine.freeze().chunks(), 20_000, 0
    read = b""
    for chunk in reading:
        read += chunk
        index, now_ms = index + 1, now_ms + 60
        chosen = chance.sample(names, 20)
        commands = [encode_command(c.ReleaseLease(name, "a")) for name in chosen[:10]]
        commands.append(encode_command(c.AcquireLeases(tuple(chosen[10:]), "b", 1_000)))
        twin.machine.apply(index, now_ms, commands)
    assert read == at_once
    check(twin.machine.state)


def test_a_frozen_state_keeps_its_names_when_they_are_moved_together(driver: Driver) -> None:
    names = tuple(f"{number:0200d}" for number in range(300))
    driver.do(c.AcquireLeases(names, "a", 60_000))
    at_once, frozen = b"".join(driver.machine.freeze().chunks()), driver.machine.freeze()
    digest, before = driver.machine.digest(), set(driver.machine.state.names.arena.segments)
    for name in names[:250]:
        driver.machine.apply(driver.index, 0, [encode_command(c.ReleaseLease(name, "a"))])
    assert not before & set(driver.machine.state.names.arena.segments), "the names were moved"
    check(driver.machine.state)
    assert b"".join(frozen.chunks()) == at_once
    other = Machine()
    other.restore([at_once])
    assert other.digest() == digest


# --- the invariants themselves --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s.leases.token.__setitem__(slot_of(s), s.last_token + 1),
        lambda s: s.names.count(s.leases.resource[slot_of(s)], 1),
        lambda s: s.names.refer(s.leases.owner[slot_of(s)]),
        lambda s: s.leases.timer.__setitem__(slot_of(s), 0),
        lambda s: s.pairs.remove(s.pair_of(1), 1),
        lambda s: s.pairs.insert(s.pair_of(slot_of(s)), slot_of(s)),
        lambda s: s.names.next.__setitem__(s.leases.resource[slot_of(s)], 0),
        lambda s: setattr(s, "active_leases", s.active_leases + 1),
        lambda s: s.leases.flags.__setitem__(slot_of(s), BOUNDED),
        lambda s: s.leases.bound(slot_of(s), 1),
        lambda s: (s.leases.own(slot_of(s), 1), s.leases.flags.__setitem__(slot_of(s), 0)),
        lambda s: setattr(s.leases, "live", s.leases.live + 1),
        lambda s: s.namespaces.by_name["default"].used.__setitem__(0, 99),
        lambda s: s.agenda.add(1, 0, 12345),
        lambda s: s.queues.clear(),
        lambda s: s.waiters.pop(next(iter(s.waiters))),
        lambda s: s.locks.pop(next(iter(s.locks))),
        lambda s: setattr(s, "last_token", 0),
    ],
)
def test_planted_damage_is_found(damage: object) -> None:
    driver = Driver()
    driver.lease()
    driver.lock()
    driver.lock(client="b", block_ms=60_000)
    damage(driver.machine.state)  # type: ignore[operator]
    with pytest.raises(InvariantBroken):
        check(driver.machine.state)


def slot_of(state: object) -> int:
    return 0
