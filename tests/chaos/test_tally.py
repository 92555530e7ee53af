"""Each check that says how much it looked at is shown what it must find, and a run without. No Docker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos import histories, refusals, sightings, standing
from tests.chaos.records import Record
from tests.chaos.report import Report
from tests.chaos.scenarios import STALL_S, undisturbed
from tests.chaos.tally import Verdict, vacuous
from tests.chaos.test_verdicts import note


def event(kind: str, revision: int, **more: Any) -> Record:
    said: dict[str, Any] = {"key": "k", "owner": "o", "token": 0, "lease_id": "a", "waiter": "0", "incarnation": None}
    return note("event", float(revision), kind=kind, revision=revision, **{**said, **more})


def seen(node: str, at: float, term: int, *, lease: bool = True, leads: bool = True) -> Record:
    said = {"node": node, "endpoint": f"http://{node}", "asked": at - 0.1, "term": term, "commands": 0}
    return note("seen", at, **said, lease=lease, leads=leads)


def test_a_check_that_looked_at_nothing_is_a_failure() -> None:
    verdicts = [Verdict("I5", {"leases": 0, "looks": 2}), Verdict("I9", {"facts": 1})]
    assert vacuous(verdicts) == ["I5 was not looked at: leases is 0"]


def test_the_report_has_a_line_for_each_invariant() -> None:
    judged = [Verdict("I16", {"looks": 7}), Verdict("I5", {"looks": 2}, [], {"gaps": 0}), Verdict("I5", {"leases": 3})]
    report = Report(1.0, [], [], {"guarded writes": 3}, [], judged)
    assert report.document()["looked_at"] == {"I5": {"looks": 2, "gaps": 0, "leases": 3}, "I16": {"looks": 7}}
    assert "  I16  looks 7" in list(report.lines())
    assert vacuous(judged) == [], "what could not be looked at may well be nothing"


# --- I5, I16, I18 -----------------------------------------------------------------------------------------------------


def test_a_lease_that_nobody_renews_must_go_in_its_time() -> None:
    led = [seen("n1", at / 2, 3) for at in range(40)]
    taken, gone = note("forsaken", 1.0, lease_id="a", ttl_ms=2_000), note("forsaken_gone", 9.0, lease_id="a")
    soon = note("forsaken_there", lease_id="a", called=2.9)
    late = note("forsaken_there", lease_id="a", called=8.0)
    well = sightings.unrenewed_leases_go([*led, taken, soon, gone])
    assert (
        well.found == [] and well.looked_at["unrenewed leases gone"] == 1 and well.looked_at["available seconds"] > 10
    )
    assert len(sightings.unrenewed_leases_go([*led, taken, late, gone]).found) == 1
    assert len(sightings.unrenewed_leases_go([*led, taken, soon]).found) == 1
    assert sightings.unrenewed_leases_go([taken, late, gone]).found == [], "no leader was there in that time"


def test_two_leaders_of_a_term_and_an_old_lease_are_found() -> None:
    assert (
        sightings.one_leader(
            [seen("n1", 1.0, 3), seen("n2", 2.0, 4), seen("n1", 3.0, 4, lease=False, leads=False)]
        ).found
        == []
    )
    assert len(sightings.one_leader([seen("n1", 1.0, 3), seen("n2", 2.0, 3)]).found) == 1
    assert len(sightings.one_leader([seen("n1", 1.0, 3), seen("n2", 2.0, 4), seen("n1", 3.0, 3)]).found) == 1
    overlapping = [seen("n2", 2.0, 4), {**seen("n1", 2.5, 3), "asked": 1.9}]
    assert sightings.one_leader(overlapping).found == [], "it may have been before"


def test_a_process_over_its_caps_is_found() -> None:
    small = note("usage", node="n1", pid=1, rss=1 << 20, descriptors=30, threads=8)
    assert sightings.processes_stay_small([small, seen("n1", 1.0, 1)], 10).found == []
    for what, much in (("rss", 1 << 30), ("descriptors", 5_000), ("threads", 500)):
        assert sightings.processes_stay_small([small, {**small, what: much}], 10).found
    assert sightings.processes_stay_small([{**seen("n1", 1.0, 1), "commands": 10**6}], 10).found


# --- I10, I11 ---------------------------------------------------------------------------------------------------------


def operation(verb: str, called: float, result: list[Any] | None, **more: Any) -> Record:
    said: dict[str, Any] = {"kind": "locks", "client": "c", "key": "k", "arguments": [], "endpoint": "", "revision": 5}
    returned = None if result is None else called + 0.5
    return note("operation", called, verb=verb, called=called, returned=returned, result=result, **{**said, **more})


def test_a_stale_read_of_a_follower_is_found() -> None:
    granted = operation("acquire", 1.0, ["granted", 7])
    led = seen("n1", 0.5, 1)
    read = operation("read", 2.0, ["held", "c", 7], endpoint="http://n2")
    well = histories.linearizable_histories([led, granted, read])
    assert well.found == [] and well.looked_at == {
        "locks operations": 2, "leases operations": 0, "reads at followers": 1,
    }  # fmt: skip
    stale = operation("read", 2.0, ["free"], endpoint="http://n2")
    assert len(histories.linearizable_histories([led, granted, stale]).found) == 1
    unknown = operation("acquire", 1.0, None)
    assert histories.linearizable_histories([led, unknown, stale]).found == []


def test_a_lease_seen_after_its_end_is_found() -> None:
    lease = [operation("acquire", 1.0, ["leased", 9], kind="leases"), operation("release", 2.0, ["ok"], kind="leases")]
    gone, there = (
        operation("read", 3.0, [state], kind="leases", arguments=[9], endpoint="http://n2")
        for state in ("gone", "active")
    )
    assert histories.linearizable_histories([*lease, gone]).found == []
    assert len(histories.linearizable_histories([*lease, there]).found) == 1


def test_a_revision_that_goes_back_is_found() -> None:
    first, second = operation("read", 1.0, ["free"]), operation("read", 2.0, ["free"], revision=4)
    assert histories.revisions_rise([first, first]).found == []
    assert len(histories.revisions_rise([first, second]).found) == 1


# --- I12, I13, I14, I9 ------------------------------------------------------------------------------------------------

QUEUED = [
    event("lock_granted", 1, token=1),
    event("wait_begun", 2, waiter="1"),
    event("wait_begun", 3, waiter="2"),
    event("lock_released", 4),
]


def turns(*more: Record) -> tuple[list[str], list[str]]:
    order, free = standing.waiters_have_their_turn([*QUEUED, *more])
    return order.found, free.found


def test_waiters_get_the_lock_in_their_order_and_at_once() -> None:
    assert turns(event("lock_granted", 4, lease_id="b", token=2, waiter="1")) == ([], [])
    overtaken, _ = turns(event("lock_granted", 4, lease_id="b", token=2, waiter="2"))
    assert len(overtaken) == 1
    _, idle = turns(event("wait_begun", 5, waiter="3"))
    assert len(idle) >= 1


@pytest.mark.parametrize("end", ["wait_expired", "wait_cancelled"])
def test_a_grant_to_one_whose_wait_was_over_is_found(end: str) -> None:
    over, granted = event(end, 3, waiter="1"), event("lock_granted", 4, lease_id="b", token=2, waiter="1")
    order, _ = standing.waiters_have_their_turn([*QUEUED[:3], over, QUEUED[3], granted])
    assert len(order.found) == 1 and list(order.besides.values()) == [1]


def test_of_waiters_from_before_a_gap_nothing_is_said() -> None:
    told = [note("gap", revision=9), event("lock_released", 9), event("lock_granted", 9, lease_id="b", waiter="8")]
    order, free = standing.waiters_have_their_turn([*QUEUED[:3], *told])
    assert order.found == [] and free.found == []


COPY = {"holder": "h", "name": "x", "incarnation": "i1"}
PURGED = event("tombstone_purged", 5, key="x", incarnation="i1")


def test_a_tombstone_waits_for_its_holders_and_nobody_serves_the_dead() -> None:
    kept, dropped = note("kept", 1.0, **COPY), note("dropped", 4.0, **COPY)
    serving = note("serves", 6.0, holder="h", copies={"x": "i1"})
    assert standing.the_dead_stay_dead([kept, dropped, PURGED], []).found == []
    assert len(standing.the_dead_stay_dead([kept, PURGED], []).found) == 1
    assert len(standing.the_dead_stay_dead([kept, dropped, PURGED, serving], []).found) == 1
    assert len(standing.the_dead_stay_dead([kept, dropped], ["x"]).found) == 1
    anew = note("serves", 6.0, holder="h", copies={"x": "i2"})
    assert standing.the_dead_stay_dead([kept, dropped, PURGED, anew], []).found == []


def leased(lease_id: str, token: int, **more: Any) -> Record:
    return note("leased", lease_id=lease_id, name=f"r{lease_id}", token=token, **more)


def acquired(lease_id: str, token: int) -> Record:
    said = {"lease_id": lease_id, "token": token, "key": f"r{lease_id}", "owner": "client"}
    return event("lease_acquired", token, **said)


def test_every_acknowledged_write_is_there_or_was_ended() -> None:
    told = [
        note("fact", name="f"), leased("a", 1), note("held", key="k", token=2, until=2.0),
        acquired("a", 1), event("lock_granted", 2, token=2), event("lock_released", 3, token=2),
    ]  # fmt: skip
    assert standing.acknowledged_is_there(told, ["f"], ["a"]).found == []
    assert standing.acknowledged_is_there([*told, event("lease_expired", 4)], ["f"], []).found == []
    assert len(standing.acknowledged_is_there(told, [], ["a"]).found) == 1
    assert len(standing.acknowledged_is_there(told, ["f"], []).found) == 1
    for missing in (3, 4, 5):
        assert len(standing.acknowledged_is_there(told[:missing] + told[missing + 1 :], ["f"], ["a"]).found) == 1


def judged_with_a_gap(*before: Record, after: list[Record], there: str = "") -> tuple[list[str], dict[str, int]]:
    """The gap is told of at 10; the watch knew of the lease 1 before it, and of the lease 9 after it."""
    told = [acquired("1", 1), *before, note("gap", 10.0, revision=8), acquired("9", 9), *after]
    verdict = standing.acknowledged_is_there(told, [], set(there))
    return verdict.found, verdict.looked_at | verdict.besides


def test_a_gap_excuses_only_what_it_may_hide() -> None:
    found, counts = judged_with_a_gap(after=[leased("5", 5)])
    assert found == [] and counts["leases in a gap"] == 1 and counts["leases"] == 0 and counts["gaps in the watch"] == 1
    never_heard_of, _ = judged_with_a_gap(after=[leased("c", 12)], there="c")
    assert len(never_heard_of) == 1, "it began after the gap"
    vanished, counts = judged_with_a_gap(after=[leased("9", 9)])
    assert len(vanished) == 1 and counts["leases"] == 1, "it did not end in a gap that was before it"
    found, counts = judged_with_a_gap(leased("1", 1), after=[event("lease_released", 12, lease_id="1", token=1)])
    assert found == [] and counts["leases"] == 1 and counts["leases in a gap"] == 0


def test_what_was_there_after_a_gap_did_not_end_in_it() -> None:
    open_lease = leased("1", 1)
    assert judged_with_a_gap(open_lease, after=[])[0] == []
    assert judged_with_a_gap(open_lease, after=[note("promised", 30.0, until={"1": 9.0})])[0] == []
    kept = note("promised", 30.0, until={"1": 20.0})
    assert len(judged_with_a_gap(open_lease, after=[kept])[0]) == 1
    given_back = note("lease_released", 9.5, lease_id="1")
    assert judged_with_a_gap(open_lease, given_back, after=[kept])[0] == []
    forsaken = {**open_lease, "what": "forsaken"}
    assert len(judged_with_a_gap(forsaken, after=[note("forsaken_there", lease_id="1", called=10.5)])[0]) == 1


def test_a_hold_that_another_followed_before_a_gap_ended_before_it() -> None:
    held, granted = note("held", key="k", token=2, until=2.0), event("lock_granted", 2, token=2)
    found, counts = judged_with_a_gap(granted, held, after=[])
    assert found == [] and counts["locks in a gap"] == 1 and counts["locks"] == 0
    next_one = event("lock_granted", 3, token=3, lease_id="b")
    found, counts = judged_with_a_gap(granted, held, next_one, after=[])
    assert len(found) == 1 and counts["locks"] == 1
    still_held = note("held", 11.0, key="k", token=2, until=12.0)
    assert len(judged_with_a_gap(granted, after=[still_held])[0]) == 1


# --- I17, and who comes back ------------------------------------------------------------------------------------------


def test_a_refusal_that_leaves_something_behind_is_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        nodes = ("n1",)

        def endpoint(self, node: str) -> str:
            return node

    states = iter(range(1_000_000))

    def backups(leaves: bool) -> list[str]:
        monkeypatch.setattr(refusals, "taken", lambda *_: {"n1": next(states) if leaves else 0})
        verdict = refusals.nothing_refused_is_kept(Two(), tmp_path, [])  # type: ignore[arg-type]
        return verdict.found

    monkeypatch.setattr(refusals, "SETTLE_S", 0.01)
    monkeypatch.setattr(refusals, "bare_digest", lambda backup: backup)
    monkeypatch.setattr(refusals, "_knock", lambda *_: 1)
    assert backups(leaves=False) == []
    assert len(backups(leaves=True)) == 1


def test_one_that_comes_back_and_leads_is_found_unless_the_host_stood_still() -> None:
    class Three:
        nodes = ("n1", "n2", "n3")
        late_s = 0.0

        def wait_until_whole(self) -> None:
            """It is."""

        def wait_for_leader(self, _: object) -> tuple[str, int]:
            return "n2", 5

        def longest_stall_s(self, _: float) -> float:
            return self.late_s

    three: Any = Three()
    assert undisturbed(three, ("n2", 5), 0.0).startswith("and still")
    with pytest.raises(Exception, match="disturbed"):
        undisturbed(three, ("n1", 4), 0.0)
    three.late_s = STALL_S
    assert "stood still" in undisturbed(three, ("n1", 4), 0.0)
