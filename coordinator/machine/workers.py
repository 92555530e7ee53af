"""Workers that share a queue's shards: they join by being heard, are suspected when they are not, and lost in the end.

One that comes back before it is lost keeps all it had. One that is lost again and again is waited for longer each time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coordinator.machine import queues, shards
from coordinator.machine.limits import MAX_ALL_WORKERS, MAX_WORKERS
from coordinator.machine.names import CLIENT
from coordinator.machine.namespaces import Namespace
from coordinator.machine.results import Denied, Result
from coordinator.machine.state import WORKER_MOMENT, State
from coordinator.machine.taskcommands import BeatWorker, LeaveWorker
from coordinator.machine.taskmoves import MAX_BOUNCES, hold_down_ms
from coordinator.machine.taskresults import ShardGrant, WorkerLeft, WorkerSeen
from coordinator.machine.taskrows import LOST, PRESENT, WAVERING, Queue, Shard, Worker


def find(state: State, queue: Queue, worker_id: str) -> Worker | None:
    """Also one that is LOST."""
    number = queue.workers.get(state.names.find(CLIENT, queue.namespace, worker_id))
    return None if number is None else state.workers[number]


def _put(state: State, worker: Worker) -> None:
    before = state.workers.get(worker.number)
    if before is not None:
        state.agenda.discard(before.moment_ms, WORKER_MOMENT, worker.number)
    state.workers[worker.number] = worker
    state.agenda.add(worker.moment_ms, WORKER_MOMENT, worker.number)


# --- being heard ------------------------------------------------------------------------------------------------------


def beat(state: State, namespace: Namespace, command: BeatWorker) -> Result:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    worker = find(state, queue, command.worker_id)
    if worker is None or worker.state == LOST:
        denied = None if worker is not None else _may_join(state, namespace, queue, command)
        if denied is not None:
            return denied
        worker = _join(state, queue, command, worker)
        again = True
    else:
        again = (worker.capacity, worker.leaving) != (command.capacity, command.leaving) or worker.state != PRESENT
    steady = state.now_ms - worker.joined_ms >= queue.rules.max_hold_down_ms
    worker = replace(
        worker, capacity=command.capacity, leaving=command.leaving, state=PRESENT,
        bounces=0 if steady else worker.bounces,
    )  # fmt: skip
    _put(state, _timed(state, queue, worker))
    if _released(state, queue, worker.number, command) or again:
        shards.share_out(state, queue)
    return _seen(state, queue, state.workers[worker.number], command.version)


def _may_join(state: State, namespace: Namespace, queue: Queue, command: BeatWorker) -> Denied | None:
    if len(queue.workers) >= MAX_WORKERS:
        return Denied("capacity_exceeded", f"a queue has at most {MAX_WORKERS} workers for its shards")
    if len(state.workers) >= MAX_ALL_WORKERS:
        return Denied("capacity_exceeded", f"the cluster has at most {MAX_ALL_WORKERS} workers for shards")
    return queues.over_names(state, namespace, {(CLIENT, command.worker_id): None})


def _join(state: State, queue: Queue, command: BeatWorker, before: Worker | None) -> Worker:
    if before is None:
        client, bounces = state.names.intern(CLIENT, queue.namespace, command.worker_id), 0
    else:
        client, bounces = before.client, before.bounces
        _drop(state, before)
    state.last_worker += 1
    number = queue.workers[client] = state.last_worker
    state.emit("worker_joined", queue.namespace, queue.text, command.worker_id)
    version, now_ms = state.next_token(), state.now_ms
    return Worker(number, queue.name, client, command.capacity, command.leaving, version, now_ms, 0, 0, 0, bounces)


def _drop(state: State, worker: Worker) -> None:
    """Its record; its client's name is the caller's to keep or to drop."""
    state.agenda.discard(worker.moment_ms, WORKER_MOMENT, worker.number)
    del state.workers[worker.number], state.task_queues[worker.queue].workers[worker.client]


def _timed(state: State, queue: Queue, worker: Worker) -> Worker:
    """Never given up earlier than it was told before, as tasks are not."""
    rules = queue.rules
    ends_ms = state.now_ms + rules.lease_ms
    grace_ms = rules.debounce_beats * rules.heartbeat_ms + hold_down_ms(rules, worker.bounces)
    suspect_ms = state.now_ms + rules.suspect_beats * rules.heartbeat_ms
    revoke_ms = max(worker.revoke_ms, ends_ms + grace_ms)
    return replace(worker, suspect_ms=suspect_ms, ends_ms=max(worker.ends_ms, ends_ms), revoke_ms=revoke_ms)


def _released(state: State, queue: Queue, number: int, command: BeatWorker) -> int:
    """Takes back what it gave, if it is (still) its own under that token; how many."""
    taken = 0
    for name, token in zip(command.released, np.frombuffer(command.tokens, "<u8").tolist(), strict=True):
        shard = queue.shards.get(name)
        if shard is not None and shard.worker == number and shard.token == token:
            shards.give_up(state, queue, shard)
            taken += 1
    return taken


def _seen(state: State, queue: Queue, worker: Worker, known: int) -> WorkerSeen:
    changed = worker.version != known
    mine = [queue.shards[name] for name in sorted(queue.owned.get(worker.number, ()))] if changed else []
    return WorkerSeen(
        worker.version, changed, _grants(mine, revoking=False), _grants(mine, revoking=True),
        worker.ends_ms, worker.revoke_ms, queue.rules.heartbeat_ms,
    )  # fmt: skip


def _grants(mine: list[Shard], *, revoking: bool) -> tuple[ShardGrant, ...]:
    return tuple(ShardGrant(shard.name, shard.token) for shard in mine if shard.revoking == revoking)


# --- going ------------------------------------------------------------------------------------------------------------


def _give_up_all(state: State, queue: Queue, number: int) -> int:
    names = sorted(queue.owned.get(number, ()))
    for name in names:
        shards.give_up(state, queue, queue.shards[name])
    return len(names)


def leave(state: State, namespace: Namespace, command: LeaveWorker) -> Result:
    queue = queues.find(state, namespace, command.queue)
    if isinstance(queue, Denied):
        return queue
    worker = find(state, queue, command.worker_id)
    if worker is None or worker.state == LOST:
        message = f"{command.worker_id} is no worker of {command.queue} (any more)"
        return Denied("unknown_worker", message, {"field": "worker_id", "queue": command.queue})
    given = _give_up_all(state, queue, worker.number)
    _drop(state, state.workers[worker.number])
    state.names.drop(worker.client)
    state.emit("worker_left", namespace.number, command.queue, command.worker_id)
    shards.share_out(state, queue)
    return WorkerLeft(given)


def moment(state: State, number: int) -> int:
    """What is due of a worker that is not heard: suspected, then lost, then forgotten. How many shards that freed."""
    worker = state.workers[number]
    queue = state.task_queues[worker.queue]
    client = state.names.text(worker.client)
    if worker.state == LOST:
        _drop(state, worker)
        state.names.drop(worker.client)
    elif worker.revoke_ms > state.now_ms:
        _put(state, replace(worker, state=WAVERING))
        state.emit("worker_suspect", queue.namespace, queue.text, client)
    else:
        given = _give_up_all(state, queue, number)
        forget_ms = state.now_ms + queue.rules.max_hold_down_ms
        bounces = min(worker.bounces + 1, MAX_BOUNCES)
        _put(state, replace(state.workers[number], state=LOST, bounces=bounces, revoke_ms=forget_ms))
        state.emit("worker_lost", queue.namespace, queue.text, client)
        state.unbalanced[queue.name] = None
        return given
    return 0
