"""What a snapshot holds of queues besides the rows of tasks: rules, counts, shards, workers, payloads and reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from coordinator.machine.chains import Chain
from coordinator.machine.faults import require
from coordinator.machine.pages import Pages, pieces
from coordinator.machine.state import State
from coordinator.machine.taskcommands import PutQueue
from coordinator.machine.taskrows import Queue, Shard, Worker
from coordinator.machine.values import row_of

_RULES_ROW, _WORKER_ROW = row_of(PutQueue), row_of(Worker)


class FrozenDispatch:
    """Made while everything else waits: it copies references, and no payload."""

    def __init__(self, state: State) -> None:
        self._queues = [
            (
                queue.name, queue.namespace, queue.rules, queue.standing, queue.served, queue.handed_out,
                queue.waited_ms, queue.completed, queue.failed, queue.bounced, queue.buried,
                (queue.dead.first, queue.dead.last, queue.dead.count),
                (queue.done.first, queue.done.last, queue.done.count), queue.shards.copy(),
            )
            for _, queue in sorted(state.task_queues.items(), key=lambda item: item[0])
        ]  # fmt: skip
        self._workers = state.workers.copy()
        self._unbalanced = sorted(state.unbalanced)
        self._payloads = state.tasks.payloads.freeze()
        self._reasons = state.tasks.reasons.freeze()

    def records(self) -> Iterator[list[Any]]:
        yield [[*row[:2], _RULES_ROW(row[2]), *row[3:-1]] for row in self._queues]
        yield [
            [row[0], shard.name, shard.worker, shard.token, shard.revoking, shard.removed]
            for row in self._queues
            for _, shard in sorted(row[-1].items())
        ]
        yield [_WORKER_ROW(worker) for _, worker in sorted(self._workers.items())]
        yield self._unbalanced

    def pieces(self) -> Iterator[list[tuple[int, bytes]]]:
        """Payloads, then reasons; an empty piece ends each."""
        for pages in (self._payloads, self._reasons):
            yield from pieces(pages)
            yield []


def read(state: State, records: Callable[[], list[Any]], following: Iterator[Any]) -> None:
    for name, namespace, rules, standing, *numbers, dead, done in records():
        queue = Queue(name, namespace, PutQueue(*rules), standing, *numbers)
        queue.dead, queue.done = Chain(*dead), Chain(*done)
        state.task_queues[name] = queue
    for name, shard, *rest in records():
        state.task_queues[name].shards[shard] = Shard(shard, *rest)
    for row in records():
        state.workers[row[0]] = Worker(*row)
    state.unbalanced = dict.fromkeys(records())
    for pages in (state.tasks.payloads, state.tasks.reasons):
        _read_pages(pages, state.tasks.used, following)


def _read_pages(pages: Pages, used: int, following: Iterator[Any]) -> None:
    while piece := next(following):
        for slot, value in piece:
            require(0 <= slot < used, "bytes of a task that is not there")
            pages.put(slot, value)
