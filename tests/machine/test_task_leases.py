"""What a task keeps is its own: no client shares the lease, whatever it calls itself, and all nodes find the same."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine.codec import encode_command
from coordinator.machine.invariants import check
from coordinator.machine.levels import LEVEL, TASK_NAMES
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY
from coordinator.machine.machine import Machine
from tests.machine.crew import RULES, Crew

FIRST = "task 0000000100000000"
"""What the first task of all is called where it keeps a resource: anybody can guess it."""
MINUTE_MS = 60_000


@pytest.fixture
def crew() -> Crew:
    crew = Crew()
    crew.do(c.RaiseLevel(LEVEL))
    return crew


def about(*resource_ids: str) -> t.PutTasks:
    return t.PutTasks("q", tuple(t.NewTask(b"x", resource_id=each) for each in resource_ids))


def on(crew: Crew, resource_id: str = "r") -> list[str]:
    return sorted(lease.client_id for lease in crew.machine.leases_on("default", resource_id, 10))


class Nodes:
    """One that never stops, and one that is restored from its snapshot when told to. Invariants are looked at by hand:
    below the level two leases of one pair may be there."""

    def __init__(self, level: int = TASK_NAMES - 1) -> None:
        self.straight, self.hopping = Machine(), Machine()
        self.index = self.now_ms = 0
        self.do(c.RaiseLevel(level))
        self.do(RULES)

    def do(self, *commands: c.Command) -> Any:
        self.index += 1
        raw = [encode_command(command) for command in commands]
        results = self.straight.apply(self.index, self.now_ms, raw)
        assert self.hopping.apply(self.index, self.now_ms, raw) == results
        assert self.hopping.digest() == self.straight.digest()
        return results[0]

    def hop(self) -> None:
        state = list(self.straight.freeze().chunks())
        self.hopping = Machine()
        self.hopping.restore(state)
        assert self.hopping.digest() == self.straight.digest()

    def double(self) -> r.LeaseGranted:
        """The task's lease in the lower slot, its namesake's in the next, and neither is the first on the resource."""
        self.do(c.AcquireLease("other", "bob", MINUTE_MS))
        granted = self.do(c.AcquireLease("r", FIRST, MINUTE_MS))
        self.do(c.ReleaseLease("other", "bob"))
        assert self.do(about("r")).task_ids == (int(FIRST[5:], 16),)
        self.do(c.AcquireLease("r", "bob", MINUTE_MS))
        assert isinstance(granted, r.LeaseGranted)
        return granted


# --- names ----------------------------------------------------------------------------------------------------------


def test_what_a_task_keeps_is_not_acquired_in_its_name(crew: Crew) -> None:
    session = crew.session(FIRST)
    crew.put(b"x", resource_id="r")
    assert crew.code(c.AcquireLease("r", FIRST, MINUTE_MS)) == "kept_by_task"
    assert crew.code(c.AcquireLease("r", FIRST, MINUTE_MS, session)) == "kept_by_task"
    assert crew.code(c.AcquireLeases(("other", "r"), FIRST, MINUTE_MS)) == "kept_by_task"
    assert crew.code(c.ReleaseLease("r", FIRST)) == "kept_by_task"
    assert on(crew) == [FIRST]


def test_the_names_of_tasks_to_come_are_refused_as_well(crew: Crew) -> None:
    session = crew.session(FIRST)
    for command in (
        c.AcquireLease("r", FIRST, MINUTE_MS),
        c.AcquireLease("r", FIRST, MINUTE_MS, session),
        c.AcquireLeases(("r", "other"), FIRST, MINUTE_MS),
        c.AcquireLeases(("r",), "task ffffffffffffffff", MINUTE_MS),
    ):
        assert crew.code(command) == "malformed"
        denied = crew.do(command)
        assert denied.details == {"field": "client_id"} and "task" in denied.message
    assert crew.machine.counts().active_leases == 0


@pytest.mark.parametrize(
    "client", ["task 1", "task 000000010000000g", "task 00000001000000000", "Task 0000000100000000",
               "task  000000100000000", "task 0000000A00000000", "my task 0000000100000000"]
)  # fmt: skip
def test_other_names_are_as_good_as_any(crew: Crew, client: str) -> None:
    crew.put(b"x", resource_id="r")
    assert isinstance(crew.lease("r", client), r.LeaseGranted)
    assert isinstance(crew.do(c.AcquireLeases(("r", "s"), client, MINUTE_MS)), r.LeasesGranted)
    assert isinstance(crew.do(c.ReleaseLease("r", client)), r.LeaseReleased)


def test_below_the_level_a_task_shares_its_lease_with_its_namesake() -> None:
    """As the release before does, which may apply the same entries."""
    crew = Crew()
    crew.do(c.RaiseLevel(TASK_NAMES - 1))
    crew.put(b"x", resource_id="r")
    granted = crew.lease("r", FIRST)
    assert isinstance(granted, r.LeaseGranted) and granted.reacquired
    assert isinstance(crew.do(c.AcquireLeases(("r", "s"), FIRST, MINUTE_MS)), r.LeasesGranted)


# --- what clients had before the level ------------------------------------------------------------------------------


@pytest.mark.parametrize("has", ["own", "session", "closing", "lapsed"])
@pytest.mark.parametrize("registered", [False, True])
def test_a_lease_of_before_makes_room_for_the_task_of_that_name(has: str, registered: bool) -> None:
    crew = Crew()
    crew.do(c.RaiseLevel(TASK_NAMES - 1))
    if registered:
        crew.do(c.PutResources(("r",), "p", "file", None, 5_000))
    session = crew.session(FIRST, 2_000) if has in ("session", "closing") else None
    lease = crew.lease("r", FIRST, 1_000, session_id=session)
    if has == "closing":  # with more than the entry that ends the session gets done
        crew.do(c.AcquireLeases(tuple(map(str, range(MAX_EXPIRIES_PER_ENTRY))), FIRST, 1_000, session))
    crew.do(c.RaiseLevel(TASK_NAMES))
    crew.now_ms += 1_000 if has == "lapsed" else 0
    put = encode_command(about("r"))
    results = crew.entry(*([encode_command(c.DeleteSession(session))] if has == "closing" and session else []), put)
    assert isinstance(results[-1], tr.TasksPut)
    assert on(crew) == [FIRST]
    ended = "lease_released" if has == "closing" else "lease_expired"
    assert crew.kinds()[-3:] == [ended, "lease_acquired", "task_ready"]
    told = crew.code(c.RenewLease(lease.lease_id, FIRST, 1_000))
    assert told == ("unknown_lease" if has == "closing" else "lease_expired")
    assert crew.code(c.ReleaseLease("r", FIRST)) == "kept_by_task"
    assert crew.complete(crew.take_one()) == ["ok"]
    assert on(crew) == []
    crew.pass_time(MINUTE_MS)
    crew.pass_time(MINUTE_MS)
    assert crew.machine.counts().active_leases == crew.machine.counts().expired_leases == 0


def test_whoever_has_a_lease_under_such_a_name_may_keep_and_release_it() -> None:
    crew = Crew()
    crew.do(c.RaiseLevel(TASK_NAMES - 1))
    lease = crew.lease("r", FIRST, 1_000)
    crew.do(c.RaiseLevel(TASK_NAMES))
    assert crew.code(c.AcquireLease("r", FIRST, 1_000)) == "malformed"
    assert isinstance(crew.do(c.RenewLease(lease.lease_id, FIRST, 5_000)), r.LeaseRenewed)
    assert isinstance(crew.do(c.ReleaseLease("r", FIRST)), r.LeaseReleased)


def test_of_two_leases_of_one_pair_all_nodes_find_the_same() -> None:
    nodes = Nodes()
    granted = nodes.double()
    nodes.do(c.RaiseLevel(TASK_NAMES))
    nodes.hop()
    assert nodes.do(c.ReleaseLease("r", FIRST)).code == "kept_by_task", "the lower slot"
    assert nodes.do(c.AcquireLease("r", FIRST, MINUTE_MS)).code == "kept_by_task"
    assert nodes.do(c.AcquireLeases(("r", "s"), FIRST, MINUTE_MS)).code == "kept_by_task"
    assert isinstance(nodes.do(c.RenewLease(granted.lease_id, FIRST, 2 * MINUTE_MS)), r.LeaseRenewed)
    nodes.do(t.DropTask("q", int(FIRST[5:], 16)))
    check(nodes.straight.state)
    assert isinstance(nodes.do(c.ReleaseLease("r", FIRST)), r.LeaseReleased)
    check(nodes.straight.state)


def test_of_two_leases_a_client_gets_at_its_own_in_the_lower_slot() -> None:
    nodes = Nodes()
    nodes.do(c.AcquireLease("r", FIRST, MINUTE_MS))
    nodes.do(about("r"))
    nodes.do(c.AcquireLease("r", "bob", MINUTE_MS))
    nodes.do(c.RaiseLevel(TASK_NAMES))
    nodes.hop()
    assert nodes.do(c.ReleaseLease("r", FIRST)) == r.LeaseReleased(2)
    check(nodes.straight.state)
    assert nodes.do(c.ReleaseLease("r", FIRST)).code == "kept_by_task"


def test_below_the_level_a_node_that_never_stopped_finds_the_one_that_came_first() -> None:
    nodes = Nodes()
    nodes.double()
    assert nodes.do(c.ReleaseLease("r", FIRST)) == r.LeaseReleased(2)


# --- at random ------------------------------------------------------------------------------------------------------


def drawn(chance: random.Random, tasks: list[int]) -> c.Command:
    """Of clients that call themselves after tasks that are there, that were, and that will come."""
    client = chance.choice(
        [*(f"task {1 << 32 | slot:016x}" for slot in range(6)), f"task {2 << 32:016x}", "bob", "eve"]
    )
    resource = f"r{chance.randrange(3)}"
    commands: list[c.Command] = [
        *[c.AcquireLease(resource, client, chance.choice((500, 5_000, 20_000)))] * 3,
        c.AcquireLeases(("r0", "r1", "r2"), client, 5_000),
        *[c.ReleaseLease(resource, client)] * 2,
        c.AcquireLock("k", client, 5_000, 0),
        *[about(resource)] * 2,
        c.PutResources((resource,), "p", "file", None, 500, pinned=True),
        t.AcquireTasks(("q",), client, 1),
    ]
    if tasks:
        commands += [t.DropTask("q", tasks.pop(chance.randrange(len(tasks))))] * 2
    return chance.choice(commands)


@pytest.mark.parametrize("seed", range(6))
def test_a_restored_node_agrees_however_clients_call_themselves(seed: int) -> None:
    chance, nodes, tasks, seen = random.Random(seed), Nodes(), list[int](), Counter[str]()
    for step in range(400):
        if step == 60:
            nodes.do(c.RaiseLevel(LEVEL))
        if step >= 60 and chance.random() < 0.2:
            nodes.hop()
        nodes.now_ms += chance.choice((0, 10, 100, 900))
        result = nodes.do(drawn(chance, tasks))
        seen[type(result).__name__ + getattr(result, "code", "")] += 1
        if isinstance(result, tr.TasksPut):
            tasks += result.task_ids
        if step > 200:
            check(nodes.straight.state)
    assert min(seen[name] for name in ("Deniedkept_by_task", "Deniedmalformed", "LeaseGranted", "TasksPut")) > 4, seen
