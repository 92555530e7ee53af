"""Rings and other graphs on a lone machine, and collecting them a step at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordinator.machine import commands as c
from coordinator.machine.collection import Collection, CollectionCounts
from coordinator.machine.graph import LIVE
from coordinator.machine.limits import MAX_BATCH_EDGES
from tests.service.lone import LoneHost

BUFFER_MS = 60_000
VISITS = 200


def put(host: LoneHost, ids: Iterable[str], edges: Iterable[tuple[str, str]]) -> None:
    names, pairs = list(ids), list(edges)
    for start in range(0, len(names), MAX_BATCH_EDGES):
        host.run(c.PutResources(tuple(names[start : start + MAX_BATCH_EDGES]), "p", "k", None, BUFFER_MS))
    for start in range(0, len(pairs), MAX_BATCH_EDGES):
        sources, targets = zip(*pairs[start : start + MAX_BATCH_EDGES], strict=True)
        host.run(c.PutEdges(sources, targets))


def ring(size: int, prefix: str = "r") -> tuple[list[str], list[tuple[str, str]]]:
    ids = [f"{prefix}{number}" for number in range(size)]
    return ids, list(zip(ids, [*ids[1:], ids[0]], strict=True))


def pass_buffers(host: LoneHost) -> None:
    """What was just registered is looked at."""
    host.now_ms += 2 * BUFFER_MS
    sweep(host)


def sweep(host: LoneHost) -> None:
    while host.replica.machine.due(host.now_ms) or host.replica.machine.now_ms < host.now_ms:
        host.run(c.Sweep(20_000))


def held_ring(host: LoneHost, size: int) -> None:
    """A cycle that one lease keeps alive, with no suspects left."""
    ids, edges = ring(size)
    put(host, ids, edges)
    host.run(c.AcquireLease("r0", "a", 100 * BUFFER_MS))
    pass_buffers(host)
    finish(host, Collection(host.replica.machine, CollectionCounts()))
    assert live(host) == size


def state_of(host: LoneHost) -> Any:
    return host.replica.machine.state


def live(host: LoneHost) -> int:
    table = state_of(host).resources
    return int((table.column("state")[: table.used] == LIVE).sum())


def pending(host: LoneHost) -> int:
    return host.replica.machine.reclaim_counts().open


def next_command(collection: Collection) -> Any:
    for _ in range(10_000):
        command = collection.step(VISITS)
        if command is not None or not collection.under_way:
            return command
    raise AssertionError("the round does not end")


def finish(host: LoneHost, collection: Collection) -> None:
    while collection.wanted:
        command = next_command(collection)
        if command is not None:
            collection.answered(command, host.run(command)[0])
    sweep(host)
