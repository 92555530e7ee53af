"""Each verdict is shown what it must find, and a run in which there is nothing to find. Without Docker."""

from __future__ import annotations

from typing import Any

from tests.chaos import verdicts
from tests.chaos.records import Record, Recorder, read
from tests.chaos.report import Fault, Report, longest_gap_s
from tests.chaos.tally import Verdict, vacuous


def texts(*judged: Verdict) -> list[str]:
    return [text for verdict in judged for text in verdict.found]


GOOD_QUEUE: Record = {"completed": 2, "dead": 0, "ready": 0, "leased": 0}


def note(what: str, at: float = 1.0, **more: Any) -> Record:
    return {"at": at, "who": "client", "what": what, **more}


def event(kind: str, revision: int, *, key: str = "k", lease: str = "a", token: int = 0, at: float = 1.0) -> Record:
    said: dict[str, Any] = {"kind": kind, "revision": revision, "key": key, "owner": "o", "token": token}
    return note("event", at, **said, lease_id=lease)


# --- locks with fencing -----------------------------------------------------------------------------------------------


def test_tokens_that_rise_are_well() -> None:
    assert verdicts.tokens_rise([("k", 1, "a"), ("k", 1, "a"), ("k", 3, "b"), ("j", 2, "a")]) == []


def test_a_token_that_falls_is_found() -> None:
    assert len(verdicts.tokens_rise([("k", 1, "a"), ("k", 3, "b"), ("k", 1, "a")])) == 1


def test_a_token_of_two_holders_is_found() -> None:
    assert len(verdicts.tokens_rise([("k", 1, "a"), ("k", 1, "b")])) == 1


def test_every_write_begins_with_what_the_last_one_left() -> None:
    writes = [("k", 1, "a", 0, 1), ("k", 2, "b", 1, 2), ("j", 1, "a", 0, 1)]
    assert verdicts.no_lost_update(writes, [("k", 2), ("j", 1)]) == []


def test_a_lost_update_is_found() -> None:
    assert len(verdicts.no_lost_update([("k", 1, "a", 0, 1), ("k", 2, "b", 0, 1)], [("k", 1)])) == 1
    assert len(verdicts.no_lost_update([("k", 1, "a", 0, 1)], [("k", 0)])) == 1


def test_a_late_write_must_be_refused_and_the_loss_told() -> None:
    overtaken = note("overtaken", key="k", token=1, by=2)

    def woken(verdict: str, state: str) -> list[str]:
        return verdicts.late_writes_refused([overtaken, note("awake", key="k", token=1, verdict=verdict, state=state)])

    assert woken("refused", "LOST") == []
    assert len(woken("accepted", "LOST")) == 1
    assert len(woken("refused", "HELD")) == 1
    assert len(verdicts.late_writes_refused([overtaken])) == 1
    not_overtaken = note("awake", key="k", token=9, verdict="accepted", state="LOST")
    assert verdicts.late_writes_refused([not_overtaken]) == []


def test_a_guard_that_nobody_came_to_shows_nothing() -> None:
    admitted, writes, balances = [("k", 1, "a")], [("k", 1, "a", 0, 1)], [("k", 1)]
    late = [note("overtaken", key="k", token=1), note("awake", key="k", token=1, verdict="refused", state="LOST")]
    well = verdicts.guard_holds(admitted, writes, balances, late)
    assert well.found == [] and vacuous([well]) == []
    assert len(vacuous([verdicts.guard_holds([], [], [], [])])) == 3
    assert len(verdicts.guard_holds(admitted, writes, [], late[:1]).found) == 2


# --- the log ----------------------------------------------------------------------------------------------------------


def test_a_log_in_order_is_well() -> None:
    told = [
        event("lock_granted", 1, token=1),
        event("lock_released", 2, token=1),
        event("lock_granted", 3, lease="b", token=2),
    ]
    assert texts(*verdicts.log_is_in_order(told)) == []


def test_two_holds_at_once_falling_tokens_and_falling_revisions_are_found() -> None:
    first = event("lock_granted", 5, token=5)
    assert "I3" in texts(*verdicts.log_is_in_order([first, event("lock_granted", 6, lease="b", token=6)]))[0]
    released = event("lock_released", 6, token=5)
    assert "I2" in texts(*verdicts.log_is_in_order([first, released, event("lock_granted", 7, lease="b", token=4)]))[0]
    assert len(texts(*verdicts.log_is_in_order([first, event("lock_released", 4, token=5)]))) == 1


def test_grants_and_holds_are_what_is_counted() -> None:
    told = [
        event("wait_begun", 1), event("lock_granted", 1, token=1), event("lock_granted", 2, token=1),
        event("lock_released", 3, token=1), event("lease_acquired", 4, token=2),
    ]  # fmt: skip
    tokens, holds = verdicts.log_is_in_order(told)
    assert tokens.looked_at == {"grants": 1} and holds.looked_at == {"holds": 1}
    assert len(vacuous(verdicts.log_is_in_order([told[0], told[-1]]))) == 2


def test_events_that_are_gone_are_no_violation() -> None:
    told = [event("lock_granted", 1, token=1), note("gap", revision=9), event("lock_released", 9, lease="b", token=3)]
    assert texts(*verdicts.log_is_in_order(told)) == []


def test_an_expiry_within_what_was_promised_is_found() -> None:
    expired = event("lease_expired", 3, lease="00a", at=10.0)
    assert texts(verdicts.nothing_expires_early([note("promised", until={"00a": 9.9}), expired])) == []
    assert len(texts(verdicts.nothing_expires_early([note("promised", until={"00a": 10.1}), expired]))) == 1
    lock = [event("lock_granted", 1, token=7), event("lock_expired", 2, token=7, at=10.0)]
    assert texts(verdicts.nothing_expires_early([note("held", key="k", token=7, until=9.9), *lock])) == []
    assert len(texts(verdicts.nothing_expires_early([note("held", key="k", token=7, until=10.1), *lock]))) == 1


def test_an_unrenewed_lease_may_not_go_before_its_time() -> None:
    forsaken = note("forsaken", 5.1, lease_id="a", sent=5.0, ttl_ms=2_000)
    assert texts(verdicts.nothing_expires_early([forsaken, event("lease_expired", 3, at=7.0)])) == []
    assert len(texts(verdicts.nothing_expires_early([forsaken, event("lease_expired", 3, at=6.9)]))) == 1


def test_only_expiries_with_a_promise_are_looked_at() -> None:
    waited, unknown = event("wait_expired", 1, at=9.0), event("lease_expired", 2, lease="b", at=9.0)
    nothing = verdicts.nothing_expires_early([waited, unknown])
    assert len(vacuous([nothing])) == 1 and list(nothing.besides.values()) == [1]
    known = [note("promised", until={"a": 8.0}), event("lease_expired", 3, at=9.0)]
    assert list(verdicts.nothing_expires_early([*known, waited, unknown]).looked_at.values()) == [1]


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_lost_lease_is_well_when_it_was_told() -> None:
    leased, expired = note("leased", lease_id="a"), event("lease_expired", 3, lease="a")
    assert verdicts.losses_are_told([leased, note("lease_lost", lease_id="a"), expired], []) == []
    assert verdicts.losses_are_told([leased], ["a"]) == []
    assert verdicts.losses_are_told([leased, note("lease_released", lease_id="a")], []) == []


def test_a_loss_that_was_not_told_is_found() -> None:
    leased = note("leased", lease_id="a")
    assert len(verdicts.losses_are_told([leased, event("lease_expired", 3, lease="a")], [])) == 1
    assert len(verdicts.losses_are_told([leased], [])) == 1


# --- what is reclaimed ------------------------------------------------------------------------------------------------

CIRCLE = [
    note("circle", number=1, ids=["x", "y"], shared="s"),
    note("circle_leased", number=1, lease_id="l"),
    note("circle_leased", number=1, lease_id="m"),
    note("circle_left", 5.0, number=1, lease_id="l", lost=False),
]
LEFT = [*CIRCLE, note("circle_left", 8.0, number=1, lease_id="m", lost=True, until=7.0)]
CLEANED = [("x", "r1", 1, "w", 7.5), ("y", "r2", 1, "w", 9.0)]


def test_a_circle_that_was_let_go_is_cleaned_up() -> None:
    assert texts(*verdicts.only_garbage_goes_once(LEFT, CLEANED)) == []
    assert verdicts.Circles(LEFT).garbage() == {"x": 7.0, "y": 7.0} and verdicts.Circles(LEFT).reachable() == {"s"}
    assert verdicts.Circles(CIRCLE).garbage() == {} and verdicts.Circles(CIRCLE).reachable() == {"x", "y", "s"}
    assert texts(*verdicts.garbage_is_gone(["x", "y"], ["s"], CLEANED, ["s"])) == []


def test_a_reachable_resource_that_was_reclaimed_is_found() -> None:
    assert len(texts(*verdicts.only_garbage_goes_once(CIRCLE, CLEANED))) == 2
    assert len(texts(*verdicts.only_garbage_goes_once(LEFT, [("s", "r3", 1, "w", 9.0)]))) == 1
    assert len(texts(*verdicts.only_garbage_goes_once(LEFT, [("x", "r1", 1, "w", 6.9)]))) == 1
    assert len(texts(*verdicts.garbage_is_gone([], ["x", "y", "s"], [], ["x", "y"]))) == 1


def test_a_clean_up_that_happened_twice_is_found() -> None:
    assert len(texts(*verdicts.only_garbage_goes_once(LEFT, [*CLEANED, ("x", "r4", 2, "v", 9.5)]))) == 1


def test_garbage_that_is_left_is_found() -> None:
    assert len(texts(*verdicts.garbage_is_gone(["x", "y"], ["s"], CLEANED[:1], ["s"]))) == 1
    assert len(texts(*verdicts.garbage_is_gone(["x", "y"], ["s"], CLEANED, ["s", "x"]))) == 1


def test_clean_ups_and_tasks_that_there_were_none_of_show_nothing() -> None:
    nothing = [*verdicts.only_garbage_goes_once([], []), *verdicts.garbage_is_gone([], [], [], [])]
    queue = {**GOOD_QUEUE, "completed": 0}
    assert {verdict.invariant for verdict in nothing} == {"I6", "I7", "I8"}
    assert len(vacuous([*nothing, verdicts.each_task_once([], [], queue)])) == 5


# --- dispatch and calls -----------------------------------------------------------------------------------------------


def test_every_task_has_one_effect() -> None:
    fed = [note("fed", number=1), note("fed", number=2)]
    effects = [(1, "t1", 1, "w"), (2, "t2", 1, "w")]
    assert texts(verdicts.each_task_once(fed, effects, GOOD_QUEUE)) == []
    assert len(texts(verdicts.each_task_once(fed, effects[:1], GOOD_QUEUE))) == 1
    assert len(texts(verdicts.each_task_once(fed, [*effects, (2, "t3", 1, "v")], GOOD_QUEUE))) == 1
    assert len(texts(verdicts.each_task_once(fed, [*effects, (3, "t3", 1, "v")], GOOD_QUEUE))) == 1
    assert len(texts(verdicts.each_task_once(fed, effects, {**GOOD_QUEUE, "completed": 3}))) == 1
    assert len(texts(verdicts.each_task_once(fed, effects, {**GOOD_QUEUE, "dead": 1}))) == 1


def test_a_call_that_fails_in_a_rolling_restart_is_found() -> None:
    failed = note("failed", 12.0, began=6.0, error="Unavailable", text="no node took it")
    assert len(verdicts.no_call_fails([failed], [(5.0, 10.0)])) == 1
    assert verdicts.no_call_fails([failed], [(10.0, 20.0)]) == []


# --- records and the report -------------------------------------------------------------------------------------------


def test_a_line_cut_short_by_a_kill_is_none(tmp_path: Any) -> None:
    recorder = Recorder(tmp_path, "one")
    recorder.note("fed", number=1)
    recorder.close()
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"at": 3, "wh')
    assert [record["number"] for record in read(tmp_path)] == [1]


def test_the_gap_of_a_fault_is_the_one_it_lies_in() -> None:
    assert longest_gap_s([1.0, 2.0, 5.0, 5.5, 9.0]) == 3.5
    assert longest_gap_s([1.0, 2.0, 5.0, 5.5, 9.0], (1.5, 4.0)) == 3.0
    assert longest_gap_s([], (1.0, 2.0)) == 0.0


def test_the_report_has_every_figure_and_every_violation() -> None:
    told = [note("acknowledged", at, kind="task") for at in (1.0, 2.0, 4.5)] + [
        note("acknowledged", 3.0, kind="effect")
    ]
    report = Report(60.0, [Fault("kill_all", 3, 1.5, 5.0)], told, {"tasks done": 2}, ["something is wrong"])
    document = report.document()
    assert document["faults"] == {"kill_all": {"times": 1, "longest_gap_s": 2.5}}
    assert document["operations"] == {"effect": 1, "task": 3} and document["longest_gap_s"] == 2.5
    text = "\n".join(report.lines())
    assert "kill_all" in text and "task 3" in text and "violations: 1\n  something is wrong" in text
