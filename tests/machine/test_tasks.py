"""Tasks: handed out in order, kept by who renews, taken from who does not, answered by token, tried again, given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.machine import commands as c
from coordinator.machine import limits
from coordinator.machine import results as r
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine.codec import encode_command
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY
from coordinator.machine.machine import Machine
from tests.machine.crew import REVOKED_MS, RULES, TICK_MS, Crew, packed


@pytest.fixture
def crew() -> Crew:
    return Crew()


# --- order --------------------------------------------------------------------------------------------------------


def test_who_came_first_goes_first_and_greater_priority_before(crew: Crew) -> None:
    crew.put(b"a", b"b")
    crew.put(b"urgent", priority=9)
    crew.put(b"c")
    assert [task.payload for task in crew.take(most=10)] == [b"urgent", b"a", b"b", b"c"]
    assert crew.take() == []


def test_what_comes_back_is_first_again(crew: Crew) -> None:
    crew.put(b"a", b"b", b"c")
    a, b = crew.take(most=2)
    assert crew.give_back(b) == ["ok"]
    assert crew.give_back(a) == ["ok"]
    assert [(task.payload, task.attempt) for task in crew.take(most=3)] == [(b"a", 1), (b"b", 1), (b"c", 1)]


def test_a_delayed_task_is_not_handed_out_before_its_time(crew: Crew) -> None:
    crew.put(b"later", delay_ms=1_000)
    crew.now_ms += 400
    result = crew.do(t.AcquireTasks(("q",), "w", 1))
    assert result == tr.TasksAcquired((), 0, 600)
    crew.now_ms += 599
    assert crew.take() == []
    assert not crew.machine.dispatch.acquirable("default", ("q",), "w")
    assert crew.machine.dispatch.acquirable("default", ("q",), "w", crew.now_ms + 1)
    crew.pass_time(1 + TICK_MS)
    assert crew.kinds() == ["task_ready"]
    assert [task.payload for task in crew.take()] == [b"later"]


def test_queues_take_turns(crew: Crew) -> None:
    crew.do(replace(RULES, queue="r"))
    crew.put(*[b"q"] * 100)
    crew.put(*[b"r"] * 3, queue="r")
    both = ("q", "r")
    assert [task.payload for task in crew.take(most=5, queues=both)].count(b"r") == 2
    assert sorted(task.payload for task in crew.take(queues=both) + crew.take(queues=both)) == [b"q", b"r"]
    assert [task.payload for task in crew.take(queues=both)] == [b"q"]


def test_a_worker_has_no_more_at_a_time_than_the_queue_allows() -> None:
    crew = Crew(concurrency=2)
    crew.put(*[b"x"] * 5)
    first = crew.take("w", most=5)
    assert len(first) == 2 and crew.take("w") == []
    assert not crew.machine.dispatch.acquirable("default", ("q",), "w")
    assert crew.machine.dispatch.acquirable("default", ("q",), "v")
    assert len(crew.take("v", most=5)) == 2
    assert crew.complete(first[0]) == ["ok"]
    assert len(crew.take("w", most=5)) == 1


def test_an_acquire_hands_out_a_bounded_number_of_bytes(crew: Crew) -> None:
    large = bytes(limits.MAX_PAYLOAD_BYTES)
    for _ in range(3):
        crew.put(*[large] * 20)
    taken = crew.take(most=60)
    assert len(taken) * len(large) == limits.MAX_BATCH_BYTES
    assert len(crew.take(most=60)) == 60 - len(taken)


# --- standing -----------------------------------------------------------------------------------------------------


def test_a_paused_queue_gives_nothing_and_a_draining_one_takes_nothing(crew: Crew) -> None:
    crew.put(b"x", b"y")
    assert crew.do(t.StandQueue("q", "paused")) == tr.QueueStands("running")
    assert crew.take() == [] and crew.put(b"z")
    assert not crew.machine.dispatch.acquirable("default", ("q",), "w")
    assert crew.do(t.StandQueue("q", "draining")) == tr.QueueStands("paused")
    assert crew.code(t.PutTasks("q", (t.NewTask(b"x"),))) == "queue_draining"
    assert len(crew.take(most=9)) == 3
    assert crew.do(t.StandQueue("q", "running")) == tr.QueueStands("draining")
    assert crew.put(b"x")


def test_only_an_empty_queue_is_deleted(crew: Crew) -> None:
    crew.put(b"x")
    assert crew.code(t.DeleteQueue("q")) == "queue_in_use"
    assert crew.complete(crew.take_one()) == ["ok"]
    assert crew.code(t.DeleteQueue("q")) == "queue_in_use", "a task that is done is known for a while"
    assert crew.do(t.PurgeTasks("q", "done", 10)) == tr.TasksMoved(1, 0)
    crew.beat("w")
    assert crew.code(t.DeleteQueue("q")) == "queue_in_use"
    crew.do(t.LeaveWorker("q", "w"))
    assert crew.do(t.DeleteQueue("q")) == tr.QueueDeleted()
    assert crew.code(t.DeleteQueue("q")) == "unknown_queue"


def test_every_command_about_an_unknown_queue_is_refused(crew: Crew) -> None:
    pair = (packed(1), packed(1))
    for command in (
        t.StandQueue("none", "paused"), t.DeleteQueue("none"), t.PutTasks("none", (t.NewTask(b""),)),
        t.AcquireTasks(("q", "none"), "w", 1), t.RenewTasks("none", "w", *pair), t.CompleteTasks("none", "w", *pair),
        t.ReturnTasks("none", "w", *pair), t.FailTask("none", "w", 1, 1, ""), t.RevokeTask("none", 1),
        t.DropTask("none", 1), t.RetryTasks("none", 1), t.PurgeTasks("none", "dead", 1), t.PutShards("none", ("s",)),
        t.BeatWorker("none", "w", 0, 0, leaving=False), t.LeaveWorker("none", "w"),
    ):  # fmt: skip
        assert crew.code(command) == "unknown_queue", command


# --- an owner that is late ----------------------------------------------------------------------------------------


def test_the_timeline_of_an_owner_that_is_not_heard(crew: Crew) -> None:
    [task_id] = crew.put(b"x")
    task = crew.take_one()
    assert (task.expires_ms, task.revoked_ms, task.heartbeat_ms) == (1_000, REVOKED_MS, 200)
    crew.pass_time(599)
    assert crew.state(task_id) == "leased"
    crew.pass_time(1 + TICK_MS)
    assert crew.state(task_id) == "suspect" and crew.kinds() == ["task_suspect"]
    assert crew.take("v") == [], "it is prepared to move and does not move"
    crew.now_ms = REVOKED_MS - 1
    crew.entry()
    assert crew.state(task_id) == "suspect"
    crew.pass_time(1 + TICK_MS)
    assert crew.kinds() == ["task_revoked", "task_ready"]
    other = crew.take_one("v")
    assert (other.task_id, other.attempt) == (task_id, 2) and other.token > task.token
    assert crew.complete(task) == ["not_holder"]
    assert crew.renew(task) == ["not_holder"]
    assert crew.complete(other, worker="v") == ["ok"]
    assert crew.complete(task) == ["not_holder"], "somebody else did it"


@pytest.mark.parametrize("silent_ms", [100, 700, 1_100, REVOKED_MS - 1])
def test_an_owner_that_comes_back_in_time_keeps_its_task(crew: Crew, silent_ms: int) -> None:
    [task_id] = crew.put(b"x")
    task = crew.take_one()
    for _ in range(5):
        crew.now_ms += silent_ms
        assert crew.renew(task) == ["ok"]
        view = crew.view(task_id)
        assert (view.state, view.bounces, view.attempt, view.ttl_ms) == ("leased", 0, 1, 1_000)
    assert crew.complete(task) == ["ok"]


def test_a_late_owner_keeps_its_task_until_the_sweep_takes_it(crew: Crew) -> None:
    [task_id] = crew.put(b"x")
    task = crew.take_one()
    crew.pass_time(700)
    crew.now_ms = REVOKED_MS  # and its bucket of timers has not come
    assert crew.renew(task) == ["ok"] and crew.state(task_id) == "leased"


def test_a_task_that_bounces_is_held_down_longer_each_time(crew: Crew) -> None:
    [task_id] = crew.put(b"x")
    grace = []
    for _ in range(4):
        task = crew.take_one()
        grace.append(task.revoked_ms - task.expires_ms)
        crew.pass_time(task.revoked_ms - crew.now_ms + TICK_MS)
    assert grace == [400, 400 + 500, 400 + 1_000, 400 + 2_000]
    assert crew.counts().bounced == 4 and crew.view(task_id).bounces == 4


def test_steady_ownership_ends_the_hold_down(crew: Crew) -> None:
    crew.put(b"x")
    crew.take_one()
    crew.pass_time(REVOKED_MS + TICK_MS)
    task = crew.take_one()
    assert crew.view(task.task_id).bounces == 1
    for _ in range(9):
        crew.now_ms += 500
        assert crew.renew(task) == ["ok"]
    view = crew.view(task.task_id)
    assert view.bounces == 0 and view.revoked_in_ms == REVOKED_MS


def test_new_rules_do_not_touch_what_is_handed_out(crew: Crew) -> None:
    crew.put(b"x", b"y")
    task = crew.take_one()
    crew.do(replace(RULES, lease_ms=200, heartbeat_ms=100))
    assert crew.view(task.task_id).revoked_in_ms == REVOKED_MS
    assert crew.take_one("v").expires_ms == 200
    crew.renew(task)
    assert crew.view(task.task_id).ttl_ms == 1_000  # its owner was told so, and may not hear of anything else
    crew.now_ms += 900
    crew.renew(task)
    assert crew.view(task.task_id).ttl_ms == 200


@pytest.mark.parametrize("change", ["rules", "hold-down"])
def test_a_renewal_takes_nothing_back_that_an_owner_was_told(change: str) -> None:
    """The answer to a renewal may be lost: the owner then goes on until the moment it was told before."""
    crew = Crew(hold_down_ms=4_000)
    [task_id] = crew.put(b"x")
    crew.take_one("u")
    crew.pass_time(REVOKED_MS + TICK_MS)
    task = crew.take_one()
    if change == "rules":
        crew.do(replace(RULES, lease_ms=200, heartbeat_ms=100))
        crew.now_ms += 100
    else:
        crew.now_ms += 3_900
        crew.renew(task)
        task = task._replace(revoked_ms=crew.now_ms + crew.view(task_id).revoked_in_ms)
        crew.now_ms += 200  # steady for max_hold_down_ms
    answered = crew.do(t.RenewTasks("q", "w", packed(task_id), packed(task.token)))
    assert answered.revoked_ms >= task.revoked_ms
    crew.pass_time(task.revoked_ms - crew.now_ms - 1)
    assert crew.complete(task) == ["ok"]


def test_what_is_known_of_ages_does_not_wait_to_be_thrown_out_all_at_once() -> None:
    """Otherwise a queue with a million tasks would stop the log for seconds, once in a million tasks."""
    machine, put = Machine(), encode_command(t.PutTasks("q", tuple(t.NewTask(b"") for _ in range(100))))
    machine.apply(1, 0, [encode_command(RULES), put, put, put])
    [queue] = machine.state.task_queues.values()
    ages = queue.ages
    for index in range(2, 20):
        machine.apply(index, index, [encode_command(t.AcquireTasks(("q",), "w", 100)), put])
        assert queue.ages is ages and len(ages) <= 400


# --- answers ------------------------------------------------------------------------------------------------------


def test_completing_twice_is_answered_so_and_the_wrong_token_refused(crew: Crew) -> None:
    crew.put(b"x")
    task = crew.take_one()
    assert crew.complete(task._replace(token=task.token + 1)) == ["not_holder"]
    assert crew.complete(task, worker="v") == ["not_holder"]
    assert crew.complete(task) == ["ok"]
    assert crew.complete(task) == ["already_done"]
    assert crew.complete(task._replace(token=task.token - 1)) == ["not_holder"]
    assert crew.fail(task).code == "task_done"
    assert crew.complete(task._replace(task_id=1 << 40)) == ["unknown"]
    crew.pass_time(10_000 + TICK_MS)
    assert crew.complete(task) == ["unknown"] and crew.machine.state.tasks.live == 0


def test_twice_in_one_command_is_once(crew: Crew) -> None:
    crew.put(b"x")
    task = crew.take_one()
    assert crew.complete(task, task) == ["ok", "already_done"]
    assert crew.counts().completed == 1


def test_a_failed_task_is_tried_later_and_later_and_then_a_dead_letter(crew: Crew) -> None:
    [task_id] = crew.put(b"x")
    waits = []
    for _ in range(5):
        task = crew.take_one()
        failed = crew.fail(task, "it broke")
        waits.append(failed.retry_in_ms)
        assert crew.fail(task).code == "not_holder"
        crew.pass_time(failed.retry_in_ms + TICK_MS)
    assert waits == [100, 200, 400, 800, 0]
    assert failed == tr.TaskFailed(5, dead=True, retry_in_ms=0)
    view = crew.view(task_id)
    assert (view.state, view.reason, view.attempt) == ("dead", "it broke", 5)
    assert crew.do(t.RetryTasks("q", 10)) == tr.TasksMoved(1, 0)
    assert crew.take_one().attempt == 1


def test_a_task_whose_owners_all_vanish_is_a_dead_letter_too() -> None:
    crew = Crew(max_attempts=2)
    [task_id] = crew.put(b"x")
    for _ in range(2):
        crew.pass_time(crew.take_one().revoked_ms - crew.now_ms + TICK_MS)
    assert crew.state(task_id) == "dead" and "task_dead" in crew.kinds()
    assert crew.do(t.PurgeTasks("q", "dead", 10)) == tr.TasksMoved(1, 0)
    assert crew.machine.state.tasks.live == 0


def test_a_failure_may_say_when_to_try_again(crew: Crew) -> None:
    [task_id] = crew.put(b"x")
    assert crew.fail(crew.take_one(), retry_in_ms=0).retry_in_ms == 0
    assert crew.state(task_id) == "ready"
    assert crew.fail(crew.take_one(), retry_in_ms=5_000).retry_in_ms == 5_000
    assert crew.view(task_id).ready_in_ms == 5_000


def test_a_key_is_taken_once_while_its_task_is_known(crew: Crew) -> None:
    first = crew.do(t.PutTasks("q", (t.NewTask(b"a", key="k"), t.NewTask(b"b", key="k"), t.NewTask(b"c"))))
    assert first.known == (False, True, False) and first.task_ids[0] == first.task_ids[1]
    crew.do(replace(RULES, queue="r"))
    assert crew.do(t.PutTasks("r", (t.NewTask(b"a", key="k"),))).known == (False,)
    assert crew.complete(crew.take_one()) == ["ok"]
    assert crew.do(t.PutTasks("q", (t.NewTask(b"again", key="k"),))).known == (True,)
    crew.pass_time(10_000 + TICK_MS)
    assert crew.do(t.PutTasks("q", (t.NewTask(b"again", key="k"),))).known == (False,)


def test_an_administrator_takes_away_drops_and_purges(crew: Crew) -> None:
    a, b, *_ = crew.put(b"a", b"b", b"c", b"d")
    task = crew.take_one()
    assert crew.do(t.RevokeTask("q", a)) == tr.TaskTaken("w")
    assert crew.kinds() == ["task_revoked", "task_ready"]
    assert (crew.view(a).attempt, crew.view(a).bounces) == (0, 0)
    assert crew.complete(task) == ["not_holder"]
    assert crew.do(t.RevokeTask("q", b)) == tr.TaskTaken(None)
    again = crew.take_one()
    assert crew.do(t.DropTask("q", a)) == tr.TaskTaken("w")
    assert crew.complete(again) == ["unknown"]
    assert crew.code(t.DropTask("q", a)) == crew.code(t.RevokeTask("q", a)) == "unknown_task"
    assert crew.do(t.PurgeTasks("q", "ready", 2)) == tr.TasksMoved(2, 1)


# --- requests -----------------------------------------------------------------------------------------------------


def test_an_acquire_that_is_asked_again_gets_the_same(crew: Crew) -> None:
    crew.put(b"a", b"b")
    ask = t.AcquireTasks(("q",), "w", 1)
    first = crew.do(ask, request_id=b"1")
    assert crew.do(ask, request_id=b"1") == first
    assert crew.counts().leased == 1


def test_tasks_of_an_acquire_nobody_waits_for_are_returned(crew: Crew) -> None:
    crew.put(b"a")
    [task] = crew.do(t.AcquireTasks(("q",), "w", 1), request_id=b"1").tasks
    back = t.ReturnTasks("q", "w", packed(task.task_id), packed(task.token), b"1", crew.index)
    assert crew.do(back).verdicts == bytes([0])
    [again] = crew.do(t.AcquireTasks(("q",), "w", 1), request_id=b"1").tasks
    assert again.token > task.token and again.attempt == 1
    back = t.ReturnTasks("q", "w", packed(again.task_id), packed(again.token), b"1", crew.index)
    crew.do(t.AcquireTasks(("q",), "w", 1), request_id=b"1")
    assert crew.code(back) == "asked_again"
    assert crew.state(again.task_id) == "leased"


# --- bounds -------------------------------------------------------------------------------------------------------


def test_what_is_too_much_is_refused_and_changes_nothing(crew: Crew) -> None:
    assert crew.code(t.PutTasks("q", (t.NewTask(bytes(limits.MAX_PAYLOAD_BYTES + 1)),))) == "malformed"
    assert crew.code(replace(RULES, lease_ms=100, heartbeat_ms=200)) == "malformed"
    many = (t.NewTask(bytes(limits.MAX_PAYLOAD_BYTES)),) * 33
    assert crew.code(t.PutTasks("q", many)) == "malformed"
    crew.do(c.PutNamespace(*[1_000] * 7, tasks=2, queues=1), namespace="small")
    crew.do(RULES, namespace="small")
    assert crew.do(replace(RULES, queue="r"), namespace="small").code == "quota_exceeded"
    three = t.PutTasks("q", tuple(t.NewTask(b"x") for _ in range(3)))
    assert crew.do(three, namespace="small").code == "quota_exceeded"
    assert isinstance(crew.do(replace(three, tasks=three.tasks[:2]), namespace="small"), tr.TasksPut)


def test_a_namespace_with_a_queue_is_in_use(crew: Crew) -> None:
    crew.do(c.PutNamespace(*[1_000] * 5), namespace="n")
    crew.do(RULES, namespace="n")
    assert crew.do(c.DeleteNamespace(), namespace="n").code == "namespace_in_use"
    crew.do(t.DeleteQueue("q"), namespace="n")
    assert crew.do(c.DeleteNamespace(), namespace="n") == r.NamespaceChanged()


def test_a_hundred_thousand_tasks_revoked_at_once_are_a_bounded_share_of_each_entry() -> None:
    machine = Machine()
    rules = replace(RULES, suspect_beats=1_000)  # nobody is suspected on the way
    machine.apply(1, 0, [encode_command(rules)])
    batch = encode_command(t.PutTasks("q", tuple(t.NewTask(b"x") for _ in range(1_000))))
    take = encode_command(t.AcquireTasks(("q",), "w", 1_000))
    for index in range(100):
        machine.apply(2 + index, 0, [batch, take])
    assert machine.dispatch.counts().leased == 100_000
    before = 100_000
    for index in range(5):
        machine.apply(200 + index, 10_000, [])
        left = machine.dispatch.counts().leased
        assert 0 < before - left <= MAX_EXPIRIES_PER_ENTRY
        before = left
    assert machine.due(10_000) and machine.counts().backlog > 90_000
    machine.apply(300, 10_000, [encode_command(c.Sweep(limits.MAX_SWEEP))])
    assert machine.dispatch.counts().leased == before - MAX_EXPIRIES_PER_ENTRY - limits.MAX_SWEEP


def test_stale_entries_of_the_indexes_do_not_pile_up(crew: Crew) -> None:
    crew.put(b"x", b"y")
    queue = next(iter(crew.machine.state.task_queues.values()))
    for _ in range(500):
        assert crew.give_back(crew.take_one()) == ["ok"]
    assert len(queue.ready) < 100 and len(queue.ages) < 100


def test_counts_for_metrics(crew: Crew) -> None:
    crew.put(b"a", b"b", b"c")
    crew.put(b"d", delay_ms=9_000)
    crew.now_ms += 300
    crew.complete(crew.take_one())
    crew.take_one()
    crew.pass_time(100)
    counts = crew.machine.dispatch.counts()
    assert (counts.ready, counts.delayed, counts.leased, counts.done) == (1, 1, 1, 1)
    [queue] = counts.queues
    assert (queue.handed_out, queue.waited_ms, queue.completed, queue.oldest_ready_age_ms) == (2, 600, 1, 400)
    page, after = crew.machine.dispatch.tasks("default", "q", None, 0, 3)
    rest, end = crew.machine.dispatch.tasks("default", "q", None, after or 0, 3)
    assert [task.state for task in page + rest] == ["done", "leased", "ready", "delayed"] and end is None
