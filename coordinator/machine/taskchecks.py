"""What must be true of queues, tasks, shards and workers after every command: their part of `invariants`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from coordinator.machine.chains import members
from coordinator.machine.columns import SlotTable
from coordinator.machine.faults import require
from coordinator.machine.leaserows import KEPT
from coordinator.machine.limits import NEVER_MS
from coordinator.machine.names import CLIENT, LOCK, QUEUE, RESOURCE, TASK_KEY
from coordinator.machine.state import ACTIVE, State
from coordinator.machine.taskrows import (
    BLOCKED,
    DEAD,
    DELAYED,
    DONE,
    HELD,
    LOST,
    READY,
    TASK_STATES,
    Queue,
    first_delay_ms,
    first_ready,
    oldest_ready_ms,
)
from coordinator.machine.timers import bucket_of


def check(state: State) -> None:
    _check_tasks(state)
    _check_names(state)
    _check_queues(state)
    _check_times(state)
    _check_locks(state)
    _check_lines(state)
    _check_shards(state)
    _check_workers(state)


def _used(table: SlotTable) -> list[int]:
    found: list[int] = table.column("state")[: table.used].nonzero()[0].tolist()
    return found


def names(state: State) -> Iterator[int]:
    """Every name that is held here, once for each time."""
    table = state.tasks
    for slot in _used(table):
        held = (table.owner[slot], table.key[slot], table.lock[slot], table.resource[slot])
        yield from (name - 1 for name in held if name)
    yield from state.task_queues
    for worker in state.workers.values():
        yield worker.client


# --- tasks ------------------------------------------------------------------------------------------------------------


def _check_tasks(state: State) -> None:
    table, tokens, sequences, keys = state.tasks, set(), set(), set()
    for slot in _used(table):
        status, queue = table.state[slot], table.queue[slot]
        require(table.generation[slot] > 0, "a task without a generation")
        require(READY <= status <= DONE, "a task in no known state")
        require(queue in state.task_queues, "a task of a queue that is not there")
        require(table.sequence[slot] not in sequences, "two tasks have one place in the order")
        sequences.add(table.sequence[slot])
        require(0 < table.sequence[slot] <= state.last_sequence, "a task's place was not drawn")
        require((table.owner[slot] != 0) == (status in HELD), "a task has an owner and should not, or the reverse")
        if table.token[slot]:
            require(table.token[slot] not in tokens, "two tasks have one token")
            require(table.token[slot] <= state.last_token, "a task's token was not drawn")
            tokens.add(table.token[slot])
        require(table.token[slot] or status not in HELD, "a task is somebody's without a token")
        if table.key[slot]:
            require((queue, table.key[slot]) not in keys, "two tasks of a queue have one key")
            keys.add((queue, table.key[slot]))
            require(state.find_task(queue, table.key[slot] - 1) == slot, "a task is not found by its key")
    require(len(state.task_keys) == len(keys), "the index of keys has entries of others")


def _check_names(state: State) -> None:
    table, kinds = state.tasks, state.names.state
    for slot in _used(table):
        for name, kind in (
            (table.owner[slot], CLIENT), (table.key[slot], TASK_KEY), (table.lock[slot], LOCK),
            (table.resource[slot], RESOURCE),
        ):  # fmt: skip
            require(not name or kinds[name - 1] == kind, "a task names something of the wrong kind")
        if table.state[slot] == DONE:
            require(not table.lease[slot], "a task is done and keeps its resource")
            require(not table.payloads.get(slot), "a task is done and keeps its payload")
        if table.lease[slot]:
            lease = state.slot_of(state.leases, table.lease[slot])
            active = lease >= 0 and state.leases.state[lease] == ACTIVE
            require(not active or state.leases.flags[lease] & KEPT, "a task's reference is not marked as such")
            same = not active or state.leases.resource[lease] == table.resource[slot] - 1
            require(same, "a task keeps another resource than it says")


def _check_queues(state: State) -> None:
    table = state.tasks
    mine: defaultdict[int, list[int]] = defaultdict(list)
    for slot in _used(table):
        mine[table.queue[slot]].append(slot)
    for name, queue in state.task_queues.items():
        require(state.names.state[name] == QUEUE and queue.name == name, "a queue is filed under another name")
        require(queue.text == state.names.text(name), "a queue does not know its name")
        slots = mine[name]
        counts = Counter(table.state[slot] for slot in slots)
        require(queue.counts == [counts[status] for status in range(len(TASK_STATES))], "a queue is miscounted")
        held = Counter(table.owner[slot] - 1 for slot in slots if table.state[slot] in HELD)
        require(queue.held == held, "what a worker has of a queue is miscounted")
        _check_order(state, queue, slots)
        for chain, status in ((queue.dead, DEAD), (queue.done, DONE)):
            listed = list(members(table, chain))
            require(len(listed) == chain.count == len(set(listed)), "a list of tasks is miscounted")
            require(set(listed) == {slot for slot in slots if table.state[slot] == status}, "a list of tasks is wrong")


def _check_order(state: State, queue: Queue, slots: list[int]) -> None:
    table = state.tasks
    ready = [slot for slot in slots if table.state[slot] == READY]
    require({table.order(slot) for slot in ready} <= set(queue.ready), "a task is ready and nobody will get it")
    first = min(ready, key=table.order, default=-1)
    require(first_ready(table, queue) == first, "the next task is not the first")
    since_ms = min((table.since_ms[slot] for slot in ready), default=None)
    require(oldest_ready_ms(table, queue) == since_ms, "the oldest task is not known")
    delayed = [table.expiry_ms[slot] for slot in slots if table.state[slot] == DELAYED]
    require(first_delay_ms(table, queue) == min(delayed, default=None), "the first delay to end is not known")


def _check_times(state: State) -> None:
    table = state.tasks
    for slot in _used(table):
        at_ms, status = table.expiry_ms[slot], table.state[slot]
        require((at_ms < NEVER_MS) == (status in (DELAYED, DONE, *HELD)), "a task waits for nothing, or for ever")
        if at_ms < NEVER_MS:
            limit = bucket_of(max(at_ms, state.now_ms))
            require(0 < table.timer[slot] <= limit, "no timer looks at a task when it is due")
        if status in HELD:
            require(at_ms <= table.revoke_ms[slot], "a task is not looked at when it must be taken away")
            require(table.ends_ms[slot] <= table.revoke_ms[slot], "a task is taken away within its lease")


# --- locks ------------------------------------------------------------------------------------------------------------


def _check_locks(state: State) -> None:
    table, holds = state.tasks, {}
    for slot in _used(table):
        if table.lock[slot] and table.state[slot] in HELD:
            lock = table.lock[slot] - 1
            require(lock not in holds, "two tasks hold one lock")
            holds[lock] = slot
            record = state.locks.get(lock)
            require(record is not None and len(record.holders) == 1, "a task does not hold its lock alone")
            lease = record.holders[0] if record is not None else 0
            require(state.leases.token[lease] == table.token[slot], "a task and its lock have different tokens")
            require(state.leases.owner[lease] == table.owner[slot] - 1, "a task's lock is held by another")
            require(state.leases.flags[lease] & KEPT, "a task's lock is not marked as such")
    require(holds == state.task_holds, "the index of locks that tasks hold is wrong")


def _check_lines(state: State) -> None:
    table = state.tasks
    ready, blocked = {}, Counter[tuple[int, int]]()
    for slot in _used(table):
        place = (table.lock[slot] - 1, table.queue[slot])
        if table.lock[slot] and table.state[slot] == READY:
            require(place not in ready, "two tasks are ready that need one lock")
            require(place[0] not in state.locks, "a task is ready and its lock is taken")
            ready[place] = slot
        elif table.state[slot] == BLOCKED:
            require(table.lock[slot], "a task is blocked by nothing")
            blocked[place] += 1
    lines = {(lock, queue): line for lock, each in state.lock_lines.items() for queue, line in each.items()}
    require(set(lines) == set(ready) | set(blocked), "a line of tasks for a lock is missing, or empty")
    for place, line in lines.items():
        require(line.candidate == ready.get(place, -1) and line.waiting == blocked[place], "a line is miscounted")
        require(line.candidate >= 0 or place[0] in state.locks, "a lock is free, and no task that needs it is ready")
    for slot in _used(table):
        if table.state[slot] == BLOCKED:
            line = lines[table.lock[slot] - 1, table.queue[slot]]
            require(table.order(slot) in line.blocked, "a blocked task is forgotten")
            first = line.candidate < 0 or table.order(line.candidate) < table.order(slot)
            require(first, "a task waits for a lock behind one that came later")


# --- shards -----------------------------------------------------------------------------------------------------------


def _check_shards(state: State) -> None:
    tokens = set[int]()
    for queue in state.task_queues.values():
        owned: defaultdict[int, set[str]] = defaultdict(set)
        for name, shard in queue.shards.items():
            require(shard.name == name, "a shard is filed under another name")
            require(shard.worker or not (shard.revoking or shard.removed), "a shard is asked back from nobody")
            require(not shard.removed or shard.revoking, "a shard that was removed is not asked back")
            if shard.worker:
                worker = state.workers.get(shard.worker)
                require(worker is not None and worker.queue == queue.name, "a shard's owner is not there")
                require(worker is not None and worker.state != LOST, "a lost worker has shards")
                require(0 < shard.token <= state.last_token and shard.token not in tokens, "a shard's token is wrong")
                tokens.add(shard.token)
                owned[shard.worker].add(name)
        require({number: set(names) for number, names in queue.owned.items()} == owned, "shards are miscounted")


def _check_workers(state: State) -> None:
    for number, worker in state.workers.items():
        require(0 < number == worker.number <= state.last_worker, "a worker's number was not drawn")
        queue = state.task_queues.get(worker.queue)
        found = None if queue is None else queue.workers.get(worker.client)
        require(found == number, "a worker is not found by its name")
        require(worker.version <= state.last_token, "a version that was not drawn")
        waits = worker.queue in state.unbalanced
        if worker.leaving and queue is not None and worker.state != LOST and not waits:
            mine = queue.owned.get(number, {})
            asked = all(queue.shards[name].revoking for name in mine)
            require(asked, "a worker leaves and is not asked for what it has")
    listed = sum(len(queue.workers) for queue in state.task_queues.values())
    require(listed == len(state.workers), "a worker is listed twice")
    require(all(name in state.task_queues for name in state.unbalanced), "a queue that is gone waits for its shards")
