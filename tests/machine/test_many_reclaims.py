"""Clean-ups by the dozen: what is worked off, handed out and acknowledged at once is as if it had been one by one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.collection import Collection, CollectionCounts
from coordinator.machine.machine import Machine
from tests.machine.driver import Driver
from tests.machine.twin import TICK_MS, packed, ticks

RING = 60
CLAIM_MS = ticks(4)


class Crowd(Driver):
    """A ring of two kinds that refers to something kept, and to a tail; and a replica of it all."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = [f"r{number:02}" for number in range(RING)]
        self.replica: Machine | None = None

    def entry(self, *raw: bytes) -> list[r.Result]:
        results = super().entry(*raw)
        if self.replica is not None:
            assert self.replica.apply(self.index, self.now_ms, raw) == results
            assert self.replica.digest() == self.machine.digest()
        return results

    def part(self) -> None:
        """From here on a machine that was restored from this one's state goes the same way."""
        self.replica = Machine()
        self.replica.restore(self.machine.freeze().chunks())

    def forget_the_ring(self, *, tail: c.OnLost = "cascade") -> None:
        self.lease(self.ring[0], ms=1_000_000)
        for kind, names in (("even", self.ring[::2]), ("odd", self.ring[1::2])):
            self.do(c.PutResources(tuple(names), "disk", kind, safety_buffer_ms=TICK_MS))
        self.do(c.PutResources(("kept", "tail"), "disk", "other", safety_buffer_ms=TICK_MS))
        self.lease("kept", "b", ms=1_000_000)
        ends = [*pairwise(self.ring), (self.ring[-1], self.ring[0]), *((name, "kept") for name in self.ring[::7])]
        self.do(c.PutEdges(tuple(a for a, _ in ends), tuple(b for _, b in ends)))
        self.do(c.PutEdges((self.ring[5],), ("tail",), tail))
        self.pass_time(3 * TICK_MS)
        self.do(c.ReleaseLease(self.ring[0], "a"))

    def collect(self) -> CollectionCounts:
        counts = CollectionCounts()
        collection = Collection(self.machine, counts)
        for _ in range(10):
            command = collection.step(100_000)
            if command is not None:
                collection.answered(command, self.do(command))
        while self.machine.graph_counts().garbage:
            self.do(c.Sweep(1_000))
        return counts

    def claim(self, most: int, worker: str = "w1") -> list[r.Reclaim]:
        return list(self.do(c.ClaimReclaims("disk", worker, most, CLAIM_MS)).items)

    def ack(self, items: list[r.Reclaim], worker: str = "w1") -> list[str]:
        ids, tokens = packed(*(item.reclaim_id for item in items)), packed(*(item.token for item in items))
        return [r.RECLAIM_VERDICTS[byte] for byte in self.do(c.AckReclaims(worker, ids, tokens)).verdicts]


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


@pytest.mark.parametrize(("tail", "gone"), [("cascade", RING + 1), ("orphan", RING)])
def test_a_ring_goes_and_what_it_refers_to_stays_or_follows(crowd: Crowd, tail: c.OnLost, gone: int) -> None:
    crowd.forget_the_ring(tail=tail)
    crowd.part()
    counts = crowd.collect()
    assert (counts.sets_refused, counts.condemned) == (0, gone)
    pending = [event.key for event in crowd.events(0) if event.kind == "reclaim_pending"]
    assert Counter(pending) == Counter([*crowd.ring, *(["tail"] if tail == "cascade" else [])])
    graph = crowd.machine.graph_counts()
    assert (graph.edges, graph.suspects, graph.unreferenced) == (0, 0, int(tail == "orphan"))
    kept = crowd.machine.resource("default", "kept")
    assert kept is not None and (kept.leases, kept.edges_in) == (1, 0)


def test_they_are_handed_out_by_turns_and_each_once(crowd: Crowd) -> None:
    crowd.forget_the_ring()
    crowd.collect()
    crowd.part()
    first, second = crowd.claim(40), crowd.claim(100, "w2")
    assert {item.kind for item in first[:3]} == {"even", "odd", "other"}
    assert Counter(item.resource_id for item in first + second) == Counter([*crowd.ring, "tail"])
    tokens = [item.token for item in first + second]
    assert tokens == sorted(set(tokens))
    assert {item.attempt for item in first + second} == {1}
    owners = Counter(event.owner for event in crowd.events(0) if event.kind == "reclaim_claimed")
    assert owners == {"w1": 40, "w2": RING + 1 - 40}


def test_an_ack_of_many_tells_of_each_what_it_would_be_told_alone(crowd: Crowd) -> None:
    crowd.forget_the_ring()
    crowd.collect()
    items, others = crowd.claim(30), crowd.claim(10, "w2")
    crowd.part()
    wrong = [r.Reclaim(item.reclaim_id, "", "", item.token + 1_000, 1, 0) for item in items[:2]]
    nothing = [r.Reclaim(1 << 40 | 1_000_000, "", "", 1, 1, 0)]
    told = crowd.ack([*items[2:], *wrong, *items[2:5], *others, *nothing])
    expected = ["ok"] * 28 + ["not_holder"] * 2 + ["already_done"] * 3 + ["not_holder"] * 10 + ["unknown"]
    assert told == expected
    assert crowd.ack(items) == ["ok"] * 2 + ["already_done"] * 28
    done = [event.key for event in crowd.events(0) if event.kind == "reclaim_done"]
    assert Counter(done) == Counter(item.resource_id for item in items), "each once"
    assert crowd.machine.reclaim_counts().done == 30


def test_a_worker_that_is_late_may_still_ack_what_nobody_else_got(crowd: Crowd) -> None:
    crowd.forget_the_ring()
    crowd.collect()
    items = crowd.claim(100)
    crowd.part()
    crowd.pass_time(4 * TICK_MS)
    again = crowd.claim(20, "w2")
    taken = {item.resource_id for item in again}
    verdicts = dict(zip((item.resource_id for item in items), crowd.ack(items), strict=True))
    assert {name for name, verdict in verdicts.items() if verdict == "not_holder"} == taken
    assert set(crowd.ack(again, "w2")) == {"ok"}
    assert crowd.machine.graph_counts().resources == 1
    assert crowd.machine.reclaim_counts().lanes == 0


def test_ids_and_rows_are_used_again(crowd: Crowd) -> None:
    crowd.forget_the_ring()
    crowd.collect()
    old = crowd.claim(100)
    crowd.part()
    assert set(crowd.ack(old)) == {"ok"}
    crowd.forget_the_ring()
    crowd.collect()
    new = crowd.claim(100)
    assert {item.resource_id for item in new} == {item.resource_id for item in old}
    assert not {item.reclaim_id for item in new} & {item.reclaim_id for item in old}
    assert set(crowd.ack(old)) == {"already_done"}
    assert set(crowd.ack(new)) == {"ok"}


def test_what_another_namespace_claimed_is_not_this_one_s_to_ack(crowd: Crowd) -> None:
    crowd.forget_the_ring()
    crowd.collect()
    items = crowd.claim(20)
    crowd.do(c.PutNamespace(1_000, 1_000, 1_000, 1_000, 1_000), namespace="other")
    ids, tokens = packed(*(item.reclaim_id for item in items)), packed(*(item.token for item in items))
    raw = encode_command(c.AckReclaims("w1", ids, tokens), "other")
    (answer,) = crowd.entry(raw)
    assert isinstance(answer, r.ReclaimsAnswered)
    assert {r.RECLAIM_VERDICTS[byte] for byte in answer.verdicts} == {"unknown"}
