"""What makes collection safe and complete, taken away piece by piece: each time I6 or I7 is seen to break.

Every schedule is first run as it is. Then one rule is switched off, and the model must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.machine import commands as c
from coordinator.machine import edges, garbage, resources
from coordinator.machine import results as r
from coordinator.machine.graph import PINNED, Proposal
from coordinator.machine.limits import MAX_REVISION
from coordinator.machine.search import Round
from coordinator.machine.state import State
from tests.machine.graphtwin import ROUNDS, Collector, GarbageLeft, GraphTwin, ReachableReclaimed
from tests.machine.twin import packed, ticks

Patch = Callable[[pytest.MonkeyPatch], None]
RING = ("a", "b", "c")
LEASE = c.AcquireLease("a", "late", ticks(500))


def twin_with_ring() -> GraphTwin:
    """`a` → `b` → `c` → `a`, a leased `root` without edges, and nothing that keeps the ring."""
    twin = GraphTwin()
    twin.do(c.PutResources((*RING, "root"), "disk", "file", safety_buffer_ms=ticks(2)))
    twin.do(c.AcquireLease("root", "ann", ticks(500)))
    twin.do(c.PutEdges(RING, (*RING[1:], RING[0])))
    twin.advance(3)
    return twin


def searched(twin: GraphTwin) -> list[int]:
    """Ids of the ring, found to be garbage, in the order of RING."""
    over = Round(twin.machine.state, 100)
    assert over.go_on(1000)
    assert {twin.name_of(number) for number in over.proposed()} == set(RING)
    return sorted(over.proposed(), key=twin.name_of)


def proposal(twin: GraphTwin, *parts: list[int], between: c.Command | None = None) -> Any:
    """The answer to the last part; before it, or before the only one, somebody else gets a command in."""
    number = garbage.next_set(twin.machine.state)
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if last and between is not None:
            assert not isinstance(twin.do(between), r.Denied)
        result = twin.do(c.ProposeSet(number, at, packed(*part), last))
    return result


def collected(twin: GraphTwin) -> None:
    collector = Collector(twin)
    for _ in range(ROUNDS):
        collector.finish(1000, 1000)
    twin.expect_no_garbage()


# --- I6 -------------------------------------------------------------------------------------------------------------


def believe_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(garbage, "_may_join", lambda state, slot, number: True)


def believe_counts(patch: pytest.MonkeyPatch) -> None:
    join = garbage._join

    def join_satisfied(state: State, slot: int, proposal: Proposal) -> None:
        join(state, slot, proposal)
        proposal.satisfied = len(proposal.members)

    patch.setattr(garbage, "_join", join_satisfied)


def believe_earlier_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(resources, "disturb", lambda state, slot: None)


PIN = c.PutResources(("a",), "disk", "file", pinned=True)
FROM_ROOT, BLOCK_A = c.PutEdges(("root",), ("a",)), c.PutEdges(("a",), ("root",), "block")
SCHEDULES = [
    pytest.param(believe_members, 1, LEASE, id="a lease between the search and the proposal"),
    pytest.param(believe_members, 1, PIN, id="a pin between the search and the proposal"),
    pytest.param(believe_members, 1, BLOCK_A, id="a blocking edge between the search and the proposal"),
    pytest.param(believe_counts, 1, FROM_ROOT, id="an edge between the search and the proposal"),
    pytest.param(believe_earlier_parts, 2, LEASE, id="a lease between two parts"),
    pytest.param(believe_earlier_parts, 2, PIN, id="a pin between two parts"),
    pytest.param(believe_earlier_parts, 2, BLOCK_A, id="a blocking edge between two parts"),
    pytest.param(believe_earlier_parts, 2, FROM_ROOT, id="an edge between two parts"),
]


def propose_late(parts: int, between: c.Command) -> tuple[GraphTwin, Any]:
    """With two parts, `a` and its only source are in the first one."""
    twin = twin_with_ring()
    a, b, last = searched(twin)
    chunks = [[a, b, last]] if parts == 1 else [[last, a], [b]]
    return twin, proposal(twin, *chunks, between=between)


@pytest.mark.parametrize(("patched", "parts", "between"), SCHEDULES)
def test_a_reference_that_comes_late_is_seen(
    monkeypatch: pytest.MonkeyPatch, patched: Patch, parts: int, between: c.Command
) -> None:
    twin, result = propose_late(parts, between)
    assert isinstance(result, r.Denied) and result.code == "set_refused"
    assert set(RING) <= twin.live()
    patched(monkeypatch)
    with pytest.raises(ReachableReclaimed):
        propose_late(parts, between)


def test_without_anything_in_between_the_set_is_taken() -> None:
    for parts in (1, 2):
        twin = twin_with_ring()
        a, b, last = searched(twin)
        assert proposal(twin, *([[a, b, last]] if parts == 1 else [[last, a], [b]])).condemned
        assert not set(RING) & twin.live()


def test_a_part_of_a_cycle_is_no_set() -> None:
    twin = twin_with_ring()
    a, b, _ = searched(twin)
    assert isinstance(proposal(twin, [a, b]), r.Denied)
    assert isinstance(proposal(twin, [a, b, b]), r.Denied), "a member counts once"
    assert set(RING) <= twin.live()
    collected(twin)


def test_a_set_does_not_take_along_what_an_edge_says_will_stay() -> None:
    twin = twin_with_ring()
    ring = searched(twin)
    twin.do(c.PutResources(("stays",), "disk", "file", safety_buffer_ms=ticks(1)))
    twin.do(c.PutEdges(("a",), ("stays",), "orphan"))
    twin.advance(2)
    slot = twin.names()["stays"]
    assert isinstance(proposal(twin, [*ring, twin.machine.state.resource_id(slot)]), r.Denied)
    assert proposal(twin, ring).condemned
    assert twin.live() == {"root", "stays"}


def test_a_set_of_another_leader_is_not_mixed_into() -> None:
    """Two proposals under one number: the parts of the second are refused, or must hold for the whole."""
    twin = twin_with_ring()
    a, b, last = searched(twin)
    number = garbage.next_set(twin.machine.state)
    assert isinstance(twin.do(c.ProposeSet(number, 0, packed(a), False)), r.SetTaken)
    assert isinstance(twin.do(c.ProposeSet(number, 0, packed(a, b, last), True)), r.Denied)
    assert isinstance(twin.do(c.ProposeSet(number, 1, packed(a, b), True)), r.Denied)
    assert set(RING) <= twin.live()
    collected(twin)


# --- I7 -------------------------------------------------------------------------------------------------------------


def cut_from_root() -> None:
    """The ring loses the edge that kept it, and only that."""
    twin = twin_with_ring()
    twin.do(FROM_ROOT)
    collected(twin)
    assert not twin.machine.state.suspects.count, "found alive, and no suspects any more"
    twin.do(c.DeleteEdge("root", "a"))
    collected(twin)


def test_who_lost_an_edge_and_has_others_is_a_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_from_root()
    lost = resources.lost

    def lost_if_last(state: State, slot: int, *, expired: bool = False) -> None:
        if not state.resources.in_count[slot]:
            lost(state, slot, expired=expired)

    monkeypatch.setattr(resources, "lost", lost_if_last)
    with pytest.raises(GarbageLeft):
        cut_from_root()


def edge_from_its_own_descendant() -> None:
    """`top` → `low`: in one entry `top` loses its lease and gains an edge from `low`."""
    twin = GraphTwin()
    twin.do(c.AcquireLease("top", "ann", ticks(500)))
    twin.do(c.PutResources(("top", "low"), "disk", "file", safety_buffer_ms=ticks(1)))
    twin.do(c.PutEdges(("top",), ("low",)))
    twin.advance(2)
    collected(twin)
    assert not twin.machine.state.suspects.count
    twin.entry(c.ReleaseLease("top", "ann"), c.PutEdges(("low",), ("top",)))
    collected(twin)


def test_an_edge_from_garbage_is_no_reason_to_look_away(monkeypatch: pytest.MonkeyPatch) -> None:
    edge_from_its_own_descendant()

    def gained_for_good(state: State, slot: int) -> None:
        resources.disturb(state, slot)
        if resources.references(state, slot) == 1 and not state.resources.flags[slot] & PINNED:
            state.orphans -= 1
        resources.unlist(state, slot)

    monkeypatch.setattr(resources, "gained", gained_for_good)
    with pytest.raises(GarbageLeft):
        edge_from_its_own_descendant()


def lost_its_block() -> None:
    """A ring that only its edge to `stone` kept from going; then `stone` is deleted."""
    twin = twin_with_ring()
    twin.do(c.PutResources(("stone",), "disk", "file", pinned=True))
    twin.do(c.PutEdges(("a",), ("stone",), "block"))
    collected(twin)
    assert set(RING) <= twin.live()
    twin.do(c.DeleteResource("stone", force=True))
    collected(twin)
    assert not set(RING) & twin.live()


def test_who_is_no_longer_kept_by_a_blocking_edge_is_a_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_its_block()
    remove = edges.remove

    def remove_without_look(state: State, edge: int) -> None:
        look, resources.look = resources.look, lambda state, slot: None
        remove(state, edge)
        resources.look = look

    monkeypatch.setattr(edges, "remove", remove_without_look)
    with pytest.raises(GarbageLeft):
        lost_its_block()


def settled_late(as_of: int | None) -> None:
    """Found alive; loses what kept it; and only then the finding is told."""
    twin = twin_with_ring()
    twin.do(FROM_ROOT)
    over = Round(twin.machine.state, 100)
    over.go_on(1000)
    assert list(over.settled())
    twin.do(c.DeleteEdge("root", "a"))
    twin.do(c.SettleSuspects(packed(*over.settled()), over.as_of if as_of is None else as_of))
    collected(twin)


def test_a_finding_says_of_which_moment_it_is() -> None:
    settled_late(None)
    with pytest.raises(GarbageLeft):
        settled_late(MAX_REVISION)


# --- the safety buffer ----------------------------------------------------------------------------------------------


def lease_runs_out() -> GraphTwin:
    twin = twin_with_ring()
    twin.do(c.PutResources(("a", "alone"), "disk", "file", safety_buffer_ms=ticks(5)))
    for name in ("a", "alone"):
        twin.do(c.AcquireLease(name, "ann", ticks(8)))
    twin.advance(8)
    collected(twin)
    return twin


def test_after_an_expiry_the_buffer_runs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = lease_runs_out()
    assert {*RING, "alone"} <= twin.live(), "its holder may not know yet"
    twin.advance(5)
    collected(twin)
    assert not {*RING, "alone"} & twin.live()
    monkeypatch.setattr(resources, "begin_buffer", lambda state, slot: None)
    with pytest.raises(ReachableReclaimed, match="alone"):
        lease_runs_out()
