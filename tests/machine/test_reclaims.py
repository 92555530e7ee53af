"""Clean-ups: who has one, what becomes of it when workers are slow, crash or fail; its effect happens once (I8)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.limits import BACK_OFF_MS, LANE_FAILURES, MAX_ATTEMPTS, MAX_BACK_OFF_MS, MAX_CLAIMS
from tests.machine.driver import Driver
from tests.machine.twin import TICK_MS, packed, ticks

CLAIM_MS = ticks(4)
A_CLAIM = 4 * TICK_MS
"""After so long a claim has run out, and the sweep has seen it."""


class Reclaims(Driver):
    """A provider's workers. Resources are registered without a buffer and are garbage at once."""

    def garbage(self, *names: str, kind: str = "file", provider: str = "disk") -> None:
        put = self.do(c.PutResources(names, provider, kind, safety_buffer_ms=0))
        assert put.created == len(names)

    def claim(
        self, worker: str = "w1", most: int = 100, kinds: Sequence[str] = (), provider: str = "disk"
    ) -> r.ReclaimsClaimed:
        return self.do(c.ClaimReclaims(provider, worker, most, CLAIM_MS, tuple(kinds)))

    def one(self, worker: str = "w1") -> r.Reclaim:
        (item,) = self.claim(worker, 1).items
        return item

    def ack(self, item: r.Reclaim, worker: str = "w1") -> str:
        answer = self.do(c.AckReclaims(worker, packed(item.reclaim_id), packed(item.token)))
        return r.RECLAIM_VERDICTS[answer.verdicts[0]]

    def renew(self, item: r.Reclaim, worker: str = "w1") -> str:
        answer = self.do(c.RenewReclaims(worker, packed(item.reclaim_id), packed(item.token), CLAIM_MS))
        return r.RECLAIM_VERDICTS[answer.verdicts[0]]

    def nack(self, item: r.Reclaim, worker: str = "w1", retry_in_ms: int | None = None) -> r.ReclaimNacked:
        return self.do(c.NackReclaim(worker, item.reclaim_id, item.token, "busy", retry_in_ms))

    def fail_for_good(self, worker: str = "w1") -> None:
        """The one clean-up there is, until it is a dead letter."""
        for _ in range(MAX_ATTEMPTS):
            self.now_ms += MAX_BACK_OFF_MS
            self.entry()
            answer = self.nack(self.one(worker), worker, 0)
        assert answer.dead


@pytest.fixture
def reclaims() -> Reclaims:
    return Reclaims()


# --- one clean-up ---------------------------------------------------------------------------------------------------


def test_a_clean_up_is_handed_out_once(reclaims: Reclaims) -> None:
    reclaims.now_ms = 5000
    reclaims.garbage("a")
    assert reclaims.kinds() == ["resource_registered", "reclaim_pending"]
    (item,) = reclaims.claim("w1").items
    assert (item.resource_id, item.kind, item.attempt, item.since_ms) == ("a", "file", 1, 5000)
    assert reclaims.claim("w2").items == ()
    assert reclaims.code(c.AcquireLease("a", "ann", 1000)) == "resource_reclaiming"
    assert reclaims.code(c.PutResources(("a",), "disk", "file")) == "resource_reclaiming"
    assert reclaims.ack(item) == "ok"
    assert reclaims.kinds() == ["reclaim_done"]
    assert reclaims.machine.state.reclaimed == 1
    assert reclaims.machine.counts().names == 0, "nothing is left of it"


def test_an_ack_counts_once_and_says_so(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    item = reclaims.one()
    assert [reclaims.ack(item), reclaims.ack(item), reclaims.ack(item, "w2")] == ["ok", "already_done", "already_done"]
    reclaims.garbage("a")
    assert reclaims.ack(item) == "already_done", "the id is used anew; the old clean-up is still done"
    assert reclaims.machine.state.reclaimed == 1
    assert reclaims.one().token > item.token


def test_only_the_worker_with_the_token_may_speak(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    item = reclaims.one("w1")
    wrong = r.Reclaim(item.reclaim_id, "a", "file", item.token + 1, 1, 0)
    unknown = r.Reclaim(item.reclaim_id + 7, "a", "file", item.token, 1, 0)
    assert [reclaims.ack(item, "w2"), reclaims.ack(wrong), reclaims.ack(unknown)] == [
        "not_holder",
        "not_holder",
        "unknown",
    ]
    assert reclaims.renew(item, "w2") == "not_holder"
    for command in (
        c.NackReclaim("w2", item.reclaim_id, item.token, "x"),
        c.NackReclaim("w1", item.reclaim_id, item.token + 1, "x"),
    ):
        assert reclaims.code(command) == "not_holder"
    assert reclaims.code(c.NackReclaim("w1", item.reclaim_id + 7, item.token, "x")) == "unknown_reclaim"
    assert reclaims.ack(item) == "ok"
    assert reclaims.code(c.NackReclaim("w1", item.reclaim_id, item.token, "x")) == "unknown_reclaim"


def test_another_namespace_cannot_speak_for_it(reclaims: Reclaims) -> None:
    reclaims.do(c.PutNamespace(*[1000] * 5), namespace="other")
    reclaims.garbage("a")
    item = reclaims.one()
    answer = reclaims.do(c.AckReclaims("w1", packed(item.reclaim_id), packed(item.token)), namespace="other")
    assert r.RECLAIM_VERDICTS[answer.verdicts[0]] == "unknown"
    assert reclaims.do(c.ClaimReclaims("disk", "w1", 5, 1000), namespace="other").items == ()
    assert reclaims.ack(item) == "ok"


def test_as_many_tokens_as_ids(reclaims: Reclaims) -> None:
    assert reclaims.code(c.AckReclaims("w1", packed(1, 2), packed(1))) == "malformed"
    assert reclaims.code(c.RenewReclaims("w1", packed(1), packed(1, 2), 1000)) == "malformed"


def test_many_are_acknowledged_at_once_each_for_itself(reclaims: Reclaims) -> None:
    reclaims.garbage("a", "b")
    one, two = reclaims.claim().items
    ids, tokens = packed(one.reclaim_id, two.reclaim_id, one.reclaim_id), packed(one.token, two.token + 1, one.token)
    answer = reclaims.do(c.AckReclaims("w1", ids, tokens))
    assert [r.RECLAIM_VERDICTS[byte] for byte in answer.verdicts] == ["ok", "not_holder", "already_done"]


# --- slow and crashed workers ---------------------------------------------------------------------------------------


def test_a_claim_that_ran_out_goes_to_another_and_the_late_ack_is_refused(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    slow = reclaims.one("w1")
    reclaims.pass_time(A_CLAIM)
    assert reclaims.kinds() == ["reclaim_pending"]
    quick = reclaims.one("w2")
    assert quick.reclaim_id == slow.reclaim_id and quick.token > slow.token and quick.attempt == 2
    assert reclaims.ack(slow, "w1") == "not_holder"
    assert reclaims.renew(slow, "w1") == "not_holder"
    assert reclaims.ack(quick, "w2") == "ok"
    assert reclaims.ack(slow, "w1") == "already_done"
    assert reclaims.machine.state.reclaimed == 1


def test_an_ack_between_the_end_of_the_claim_and_the_next_one_counts(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    item = reclaims.one("w1")
    reclaims.pass_time(A_CLAIM)
    assert reclaims.renew(item) == "not_holder", "what ran out is not renewed"
    assert reclaims.code(c.NackReclaim("w1", item.reclaim_id, item.token, "x")) == "not_holder"
    assert reclaims.ack(item) == "ok", "it was done, and nobody else has begun"
    assert reclaims.claim("w2").items == ()


def test_a_renewed_claim_lasts(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    item = reclaims.one("w1")
    for _ in range(5):
        reclaims.pass_time(A_CLAIM // 2)
        assert reclaims.renew(item) == "ok"
    assert reclaims.claim("w2").items == ()
    reclaims.pass_time(A_CLAIM)
    assert reclaims.one("w2").attempt == 2


def test_claims_that_run_out_again_and_again_end_as_a_dead_letter(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert reclaims.one().attempt == attempt
        reclaims.pass_time(A_CLAIM)
    assert reclaims.kinds() == ["reclaim_dead"]
    assert reclaims.claim().items == ()


STEPS = ("claim", "effect", "ack", "answer")


class Files:
    """What the workers clean up: it keeps the newest token it saw and refuses older ones, as every effect should."""

    def __init__(self) -> None:
        self.present = {"a": "old"}
        self.newest: dict[str, int] = {}
        self.deleted: list[str] = []
        self.reached = 0

    def delete(self, item: r.Reclaim) -> None:
        self.reached += 1
        if item.token >= self.newest.get(item.resource_id, 0):
            self.newest[item.resource_id] = item.token
            if item.resource_id in self.present:
                self.deleted.append(self.present.pop(item.resource_id))


@pytest.mark.parametrize("killed_before", STEPS)
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_worker_killed_at_any_step_leaves_one_effect(killed_before: str, comes_back: bool) -> None:
    """I8. The first worker dies before the step; with `comes_back` it was only paused and goes on, when the second
    one is done and the id already stands for a new file."""
    reclaims, files = Reclaims(), Files()
    reclaims.garbage("a")
    had: list[r.Reclaim] = []

    def work(steps: Sequence[str]) -> None:
        for step in steps:
            if step == "claim":
                had.extend(reclaims.claim("w1", 1).items)
            elif step == "effect" and had:
                files.delete(had[0])
            elif step == "ack" and had:
                reclaims.ack(had[0], "w1")

    at = STEPS.index(killed_before)
    work(STEPS[:at])
    reclaims.pass_time(A_CLAIM)
    for item in reclaims.claim("w2").items:
        files.delete(item)
        assert reclaims.ack(item, "w2") == "ok"
    files.present["a"] = "new"
    reclaims.do(c.PutResources(("a",), "disk", "file", pinned=True))
    if comes_back:
        work(STEPS[at:])
    assert files.reached >= 1 and files.deleted == ["old"] and files.present == {"a": "new"}
    assert reclaims.machine.state.reclaimed == 1


def test_two_workers_never_have_one_item(reclaims: Reclaims) -> None:
    names = tuple(f"r{number}" for number in range(50))
    reclaims.garbage(*names)
    handed = [item.resource_id for turn in range(10) for item in reclaims.claim(f"w{turn % 2}", 5).items]
    assert sorted(handed) == sorted(names)


# --- failures -------------------------------------------------------------------------------------------------------


def test_what_fails_is_tried_again_later_and_later(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    for attempt in range(1, 4):
        answer = reclaims.nack(reclaims.one())
        assert answer == r.ReclaimNacked(dead=False, attempt=attempt, retry_in_ms=BACK_OFF_MS << attempt - 1)
        reclaims.pass_time(answer.retry_in_ms - 1)
        assert reclaims.claim().items == ()
        reclaims.pass_time(TICK_MS + 1)
        assert reclaims.kinds() == ["reclaim_pending"]
    assert reclaims.nack(reclaims.one(), retry_in_ms=77).retry_in_ms == 77, "the worker knows better"


def test_the_last_failure_makes_a_dead_letter(reclaims: Reclaims) -> None:
    reclaims.garbage("a", "b")
    for _ in range(MAX_ATTEMPTS):
        reclaims.pass_time(MAX_BACK_OFF_MS)
        (item,) = reclaims.claim(most=1).items
        while item.resource_id != "a":
            assert reclaims.ack(item) == "ok"
            (item,) = reclaims.claim(most=1).items
        answer = reclaims.nack(item, retry_in_ms=0)
    assert answer == r.ReclaimNacked(dead=True, attempt=MAX_ATTEMPTS, retry_in_ms=0)
    assert reclaims.kinds() == ["reclaim_dead"]
    assert reclaims.code(c.AcquireLease("a", "ann", 1000)) == "resource_reclaiming"


def test_a_lane_in_which_everything_fails_closes_and_is_tried_one_at_a_time(reclaims: Reclaims) -> None:
    reclaims.garbage(*(f"r{number}" for number in range(20)))
    for item in reclaims.claim(most=LANE_FAILURES).items:
        reclaims.nack(item, retry_in_ms=60_000)
    closed = reclaims.claim()
    assert (closed.items, closed.left, closed.retry_in_ms) == ((), 0, BACK_OFF_MS)
    reclaims.pass_time(BACK_OFF_MS)
    probe = reclaims.claim()
    assert len(probe.items) == 1 and probe.left == 0, "half open"
    waiting = reclaims.claim("w2")
    assert waiting.items == () and waiting.retry_in_ms is None, "nobody is told to ask again at once"
    reclaims.nack(probe.items[0], retry_in_ms=60_000)
    assert reclaims.claim().retry_in_ms == 2 * BACK_OFF_MS, "closed for longer"
    reclaims.pass_time(2 * BACK_OFF_MS)
    (probe,) = reclaims.claim().items
    assert reclaims.ack(probe) == "ok"
    assert len(reclaims.claim().items) == 20 - LANE_FAILURES - 2, "one success opens it"


def test_a_probe_whose_worker_dies_is_followed_by_another(reclaims: Reclaims) -> None:
    reclaims.garbage(*(f"r{number}" for number in range(8)))
    for item in reclaims.claim(most=LANE_FAILURES).items:
        reclaims.nack(item, retry_in_ms=60_000)
    reclaims.pass_time(BACK_OFF_MS)
    assert len(reclaims.claim().items) == 1
    reclaims.pass_time(A_CLAIM + TICK_MS)
    assert len(reclaims.claim().items) == 1


def test_a_broken_kind_never_blocks_others(reclaims: Reclaims) -> None:
    """The broken one is first in turn and has far more; still the good ones go at the pace they would have alone."""
    reclaims.garbage(*(f"bad{number}" for number in range(500)), kind="broken")
    reclaims.garbage(*(f"good{number}" for number in range(40)), kind="file")
    reclaims.garbage(*(f"fine{number}" for number in range(40)), kind="row")
    done, turns = 0, 0
    while done < 80:
        turns += 1
        assert turns <= 30, "three kinds take turns of ten: 80 take about 24"
        for item in reclaims.claim(most=10).items:
            if item.kind == "broken":
                reclaims.nack(item)
            else:
                done += reclaims.ack(item) == "ok"
        reclaims.pass_time(1)


def test_kinds_take_turns(reclaims: Reclaims) -> None:
    for kind in ("x", "y", "z"):
        reclaims.garbage(*(f"{kind}{number}" for number in range(4)), kind=kind)
    assert [item.kind for item in reclaims.claim(most=6).items] == ["x", "y", "z", "x", "y", "z"]
    assert [item.kind for item in reclaims.claim(most=1).items] == ["x"]
    assert [item.kind for item in reclaims.claim(most=1).items] == ["y"]
    assert [item.kind for item in reclaims.claim(most=2).items] == ["z", "x"]


def test_a_worker_gets_only_the_kinds_it_asks_for(reclaims: Reclaims) -> None:
    for kind in ("x", "y", "z"):
        reclaims.garbage(f"{kind}0", kind=kind)
    assert [item.kind for item in reclaims.claim(kinds=("y", "never")).items] == ["y"]
    assert [item.kind for item in reclaims.claim(kinds=("z", "x")).items] == ["z", "x"]
    assert reclaims.claim().items == ()


def test_a_provider_gets_only_its_own(reclaims: Reclaims) -> None:
    reclaims.garbage("a", provider="disk")
    reclaims.garbage("b", provider="db")
    assert [item.resource_id for item in reclaims.claim(provider="db").items] == ["b"]
    assert reclaims.claim(provider="nobody").items == ()


# --- dead letters ---------------------------------------------------------------------------------------------------


def test_dead_letters_can_be_tried_again(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    reclaims.fail_for_good()
    assert reclaims.do(c.RetryReclaims("disk", "other", 10)) == r.DeadLettersMoved(0, 0)
    assert reclaims.do(c.RetryReclaims("disk", "file", 10)) == r.DeadLettersMoved(1, 0)
    item = reclaims.one()
    assert item.attempt == 1, "all attempts again"
    assert reclaims.ack(item) == "ok"


def test_dead_letters_can_be_purged(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    reclaims.fail_for_good()
    assert reclaims.do(c.PurgeReclaims("disk", "", 10)) == r.DeadLettersMoved(1, 0)
    assert reclaims.kinds() == ["reclaim_purged"]
    assert reclaims.machine.state.reclaimed == 0
    assert reclaims.machine.counts().names == 0
    reclaims.garbage("a")


def test_the_last_worker_may_still_say_that_a_dead_letter_is_done(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    for _ in range(MAX_ATTEMPTS):
        item = reclaims.one()
        reclaims.pass_time(A_CLAIM)
    assert reclaims.ack(item) == "ok"
    assert reclaims.do(c.RetryReclaims("disk", "", 10)) == r.DeadLettersMoved(0, 0)


def test_dead_letters_are_moved_so_many_at_a_time(reclaims: Reclaims) -> None:
    reclaims.garbage("a", "b", "c")
    for _ in range(MAX_ATTEMPTS):
        reclaims.claim()
        reclaims.pass_time(A_CLAIM)
    assert reclaims.do(c.RetryReclaims("disk", "", 2)) == r.DeadLettersMoved(2, 1)
    assert reclaims.do(c.PurgeReclaims("disk", "", 2)) == r.DeadLettersMoved(1, 0)


def test_a_repeated_claim_gets_the_same_items(reclaims: Reclaims) -> None:
    """A worker whose answer was lost asks again under the same request id."""
    reclaims.garbage("a", "b")
    ask = c.ClaimReclaims("disk", "w1", 1, CLAIM_MS)
    first = reclaims.do(ask, request_id=b"once")
    assert reclaims.do(ask, request_id=b"once") == first
    assert len(reclaims.claim("w2").items) == 1


def test_limits_of_a_claim(reclaims: Reclaims) -> None:
    assert reclaims.code(c.ClaimReclaims("disk", "w1", 0, CLAIM_MS)) == "malformed"
    assert reclaims.code(c.ClaimReclaims("disk", "w1", MAX_CLAIMS + 1, CLAIM_MS)) == "malformed"
    assert reclaims.code(c.ClaimReclaims("disk", "w1", 1, 1)) == "malformed"
    reclaims.do(c.PutNamespace(10, 10, 10, 10, 6), namespace="full")
    put = c.PutResources(("a",), "disk", "k", safety_buffer_ms=0)
    reclaims.entry(encode_command(put, "full"))
    reclaims.do(c.PutNamespace(10, 10, 10, 10, 0), namespace="full")
    claim = encode_command(c.ClaimReclaims("disk", "w" * 60, 1, CLAIM_MS), "full")
    assert len(reclaims.entry(claim)[0].items) == 1, "a namespace over its quota is emptied by its workers"
