"""Resources and edges, rule by rule: buffers, lifetimes, policies, deletion, quotas; denials change nothing (I17)."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.machine import commands as c
from coordinator.machine import garbage
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.graph import DELAYED, DYING, LIVE, PENDING
from coordinator.machine.limits import DEFAULT_BUFFER_MS, MAX_BATCH_EDGES, MAX_EXPIRIES_PER_ENTRY
from coordinator.machine.machine import Machine
from coordinator.machine.search import Round
from tests.machine.driver import Driver
from tests.machine.twin import TICK_MS, packed, ticks

STATES = {LIVE: "live", DYING: "dying", PENDING: "pending", DELAYED: "delayed"}


class Graph(Driver):
    def put(self, *names: str, buffer: int = ticks(1), provider: str = "disk", **more: Any) -> Any:
        return self.do(c.PutResources(names, provider, "file", safety_buffer_ms=buffer, **more))

    def edge(self, *names: str, on_lost: str | None = None) -> Any:
        """A path through all of them."""
        return self.do(c.PutEdges(names[:-1], names[1:], on_lost))

    def state_of(self, name: str) -> str | None:
        state = self.machine.state
        slot = garbage.resources.find(state, state.namespaces.by_name["default"], name)
        return None if slot < 0 else STATES[state.resources.state[slot]]

    def references(self, name: str) -> int:
        return self.machine.reference_count("default", name)

    def collect(self) -> Any:
        """One whole round; the answer to the set it proposes."""
        found = Round(self.machine.state, 1000)
        assert found.go_on(100_000)
        if settled := list(found.settled()):
            self.do(c.SettleSuspects(packed(*settled), found.as_of))
        if members := list(found.proposed()):
            return self.do(c.ProposeSet(garbage.next_set(self.machine.state), 0, packed(*members), True))
        return None


@pytest.fixture
def graph() -> Graph:
    return Graph()


# --- being born -----------------------------------------------------------------------------------------------------


def test_a_newborn_has_its_buffer_to_be_referred_to(graph: Graph) -> None:
    graph.put("a", "b", buffer=ticks(3))
    graph.pass_time(2 * TICK_MS)
    graph.lease("a", ms=100_000)
    graph.pass_time(TICK_MS)
    assert (graph.state_of("a"), graph.state_of("b")) == ("live", "pending")


def test_without_a_buffer_it_must_be_referred_to_in_the_same_entry(graph: Graph) -> None:
    graph.put("alone", buffer=0)
    assert graph.state_of("alone") == "pending"
    put = c.PutResources(("a",), "disk", "file", safety_buffer_ms=0)
    graph.entry(encode_command(put), encode_command(c.AcquireLease("a", "ann", 1000)))
    assert graph.state_of("a") == "live"


def test_a_lease_may_come_before_the_registration(graph: Graph) -> None:
    graph.lease("a", ms=100_000)
    assert graph.put("a", buffer=0).created == 1
    assert (graph.state_of("a"), graph.references("a")) == ("live", 1)
    assert graph.machine.state.orphans == 0
    graph.do(c.ReleaseLease("a", "a"))
    assert graph.state_of("a") == "pending", "it was held, and let go: no buffer"


def test_registering_again_describes_it_anew(graph: Graph) -> None:
    graph.put("a", pinned=True, buffer=0)
    again = graph.put("a", "a", pinned=True, buffer=5)
    assert again.created == 0 and len(again.resource_ids) == 16
    graph.put("a", buffer=0)
    assert graph.state_of("a") == "pending", "no longer pinned, and its first buffer is long over"


def test_the_default_buffer() -> None:
    graph = Graph()
    graph.do(c.PutResources(("a",), "disk", "file"))
    graph.pass_time(DEFAULT_BUFFER_MS - 1)
    assert graph.state_of("a") == "live"
    graph.pass_time(TICK_MS + 1)
    assert graph.state_of("a") == "pending"


# --- losing references ----------------------------------------------------------------------------------------------


def test_released_goes_at_once_and_expired_after_the_buffer(graph: Graph) -> None:
    graph.put("a", "b", buffer=ticks(5))
    graph.lease("a", ms=ticks(8))
    graph.lease("b", ms=ticks(8))
    graph.pass_time(6 * TICK_MS)
    graph.do(c.ReleaseLease("a", "a"))
    assert graph.state_of("a") == "pending"
    graph.pass_time(2 * TICK_MS)
    assert graph.kinds() == ["lease_expired"] and graph.state_of("b") == "live"
    graph.pass_time(4 * TICK_MS)
    assert graph.state_of("b") == "live"
    graph.pass_time(TICK_MS)
    assert graph.state_of("b") == "pending"


def test_a_lease_within_the_buffer_saves_it(graph: Graph) -> None:
    graph.put("a", buffer=ticks(5))
    graph.lease("a", ms=ticks(8))
    graph.pass_time(9 * TICK_MS)
    graph.lease("a", client="late", ms=100_000)
    graph.pass_time(20 * TICK_MS)
    assert graph.state_of("a") == "live"


def test_what_a_resource_refers_to_follows_it(graph: Graph) -> None:
    graph.lease("a", ms=100_000)
    graph.put("a", "b", "c", "held")
    graph.edge("a", "b", "c")
    graph.edge("b", "held")
    graph.lease("held", ms=100_000)
    graph.pass_time(2 * TICK_MS)
    graph.do(c.ReleaseLease("a", "a"))
    assert [graph.state_of(name) for name in ("a", "b", "c", "held")] == ["pending"] * 3 + ["live"]
    assert graph.references("held") == 1


def test_counts_are_told_exactly(graph: Graph) -> None:
    graph.put("a", "b", pinned=True)
    assert graph.edge("a", "b") == r.EdgesPut(1) and graph.edge("a", "b") == r.EdgesPut(0)
    assert graph.lease("b").reference_count == 2
    assert graph.do(c.DeleteEdge("a", "b")) == r.EdgeDeleted(1)
    assert graph.do(c.ReleaseLease("b", "a")) == r.LeaseReleased(0)


# --- policies -------------------------------------------------------------------------------------------------------


def test_an_orphan_stays_until_it_is_taken_up_and_let_go(graph: Graph) -> None:
    graph.lease("a", ms=100_000)
    graph.put("a", "b", "below")
    graph.edge("a", "b", on_lost="orphan")
    graph.edge("b", "below")
    graph.pass_time(2 * TICK_MS)
    graph.do(c.ReleaseLease("a", "a"))
    assert [graph.state_of(name) for name in ("a", "b", "below")] == ["pending", "live", "live"]
    assert graph.machine.state.orphans == 1
    graph.lease("b")
    graph.do(c.ReleaseLease("b", "a"))
    assert [graph.state_of(name) for name in ("b", "below")] == ["pending", "pending"]


def test_an_orphan_of_a_cycle_stays(graph: Graph) -> None:
    graph.put("a", "b", "stays", "below")
    graph.edge("a", "b", "a")
    graph.edge("b", "stays", on_lost="orphan")
    graph.edge("stays", "below")
    graph.pass_time(2 * TICK_MS)
    assert graph.collect().condemned
    assert [graph.state_of(name) for name in ("a", "b", "stays", "below")] == ["pending", "pending", "live", "live"]


def test_a_blocking_edge_keeps_its_source(graph: Graph) -> None:
    graph.put("a", "b", "c")
    graph.edge("a", "b", "a")
    graph.edge("a", "c", on_lost="block")
    graph.pass_time(2 * TICK_MS)
    assert graph.collect() is None
    graph.do(c.DeleteEdge("a", "c"))
    assert graph.state_of("c") == "pending"
    assert graph.collect().condemned


def test_an_edge_takes_the_policy_its_target_was_registered_with(graph: Graph) -> None:
    graph.lease("a", ms=100_000)
    graph.put("a")
    graph.put("b", on_lost="block")
    graph.edge("a", "b")
    graph.pass_time(2 * TICK_MS)
    graph.do(c.ReleaseLease("a", "a"))
    assert graph.state_of("a") == "live"


def test_an_edge_that_is_there_can_be_given_another_policy(graph: Graph) -> None:
    graph.put("a", "b", "c")
    graph.edge("a", "b", "a")
    graph.edge("a", "c", on_lost="block")
    graph.pass_time(2 * TICK_MS)
    assert graph.collect() is None
    assert graph.edge("a", "c").created == 0 and graph.collect() is None, "none given, none changed"
    assert graph.edge("a", "c", on_lost="cascade").created == 0
    assert graph.collect().condemned
    assert graph.state_of("c") == "pending"


# --- lifetimes ------------------------------------------------------------------------------------------------------


def test_a_lifetime_cuts_everything(graph: Graph) -> None:
    graph.put("x", pinned=True)
    graph.put("a", max_lifetime_ms=ticks(10), buffer=ticks(3))
    graph.put("y")
    graph.edge("x", "a", "y")
    graph.edge("a", "x", on_lost="block")
    graph.lease("a", client="one", ms=ticks(500))
    graph.lease("a", client="two", ms=ticks(500))
    graph.pass_time(10 * TICK_MS)
    assert graph.kinds().count("lease_expired") == 2
    assert [graph.state_of(name) for name in ("x", "a", "y")] == ["live", "delayed", "pending"]
    assert graph.machine.state.edges.live == 0
    assert graph.code(c.AcquireLease("a", "late", 1000)) == "resource_reclaiming"
    graph.pass_time(2 * TICK_MS)
    claimed = graph.do(c.ClaimReclaims("disk", "w", 10, 1000))
    assert [item.resource_id for item in claimed.items] == ["y"], "the holders of a may not know yet"
    graph.pass_time(TICK_MS)
    assert graph.state_of("a") == "pending"


def test_a_lifetime_only_gets_shorter(graph: Graph) -> None:
    graph.put("a", "b", pinned=True, max_lifetime_ms=ticks(10))
    graph.put("a", "b", pinned=True, max_lifetime_ms=ticks(90))
    graph.put("a", "b", pinned=True)
    graph.put("b", pinned=True, max_lifetime_ms=ticks(4))
    graph.pass_time(4 * TICK_MS)
    assert (graph.state_of("a"), graph.state_of("b")) == ("live", "delayed")
    graph.pass_time(6 * TICK_MS)
    assert graph.state_of("a") == "delayed"


def test_no_lease_outlives_the_resource(graph: Graph) -> None:
    graph.put("a", "b", max_lifetime_ms=ticks(10))
    assert graph.lease("a", ms=ticks(500)).expires_ms == ticks(10)
    assert graph.do(c.AcquireLeases(("a", "b"), "many", ticks(500))).expires_ms == ticks(10)


def test_past_its_lifetime_it_takes_no_reference_whether_or_not_a_sweep_came_by(graph: Graph) -> None:
    graph.put("a", "b", pinned=True, max_lifetime_ms=100)
    graph.put("c", pinned=True)
    graph.now_ms = 101
    assert graph.code(c.AcquireLease("a", "late", 1000)) == "resource_reclaiming"
    assert graph.code(c.AcquireLeases(("new", "b"), "late", 1000)) == "resource_reclaiming"
    assert graph.code(c.PutEdges(("c",), ("a",))) == "resource_reclaiming"
    assert graph.code(c.PutEdges(("a",), ("c",))) == "resource_reclaiming"
    assert graph.code(c.PutResources(("a",), "disk", "file")) == "resource_reclaiming"
    assert graph.state_of("a") == "live", "not swept yet"


def test_a_lifetime_cuts_a_cycle(graph: Graph) -> None:
    graph.put("a", max_lifetime_ms=ticks(10))
    graph.put("b", "c")
    graph.edge("a", "b", "c", "a")
    graph.lease("b", ms=ticks(500))
    graph.pass_time(10 * TICK_MS)
    assert [graph.state_of(name) for name in "abc"] == ["delayed", "live", "live"]
    graph.do(c.ReleaseLease("b", "a"))
    assert [graph.state_of(name) for name in "abc"] == ["delayed", "pending", "pending"]


# --- deleting -------------------------------------------------------------------------------------------------------


def test_what_is_in_use_is_deleted_only_by_force(graph: Graph) -> None:
    graph.put("root", pinned=True)
    graph.put("a", "b", buffer=ticks(3))
    graph.edge("root", "a", "b")
    graph.lease("a", ms=100_000)
    graph.pass_time(4 * TICK_MS)
    assert graph.code(c.DeleteResource("a")) == "resource_in_use"
    graph.do(c.DeleteResource("a", force=True))
    assert "lease_expired" in graph.kinds()
    assert [graph.state_of(name) for name in ("root", "a", "b")] == ["live", "delayed", "pending"], "a had a holder"
    graph.do(c.DeleteResource("root"))
    assert graph.state_of("root") == "pending", "a pin is no use"
    assert graph.code(c.DeleteResource("a")) == "resource_reclaiming"


def test_only_edges_are_cut_at_once(graph: Graph) -> None:
    graph.put("root", pinned=True)
    graph.put("a", buffer=ticks(3))
    graph.edge("root", "a")
    graph.pass_time(4 * TICK_MS)
    graph.do(c.DeleteResource("a", force=True))
    assert graph.state_of("a") == "pending"


# --- denials --------------------------------------------------------------------------------------------------------


def test_denied_commands_change_nothing(graph: Graph) -> None:
    graph.put("a", "b", pinned=True)
    graph.put("gone", buffer=0)
    graph.edge("a", "b")
    for command, code in (
        (c.PutResources(("new", "a"), "other", "file"), "provider_mismatch"),
        (c.PutResources(("new", "gone"), "disk", "file"), "resource_reclaiming"),
        (c.PutEdges(("a", "a"), ("a", "never")), "unknown_resource"),
        (c.PutEdges(("b", "a"), ("a", "gone")), "resource_reclaiming"),
        (c.PutEdges(("a", "b"), ("a",)), "malformed"),
        (c.DeleteEdge("b", "a"), "unknown_edge"),
        (c.DeleteEdge("never", "a"), "unknown_edge"),
        (c.DeleteResource("never"), "unknown_resource"),
        (c.DeleteResource("b"), "resource_in_use"),
        (c.DeleteResource("gone", force=True), "resource_reclaiming"),
        (c.AcquireLease("gone", "ann", 1000), "resource_reclaiming"),
        (c.AcquireLeases(("free", "gone"), "ann", 1000), "resource_reclaiming"),
        (c.ProposeSet(99, 0, packed(1), True), "set_refused"),
        (c.ProposeSet(1, 3, packed(1), True), "set_refused"),
    ):
        assert graph.code(command) == code, command


def test_quotas(graph: Graph) -> None:
    def do(command: c.Command) -> Any:
        return graph.do(command, namespace="small")

    graph.do(c.PutNamespace(10, 10, 10, 10, 1000, resources=3, edges=2), namespace="small")
    assert do(c.PutResources(("a", "b"), "p", "k", safety_buffer_ms=0, pinned=True)).created == 2
    denied = do(c.PutResources(("b", "c", "d"), "p", "k"))
    assert (denied.code, denied.details) == ("quota_exceeded", {"quota": "resources", "limit": 3})
    assert do(c.PutResources(("b", "c"), "p", "k", pinned=True)).created == 1
    assert do(c.PutEdges(("a", "b", "a"), ("b", "c", "c"))).details["quota"] == "edges"
    assert do(c.PutEdges(("a", "b", "a"), ("b", "c", "b"))) == r.EdgesPut(2)
    do(c.DeleteResource("b", force=True))
    assert do(c.PutResources(("d",), "p", "k")).code == "quota_exceeded", "it counts until its clean-up is done"
    (item,) = do(c.ClaimReclaims("p", "w", 1, 1000)).items
    do(c.AckReclaims("w", packed(item.reclaim_id), packed(item.token)))
    assert do(c.PutResources(("d",), "p", "k")).created == 1


def test_the_quota_of_names_counts_providers_and_kinds(graph: Graph) -> None:
    graph.do(c.PutNamespace(10, 10, 10, 10, 10), namespace="small")
    denied = graph.do(c.PutResources(("abcd",), "prov", "kin"), namespace="small")
    assert denied.details["quota"] == "name_bytes"
    assert graph.do(c.PutResources(("abcd",), "pro", "kin"), namespace="small").created == 1


# --- much at once ---------------------------------------------------------------------------------------------------

MANY = 30_000
AN_ENTRY = MAX_EXPIRIES_PER_ENTRY
"""Work before an entry's commands and after them, together."""


class Large:
    """A machine without checks after every entry."""

    def __init__(self) -> None:
        self.machine, self.index, self.now_ms = Machine(), 0, 0

    def entry(self, *commands: c.Command) -> list[r.Result]:
        self.index += 1
        return self.machine.apply(self.index, self.now_ms, [encode_command(command) for command in commands])

    def build(self, sources: list[str], targets: list[str]) -> None:
        """Registers the targets and the edges to them; the first source is leased before it is registered."""
        self.entry(c.AcquireLease(sources[0], "ann", 1_000_000))
        self.entry(c.PutResources((sources[0], "else"), "disk", "file"), c.AcquireLease("else", "ann", 1_000_000))
        for at in range(0, len(targets), MAX_BATCH_EDGES):
            part = slice(at, at + MAX_BATCH_EDGES)
            put = c.PutResources(tuple(targets[part]), "disk", "file", safety_buffer_ms=0)
            results = self.entry(put, c.PutEdges(tuple(sources[part]), tuple(targets[part])))
            assert isinstance(results[1], r.EdgesPut)
        assert self.machine.state.edges.live == MANY and not self.machine.state.lanes

    def work_off(self) -> int:
        """How many entries until nothing is to be done; none may do more than it should."""
        state, entries = self.machine.state, 0
        while garbage.backlog(state):
            edges, waiting = state.edges.live, self._pending()
            (granted,) = self.entry(c.AcquireLease("else", "bob", 1000))
            assert isinstance(granted, r.LeaseGranted), "others are served meanwhile"
            assert (edges - state.edges.live) + (self._pending() - waiting) <= AN_ENTRY
            entries += 1
        return entries

    def _pending(self) -> int:
        return sum(lane.ready.count for lanes in self.machine.state.lanes.values() for lane in lanes.values())


@pytest.mark.slow
def test_a_long_chain_goes_in_bounded_pieces() -> None:
    large, names = Large(), [f"r{number}" for number in range(MANY + 1)]
    large.build(names[:-1], names[1:])
    large.entry(c.ReleaseLease("r0", "ann"))
    assert large.work_off() <= 2 * (MANY + 1) // AN_ENTRY + 2
    assert large._pending() == MANY + 1 and large.machine.state.edges.live == 0


@pytest.mark.slow
def test_a_hub_goes_in_bounded_pieces() -> None:
    large, leaves = Large(), [f"r{number}" for number in range(MANY)]
    large.build(["hub"] * MANY, leaves)
    (deleted,) = large.entry(c.DeleteResource("hub", force=True))
    assert isinstance(deleted, r.ResourceDeleted)
    assert large.machine.state.dying, "its edges are too many for one entry"
    (refused,) = large.entry(c.AcquireLease("hub", "bob", 1000))
    assert isinstance(refused, r.Denied) and refused.code == "resource_reclaiming"
    frozen = b"".join(large.machine.freeze().chunks())
    restored = Large()
    restored.machine.restore([frozen])
    restored.index, restored.now_ms = large.index, large.now_ms
    assert large.work_off() == restored.work_off() <= 2 * MANY // (AN_ENTRY - 1) + 2
    assert large.machine.digest() == restored.machine.digest()
    assert large._pending() == MANY, "the leaves"
    large.now_ms += DEFAULT_BUFFER_MS + TICK_MS
    large.entry()
    assert large._pending() == MANY + 1, "and, after its buffer, the hub"
