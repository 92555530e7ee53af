"""A task's lease, its lock and its clean-up commit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from tests.machine.crew import REVOKED_MS, RULES, TICK_MS, Crew


@pytest.fixture
def crew() -> Crew:
    return Crew()


# --- locks --------------------------------------------------------------------------------------------------------


def test_a_task_takes_its_lock_under_its_own_token_and_frees_it_when_done(crew: Crew) -> None:
    crew.put(b"x", lock_key="k")
    task = crew.take_one()
    view = crew.machine.lock("default", "k")
    assert view is not None
    [holder] = view.holders
    assert (holder.client_id, holder.fencing_token, holder.ttl_ms) == ("w", task.token, REVOKED_MS)
    assert crew.machine.fencing_check("default", "k", task.token).current
    assert crew.complete(task) == ["ok"]
    assert crew.kinds() == ["task_completed", "lock_released"]
    assert crew.machine.lock("default", "k") is None


def test_its_lock_is_neither_renewed_nor_released_nor_entered_by_others_than_the_task(crew: Crew) -> None:
    crew.put(b"x", lock_key="k")
    task = crew.take_one()
    assert crew.code(c.RenewLock("k", "w", task.token, 1_000)) == "kept_by_task"
    assert crew.code(c.ReleaseLock("k", "w", task.token)) == "kept_by_task"
    assert crew.code(c.AcquireLock("k", "w", 1_000, 0)) == "kept_by_task"
    assert type(crew.lock("k", "other")).__name__ == "LockBusy"
    crew.now_ms += 1_000
    crew.renew(task)
    assert crew.holders("k") == ["w"]


def test_a_task_whose_lock_is_taken_is_blocked_and_blocks_nobody(crew: Crew) -> None:
    grant = crew.lock("k", "other")
    a, b, _ = (*crew.put(b"a", b"b", lock_key="k"), *crew.put(b"c"))
    assert (crew.state(a), crew.state(b)) == ("blocked", "blocked")
    assert [task.payload for task in crew.take(most=9)] == [b"c"]
    crew.unlock(grant)
    assert (crew.state(a), crew.state(b)) == ("ready", "blocked")
    task = crew.take_one()
    assert task.payload == b"a" and crew.take() == []
    assert crew.complete(task) == ["ok"]
    assert crew.take_one().payload == b"b"


def test_a_lock_that_is_taken_first_blocks_what_was_ready(crew: Crew) -> None:
    [a] = crew.put(b"a", lock_key="k")
    assert crew.state(a) == "ready"
    grant = crew.lock("k", "other")
    assert crew.state(a) == "blocked" and crew.take() == []
    crew.now_ms += 20_000
    crew.pass_time(0)
    assert crew.state(a) == "ready", "the hold ran out"
    assert crew.unlock(grant).code == "not_holder"


def test_waiters_for_the_lock_come_before_the_next_task(crew: Crew) -> None:
    crew.put(b"a", b"b", lock_key="k")
    task = crew.take_one()
    crew.lock("k", "waiting", block_ms=5_000)
    assert crew.complete(task) == ["ok"]
    assert crew.holders("k") == ["waiting"] and crew.take() == []
    view = crew.machine.lock("default", "k")
    assert view is not None
    crew.do(c.ReleaseLock("k", "waiting", view.holders[0].fencing_token))
    assert crew.take_one().payload == b"b"


def test_breaking_the_lock_takes_the_task_away(crew: Crew) -> None:
    crew.put(b"a", lock_key="k")
    task = crew.take_one()
    crew.do(c.BreakLock("k"))
    assert crew.kinds() == ["lock_broken", "task_revoked", "task_ready"]
    assert crew.complete(task) == ["not_holder"]
    again = crew.take_one("v")
    assert again.attempt == 1 and again.token > task.token


def test_a_revoked_task_loses_its_lock_and_is_first_for_it_again(crew: Crew) -> None:
    crew.put(b"a", b"b", lock_key="k")
    crew.take_one()
    crew.pass_time(REVOKED_MS + TICK_MS)
    assert crew.kinds() == ["task_revoked", "lock_expired", "task_ready"]
    assert crew.take_one("v").payload == b"a"


@pytest.mark.parametrize("how", ["fail", "return", "drop", "revoke"])
def test_every_end_of_a_task_frees_its_lock_in_the_same_entry(crew: Crew, how: str) -> None:
    [a, b] = crew.put(b"a", b"b", lock_key="k")
    task = crew.take_one()
    if how == "fail":
        crew.fail(task, retry_in_ms=1_000)
    elif how == "return":
        crew.give_back(task)
    else:
        crew.do(t.DropTask("q", a) if how == "drop" else t.RevokeTask("q", a))
    assert crew.machine.lock("default", "k") is None
    assert [each.task_id for each in crew.take(most=9)] == [a if how in ("return", "revoke") else b]


def test_dropping_a_ready_task_lets_the_next_for_the_lock_be_ready(crew: Crew) -> None:
    a, b = crew.put(b"a", b"b", lock_key="k")
    crew.do(t.DropTask("q", a))
    assert crew.state(b) == "ready"
    assert crew.do(t.PurgeTasks("q", "ready", 5)) == tr.TasksMoved(1, 0)


def test_one_lock_for_tasks_of_two_queues(crew: Crew) -> None:
    crew.do(replace(RULES, queue="r"))
    crew.put(b"q", lock_key="k")
    crew.put(b"r", lock_key="k", queue="r")
    task = crew.take_one()
    assert crew.take("v", queues=("r",)) == []
    crew.complete(task)
    assert [each.payload for each in crew.take("v", queues=("r",))] == [b"r"]


def test_a_lock_freed_under_ten_thousand_tasks_makes_one_ready(crew: Crew) -> None:
    grant = crew.lock("k", "other")
    for _ in range(10):
        crew.put(*[b"x"] * 100, lock_key="k")
    crew.unlock(grant)
    assert crew.kinds() == ["lock_released", "task_ready"]
    assert (crew.counts().ready, crew.counts().blocked) == (1, 999)


# --- resources ----------------------------------------------------------------------------------------------------


def registered(crew: Crew) -> None:
    crew.do(c.PutResources(("r",), "p", "file", None, 0))
    crew.entry()


def test_a_task_keeps_its_resource_and_its_end_queues_the_clean_up_in_the_same_entry(crew: Crew) -> None:
    crew.do(c.PutResources(("r",), "p", "file", None, 5_000))
    crew.put(b"x", resource_id="r")
    crew.pass_time(60_000)
    view = crew.machine.resource("default", "r")
    assert view is not None and view.state == "live" and view.leases == 1
    task = crew.take_one()
    assert crew.complete(task) == ["ok"]
    assert crew.kinds() == ["task_completed", "lease_released", "reclaim_pending"]


def test_what_a_task_keeps_is_kept_while_it_is_tried_again_or_dead() -> None:
    crew = Crew(max_attempts=1)
    crew.do(c.PutResources(("r",), "p", "file", None, 5_000))
    [task_id] = crew.put(b"x", resource_id="r")
    crew.fail(crew.take_one())
    crew.pass_time(60_000)
    view = crew.machine.resource("default", "r")
    assert crew.state(task_id) == "dead" and view is not None and view.state == "live"
    crew.do(t.PurgeTasks("q", "dead", 1))
    assert crew.kinds()[-1] == "reclaim_pending"


def test_a_reference_kept_by_a_task_is_not_released_by_a_client(crew: Crew) -> None:
    [task_id] = crew.put(b"x", resource_id="r")
    [lease], _ = crew.machine.lease_page("default", "", 0, 10)
    assert lease.client_id == f"task {task_id:016x}"
    assert crew.code(c.ReleaseLease("r", lease.client_id)) == "kept_by_task"
    assert crew.code(c.RenewLease(lease.lease_id, lease.client_id, 1_000)) == "kept_by_task"
    crew.do(t.DropTask("q", task_id))
    assert crew.machine.lease_page("default", "", 0, 10)[0] == []


def test_a_resource_that_is_being_reclaimed_takes_no_task(crew: Crew) -> None:
    crew.do(c.PutResources(("r",), "p", "file", None, 0))
    crew.pass_time(TICK_MS)
    assert crew.code(t.PutTasks("q", (t.NewTask(b"fine"), t.NewTask(b"x", resource_id="r")))) == "resource_reclaiming"


def test_a_resource_deleted_by_force_leaves_the_task_alone(crew: Crew) -> None:
    crew.do(c.PutResources(("r",), "p", "file", None, 5_000))
    crew.put(b"x", resource_id="r")
    crew.do(c.DeleteResource("r", force=True))
    crew.pass_time(40_000)
    assert crew.complete(crew.take_one()) == ["ok"]


def test_tasks_dropped_from_a_line_leave_nothing_in_it(crew: Crew) -> None:
    grant = crew.lock("k", "other", 100_000)
    [first] = crew.put(b"first", lock_key="k")
    for _ in range(500):
        [task_id] = crew.put(b"x", lock_key="k")
        crew.do(t.DropTask("q", task_id))
    [line] = [line for lines in crew.machine.state.lock_lines.values() for line in lines.values()]
    assert line.waiting == 1 and len(line.blocked) < 100
    others = crew.put(*[b"x"] * 500, lock_key="k")
    for task_id in others:
        crew.do(t.DropTask("q", task_id))
    assert line.waiting == 1 and len(line.blocked) < 100, "also when nothing comes after them"
    crew.unlock(grant)
    assert crew.take_one().task_id == first
