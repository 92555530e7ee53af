"""The numbers of queues, tasks and shards for `telemetry`: of all together, and of the fullest queues by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from coordinator.http.schemas import COUNT, TEXT, Schema, listed, record
from coordinator.machine.taskreads import DispatchCounts, QueueCounts
from coordinator.service import Service

TASK_STATES = ("ready", "delayed", "blocked", "leased", "suspect", "dead", "done")
SHARD_STATES = ("owned", "revoking", "waiting", "uncounted")
SHOWN_QUEUES = 50
"""Only so many have series of their own: those with most tasks that are not done."""
COUNTED_SHARDS = 10_000
"""Of more, the states are not looked at: that is too much to do between two requests."""


def document(service: Service) -> dict[str, Any]:
    counts = service.machine.dispatch.counts(service.now_ms())
    return {
        "ready": counts.ready,
        "delayed": counts.delayed,
        "blocked": counts.blocked,
        "leased": counts.leased,
        "suspect": counts.suspect,
        "dead": counts.dead,
        "done": counts.done,
        "bounced": counts.bounced,
        "oldest_ready_age_ms": _oldest_ms(counts),
        "workers": counts.workers,
        "shards": shards_by_state(service, counts),
        "moves": dict(service.telemetry.task_moves),
        "queues": len(counts.queues),
        "fullest_queues": [asdict(queue) for queue in fullest(counts)],
    }


def schema() -> Schema:
    numbers = dict.fromkeys((*TASK_STATES, "bounced", "oldest_ready_age_ms", "workers"), COUNT)
    queue = record(
        namespace=TEXT, queue=TEXT, **numbers, handed_out=COUNT, waited_ms=COUNT, completed=COUNT, failed=COUNT,
        buried=COUNT, shards=COUNT,
    )  # fmt: skip
    shards = record(**dict.fromkeys(SHARD_STATES, COUNT))
    return record(**numbers, shards=shards, moves={"type": "object"}, queues=COUNT, fullest_queues=listed(queue))


def metrics(service: Service) -> Iterator[Metric]:
    counts = service.machine.dispatch.counts(service.now_ms())
    yield from _totals(service, counts)
    yield from _by_queue(fullest(counts))


def _totals(service: Service, counts: DispatchCounts) -> Iterator[Metric]:
    tasks = GaugeMetricFamily("holdfast_tasks", "Tasks in the state", labels=["state"])
    for state in TASK_STATES:
        tasks.add_metric([state], getattr(counts, state))
    yield tasks
    shards = GaugeMetricFamily("holdfast_shards", "Shards by who has them", labels=["state"])
    for state, number in shards_by_state(service, counts).items():
        shards.add_metric([state], number)
    yield shards
    yield GaugeMetricFamily("holdfast_queues", "Queues in the state", value=len(counts.queues))
    yield GaugeMetricFamily("holdfast_shard_workers", "Workers that share shards", value=counts.workers)
    yield GaugeMetricFamily(
        "holdfast_task_oldest_ready_seconds", "How long the oldest ready task waits", value=_oldest_ms(counts) / 1000
    )
    moves = CounterMetricFamily(
        "holdfast_task_moves", "What became of tasks since this node started, on every node the same", labels=["kind"]
    )
    for kind, number in sorted(service.telemetry.task_moves.items()):
        moves.add_metric([kind], number)
    yield moves
    waits = service.telemetry.task_wait_s
    yield HistogramMetricFamily(
        "holdfast_task_wait_seconds",
        "From ready to handed out, as far as this node saw both",
        buckets=waits.cumulative(),
        sum_value=waits.sum,
    )


def _by_queue(queues: list[QueueCounts]) -> Iterator[Metric]:
    labels = ["namespace", "queue"]
    tasks = GaugeMetricFamily("holdfast_queue_tasks", "Tasks of the fullest queues", labels=[*labels, "state"])
    oldest = GaugeMetricFamily("holdfast_queue_oldest_ready_seconds", "Age of its oldest ready task", labels=labels)
    ended = CounterMetricFamily("holdfast_queue_moves", "What became of its tasks, ever", labels=[*labels, "kind"])
    for queue in queues:
        names = [queue.namespace, queue.queue]
        for state in TASK_STATES:
            tasks.add_metric([*names, state], getattr(queue, state))
        for kind in ("handed_out", "completed", "failed", "bounced", "buried"):
            ended.add_metric([*names, kind], getattr(queue, kind))
        oldest.add_metric(names, queue.oldest_ready_age_ms / 1000)
    yield from (tasks, oldest, ended)


def fullest(counts: DispatchCounts) -> list[QueueCounts]:
    def fill(queue: QueueCounts) -> int:
        return queue.ready + queue.delayed + queue.blocked + queue.leased + queue.suspect + queue.dead

    return sorted(counts.queues, key=lambda queue: (-fill(queue), queue.namespace, queue.queue))[:SHOWN_QUEUES]


def shards_by_state(service: Service, counts: DispatchCounts) -> dict[str, int]:
    found, left = dict.fromkeys(SHARD_STATES, 0), COUNTED_SHARDS
    for queue in counts.queues:
        if not queue.shards or queue.shards > left:
            found["uncounted"] += queue.shards
            continue
        left -= queue.shards
        for shard in service.machine.dispatch.shards(queue.namespace, queue.queue):
            found["waiting" if shard.owner is None else "revoking" if shard.revoking else "owned"] += 1
    return found


def _oldest_ms(counts: DispatchCounts) -> int:
    return max((queue.oldest_ready_age_ms for queue in counts.queues), default=0)
