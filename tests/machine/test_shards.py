"""Shards: shared out evenly, moved as little as can be, in two steps, and never anybody's twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine.codec import encode_command
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY, MAX_SHARED_OUT
from tests.machine.crew import REVOKED_MS, RULES, TICK_MS, Crew


class Site(Crew):
    """Workers that do as they are told: they beat, and give back what they are asked for."""

    def __init__(self, shards: int = 0, **rules: int) -> None:
        super().__init__(**rules)
        self.known: dict[str, tr.WorkerSeen] = {}
        if shards:
            self.do(t.PutShards("q", tuple(f"s{number:04}" for number in range(shards))))

    def heard(self, worker: str, *, gives: bool = True, capacity: int = 0, leaving: bool = False) -> tr.WorkerSeen:
        before = self.known.get(worker)
        given = before.revoking if before is not None and gives else ()
        seen = self.beat(worker, capacity, before.version if before else 0, given, leaving=leaving)
        if seen.changed:
            self.known[worker] = seen
        return self.known[worker]

    def settle(self, *workers: str) -> None:
        for _ in range(3):
            for worker in workers:
                self.heard(worker)

    def owners(self) -> dict[str, tuple[str | None, int | None]]:
        return {view.shard: (view.owner, view.token) for view in self.machine.dispatch.shards("default", "q")}

    def loads(self) -> dict[str, int]:
        return {view.worker_id: view.shards for view in self.machine.dispatch.workers("default", "q")}


def moved(before: dict[str, tuple[str | None, int | None]], after: dict[str, tuple[str | None, int | None]]) -> int:
    return sum(1 for shard in before if before[shard][0] != after[shard][0])


def test_the_first_worker_has_all_and_is_told_once() -> None:
    site = Site(5)
    seen = site.beat("a")
    assert [grant.shard for grant in seen.shards] == [f"s{number:04}" for number in range(5)] and seen.changed
    assert len({grant.token for grant in seen.shards}) == 5
    again = site.beat("a", version=seen.version)
    assert not again.changed and again.shards == () and again.version == seen.version


def test_a_shard_moves_in_two_steps() -> None:
    site = Site(4)
    first = site.heard("a")
    seen = site.heard("b")
    assert seen.shards == (), "nothing is free before the owner gave it back"
    asked = site.heard("a", gives=False)
    assert len(asked.shards) == 2 and len(asked.revoking) == 2
    assert site.heard("b").shards == ()
    site.heard("a")
    got = site.heard("b").shards
    assert {grant.shard for grant in got} == {grant.shard for grant in asked.revoking}
    assert min(grant.token for grant in got) > max(grant.token for grant in first.shards)


def test_what_is_given_back_under_an_old_token_is_ignored() -> None:
    site = Site(2)
    old = site.heard("a").shards
    site.settle("a", "b")
    taken = site.known["b"].shards[0]
    stale = next(grant for grant in old if grant.shard == taken.shard)
    site.beat("b", given=(stale,))
    assert site.owners()[taken.shard] == ("b", taken.token)
    site.beat("a", given=(taken,))
    assert site.owners()[taken.shard] == ("b", taken.token), "only its owner gives it back"


def test_a_worker_that_leaves_gracefully_gives_everything_back_first() -> None:
    site = Site(6)
    site.settle("a", "b")
    leaving = site.heard("b", gives=False, leaving=True)
    assert leaving.shards == () and len(leaving.revoking) == 3
    site.heard("a")
    assert site.loads() == {"a": 3, "b": 0}
    site.heard("b", leaving=True)
    site.heard("a")
    assert site.loads() == {"a": 6, "b": 0}
    assert site.do(t.LeaveWorker("q", "b")) == tr.WorkerLeft(0)
    assert site.code(t.LeaveWorker("q", "b")) == "unknown_worker"


def test_a_worker_that_is_gone_hands_over_at_once() -> None:
    site = Site(6)
    site.settle("a", "b")
    assert site.do(t.LeaveWorker("q", "b")) == tr.WorkerLeft(3)
    assert site.loads() == {"a": 6}


def test_a_worker_that_is_not_heard_is_suspected_then_lost() -> None:
    site = Site(6)
    site.settle("a", "b")
    for _ in range(13):
        site.pass_time(100)
        site.heard("a")
    assert site.loads() == {"a": 3, "b": 3}
    kinds = [event.kind for event in site.events(since=0)]
    assert kinds.count("worker_suspect") == 1 and "worker_lost" not in kinds
    site.pass_time(99)
    assert site.loads() == {"a": 3, "b": 3}
    site.pass_time(1)
    assert site.now_ms == REVOKED_MS and site.loads() == {"a": 6}


@pytest.mark.parametrize("silent_ms", [700, 1_100, REVOKED_MS - 1])
def test_a_worker_that_comes_back_in_time_keeps_its_shards(silent_ms: int) -> None:
    site = Site(6)
    site.settle("a", "b")
    before = site.owners()
    for _ in range(5):
        site.pass_time(silent_ms)
        site.settle("a", "b")
    assert site.owners() == before


def test_a_worker_that_is_lost_again_and_again_is_waited_for_longer() -> None:
    site = Site(2)
    grace = []
    for _ in range(4):
        seen = site.beat("a")
        grace.append(seen.revoked_ms - seen.expires_ms)
        site.now_ms = seen.revoked_ms
        site.entry()
    assert grace == [400, 900, 1_400, 2_400]
    site.pass_time(4_000)
    assert site.beat("a").revoked_ms - site.beat("a").expires_ms == 400, "it was forgotten"


def test_who_is_suspected_gets_nothing_more() -> None:
    site = Site(4)
    site.settle("a", "b")
    site.pass_time(700)
    site.heard("a")
    site.do(t.PutShards("q", tuple(f"s{number:04}" for number in range(8))))
    assert site.loads() == {"a": 6, "b": 2}
    site.settle("b", "a", "b")
    assert site.loads() == {"a": 4, "b": 4}


def test_capacities_are_kept_to() -> None:
    site = Site(10)
    for worker, capacity in (("a", 2), ("b", 0), ("c", 3)):
        site.heard(worker, capacity=capacity)
    for _ in range(3):
        for worker, capacity in (("a", 2), ("b", 0), ("c", 3)):
            site.heard(worker, capacity=capacity)
    assert site.loads() == {"a": 2, "b": 5, "c": 3}
    site.do(t.LeaveWorker("q", "b"))
    assert site.loads() == {"a": 2, "c": 3}, "what nobody takes waits"
    assert sum(1 for owner, _ in site.owners().values() if owner is None) == 5


def test_the_set_of_shards_changes() -> None:
    site = Site()
    assert site.do(t.PutShards("q", ("x", "y", "z"))) == tr.ShardsPut(3, 0, 0)
    site.heard("a")
    assert site.do(t.PutShards("q", ("x", "w"))) == tr.ShardsPut(1, 2, 1)
    seen = site.heard("a", gives=False)
    assert [grant.shard for grant in seen.shards] == ["w", "x"]
    assert [grant.shard for grant in seen.revoking] == ["y", "z"]
    assert site.do(t.PutShards("q", ("x", "w", "y"))).added == 1
    assert [grant.shard for grant in site.heard("a", gives=False).shards] == ["w", "x", "y"], "it is wanted after all"
    site.heard("a")
    assert sorted(site.owners()) == ["w", "x", "y"]
    site.do(t.PutShards("q", ()))
    site.settle("a")
    assert site.owners() == {}


def test_asking_back_ends_when_it_is_not_needed_any_more() -> None:
    site = Site(6)
    before = {grant.shard: grant.token for grant in site.heard("a").shards}
    site.heard("b")
    assert len(site.heard("a", gives=False).revoking) == 3
    site.do(t.LeaveWorker("q", "b"))
    kept = site.heard("a", gives=False)
    assert {grant.shard: grant.token for grant in kept.shards} == before and kept.revoking == ()


def test_a_thousand_shards_move_at_most_the_minimum_and_are_balanced_within_one() -> None:
    site, chance = Site(1_000), random.Random(7)
    workers: list[str] = []
    for step in range(40):
        before = site.owners()
        if not workers or (len(workers) < 20 and chance.random() < 0.6):
            workers.append(f"w{step}")
            site.settle(*workers)
            least = 1_000 // len(workers) if len(workers) > 1 else 1_000
        else:
            gone = workers.pop(chance.randrange(len(workers)))
            least = sum(1 for owner, _ in before.values() if owner == gone)
            site.do(t.LeaveWorker("q", gone))
            site.settle(*workers)
            del site.known[gone]
        loads = site.loads()
        if workers:
            assert max(loads.values()) - min(loads.values()) <= 1, (step, loads)
            assert sum(loads.values()) == 1_000
            assert moved(before, site.owners()) <= least * 105 // 100, step


def test_no_shard_is_ever_two_workers_own() -> None:
    """What each worker believes, by what it was told and gave back itself: with any delay of the telling."""
    site, chance = Site(200), random.Random(11)
    working: dict[str, dict[str, int]] = {}
    newest: dict[str, int] = {}
    for step in range(400):
        site.now_ms += chance.choice((10, 50, 150))
        name = f"w{chance.randrange(8)}"
        if name in working and chance.random() < 0.1:
            site.do(t.LeaveWorker("q", name))
            del working[name], site.known[name]
        else:
            seen = site.heard(name, gives=chance.random() < 0.7)
            working[name] = {grant.shard: grant.token for grant in (*seen.shards, *seen.revoking)}
        alive = {view.worker_id for view in site.machine.dispatch.workers("default", "q")}
        for lost in sorted(working.keys() - alive):
            del working[lost], site.known[lost]
        owners = site.owners()
        for worker, mine in working.items():
            for shard, token in mine.items():
                assert token <= newest.get(shard, token) or owners[shard][0] == worker, step
                newest[shard] = max(newest.get(shard, 0), token)
        believed = [shard for mine in working.values() for shard, token in mine.items() if token == newest[shard]]
        assert len(believed) == len(set(believed)), step


def test_many_lost_at_once_are_shared_out_once() -> None:
    site = Site(2_000)
    names = [f"w{number:03}" for number in range(60)]
    for name in names:
        site.heard(name)
    site.settle(*names)
    site.now_ms += REVOKED_MS - 1
    site.heard("w000")
    site.now_ms += 1 + TICK_MS
    for _ in range(8):
        site.entry()
    assert site.loads() == {"w000": 2_000}
    assert site.machine.dispatch.counts().workers == 1


def test_a_queue_may_go_while_what_its_lost_workers_had_waits_to_be_shared_out() -> None:
    site = Site(1, hold_down_ms=0, max_hold_down_ms=0, suspect_beats=1_000)
    for number in range(MAX_EXPIRIES_PER_ENTRY):
        site.heard(f"w{number}")
    site.now_ms += REVOKED_MS + TICK_MS  # to lose them is all that one entry may do of its own accord
    assert site.do(t.DeleteQueue("q")) == tr.QueueDeleted()
    site.entry()
    assert not site.machine.state.workers


def test_a_worker_is_not_given_up_before_the_moment_it_was_told() -> None:
    """Though its hold-down ended with its last beat, or the rules changed: the answer to that beat may be lost."""
    site = Site(1, hold_down_ms=4_000)
    site.heard("a")
    site.pass_time(REVOKED_MS + TICK_MS)
    told = site.heard("a")
    assert told.revoked_ms == site.now_ms + REVOKED_MS + 4_000
    site.now_ms += 3_900
    told = site.heard("a")
    site.now_ms += 200
    assert site.heard("a").revoked_ms >= told.revoked_ms
    site.do(replace(RULES, lease_ms=200, heartbeat_ms=100))
    assert site.heard("a").revoked_ms >= told.revoked_ms
    site.pass_time(told.revoked_ms - site.now_ms - 1)
    assert [owner for owner, _ in site.owners().values()] == ["a"]


def test_one_entry_shares_out_so_many_shards_and_leaves_the_rest_to_the_next() -> None:
    """A worker that changes its mind a thousand times does not stop the log."""
    site = Site(10_000)
    site.heard("a")
    looks = MAX_SHARED_OUT // 10_000 + 1
    beats = [t.BeatWorker("q", "a", 0, 0, number % 2 == 0) for number in range(2 * looks + 1)]
    site.entry(*map(encode_command, beats))
    revoking = sum(event.kind in ("shard_revoking", "shard_assigned") for event in site.events())
    assert 10_000 <= revoking <= looks * 10_000
    assert site.machine.due(site.now_ms), "somebody must see to the rest"
    site.entry()
    assert all(shard.revoking for shard in site.machine.dispatch.shards("default", "q"))
    assert not site.machine.state.unbalanced


def test_the_version_of_a_workers_share_is_read_without_the_others() -> None:
    site = Site(4)
    seen = site.heard("a")
    reader = site.machine.dispatch
    assert reader.assignment("default", "q", "a") == seen.version
    assert reader.assignment("default", "q", "b") is None and reader.assignment("default", "r", "a") is None
    assert reader.assignment("nowhere", "q", "a") is None
    site.heard("b")
    assert reader.assignment("default", "q", "a") != seen.version
    site.pass_time(REVOKED_MS + TICK_MS)
    assert reader.assignment("default", "q", "a") is None, "it is lost"


def test_workers_with_many_shards_are_not_all_lost_in_one_entry() -> None:
    site = Site()
    for name in ("p", "q", "r"):
        site.do(replace(RULES, queue=name, suspect_beats=1_000))
        site.do(t.PutShards(name, tuple(f"s{number}" for number in range(9_999))))
        site.do(t.BeatWorker(name, "a", 0, 0, False))
    site.pass_time(REVOKED_MS + TICK_MS)
    assert site.kinds().count("worker_lost") <= 2
    for _ in range(8):
        site.entry()
    owned = [site.machine.dispatch.workers("default", name) for name in ("p", "q", "r")]
    assert owned == [[], [], []] and not site.machine.state.unbalanced
