"""Clean-ups that are given back before they were begun, and what is to be seen of lanes among many others."""

from __future__ import annotations

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.limits import LANE_FAILURES, MAX_ATTEMPTS, MAX_KINDS
from coordinator.machine.machine import Machine
from tests.machine.test_reclaims import A_CLAIM, CLAIM_MS, Reclaims
from tests.machine.twin import packed

CLAIM = c.ClaimReclaims("disk", "w1", 10, CLAIM_MS)


def returning(*items: r.Reclaim, worker: str = "w1", **more: object) -> c.ReturnReclaims:
    ids, tokens = [item.reclaim_id for item in items], [item.token for item in items]
    return c.ReturnReclaims(worker, packed(*ids), packed(*tokens), **more)  # type: ignore[arg-type]


def verdicts(answer: r.ReclaimsAnswered) -> list[str]:
    return [r.RECLAIM_VERDICTS[byte] for byte in answer.verdicts]


@pytest.fixture
def reclaims() -> Reclaims:
    return Reclaims()


def test_what_is_given_back_is_anothers_at_once_and_was_no_attempt(reclaims: Reclaims) -> None:
    reclaims.garbage("a", "b")
    items = reclaims.claim("w1").items
    for _ in range(2 * max(MAX_ATTEMPTS, LANE_FAILURES)):
        assert verdicts(reclaims.do(returning(*items))) == ["ok", "ok"]
        assert reclaims.kinds() == ["reclaim_pending", "reclaim_pending"]
        items = reclaims.claim("w1").items
        assert [(item.resource_id, item.attempt) for item in items] == [("a", 1), ("b", 1)]
    reclaims.do(returning(*items))
    (lane,) = reclaims.machine.lanes("default", "disk", "file")
    assert (lane.pending, lane.claimed, lane.failures, lane.closed_for_ms) == (2, 0, 0, 0)
    assert [item.attempt for item in reclaims.claim("w2").items] == [1, 1]


def test_only_who_has_it_gives_it_back(reclaims: Reclaims) -> None:
    reclaims.garbage("a", "b")
    a, b = reclaims.claim("w1").items
    assert verdicts(reclaims.do(returning(a, b, worker="w2"))) == ["not_holder", "not_holder"]
    unknown = r.Reclaim(a.reclaim_id + 7, "a", "file", a.token, 1, 0)
    assert verdicts(reclaims.do(returning(a, a, unknown))) == ["ok", "not_holder", "unknown"]
    reclaims.pass_time(A_CLAIM)
    assert verdicts(reclaims.do(returning(b))) == ["not_holder"], "its time is over, and that was an attempt"
    assert [item.attempt for item in reclaims.claim("w2").items] == [1, 2]
    assert verdicts(reclaims.do(returning(a, b))) == ["not_holder", "not_holder"]
    assert reclaims.code(c.ReturnReclaims("w1", packed(1), packed(1, 2))) == "malformed"


def test_a_claim_that_was_given_back_begins_anew_under_its_id(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    (first,) = reclaims.do(CLAIM, request_id=b"id").items
    assert verdicts(reclaims.do(returning(first, request_id=b"id", asked=reclaims.index))) == ["ok"]
    (second,) = reclaims.do(CLAIM, request_id=b"id").items
    assert second.token > first.token and second.attempt == 1


def test_a_claim_asked_for_again_is_not_taken_away(reclaims: Reclaims) -> None:
    reclaims.garbage("a")
    (item,) = reclaims.do(CLAIM, request_id=b"id").items
    asked = reclaims.index
    assert reclaims.do(CLAIM, request_id=b"id").items == (item,)
    assert reclaims.code(returning(item, request_id=b"id", asked=asked)) == "asked_again"
    assert reclaims.renew(item) == "ok"
    assert reclaims.do(CLAIM, request_id=b"id").items == (item,)


def test_the_one_try_of_a_closed_lane_that_is_given_back_is_tried_by_another(reclaims: Reclaims) -> None:
    reclaims.garbage(*"abcdefg")
    for _ in range(LANE_FAILURES):
        reclaims.nack(reclaims.one(), retry_in_ms=CLAIM_MS * 100)
    (lane,) = reclaims.machine.lanes("default", "disk", "file")
    reclaims.pass_time(lane.closed_for_ms)
    item = reclaims.one()
    assert reclaims.claim("w2").items == ()
    reclaims.do(returning(item))
    assert len(reclaims.claim("w2").items) == 1


def test_other_lanes_hide_none() -> None:
    machine, providers = Machine(), 21
    quotas = c.PutNamespace(*[1 << 40] * 7)
    machine.apply(1, 0, [encode_command(quotas, "big"), encode_command(quotas, "small")])
    for n in range(providers):
        puts = [c.PutResources((f"{n}/{k}",), f"p{n}", f"k{k}", safety_buffer_ms=0) for k in range(MAX_KINDS)]
        machine.apply(2 + n, 0, [encode_command(put, "big") for put in puts])
    mine = c.PutResources(("mine",), "p", "k0", safety_buffer_ms=0)
    machine.apply(2 + providers, 0, [encode_command(mine, "small")])
    while machine.state.unreferenced.count:
        machine.apply(machine.revision + 1, 0, [])
    for provider in ("", "p"):
        for kind in ("", "k0"):
            assert [(lane.provider, lane.kind) for lane in machine.lanes("small", provider, kind)] == [("p", "k0")]
    last = f"k{MAX_KINDS - 1}"
    of_all = {(lane.provider, lane.kind) for lane in machine.lanes("big", "", last)}
    assert of_all == {(f"p{n}", last) for n in range(providers)}
    assert [lane.pending for lane in machine.lanes("big", "p20", last)] == [1]
    assert machine.lanes("small", "p20", "") == machine.lanes("small", "", last) == []
