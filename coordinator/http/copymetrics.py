"""The numbers of holders, copies and tombstones for `telemetry`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coordinator.http.schemas import COUNT, MS, Schema, record
from coordinator.service import Service


def document(service: Service) -> dict[str, Any]:
    """`refused`: what this node refused because of a tombstone; the rest is of the state, on every node the same."""
    counts = asdict(service.machine.copies.counts(service.now_ms()))
    return {**counts, "refused": service.telemetry.denials["tombstoned"]}


def schema() -> Schema:
    return record(
        tombstones=COUNT, tombstone_bytes=COUNT, oldest_ms=MS, created=COUNT, purged=COUNT, due=COUNT, holders=COUNT,
        holders_removed=COUNT, copied_resources=COUNT, furthest_behind=COUNT, most_bytes=COUNT, refused=COUNT,
    )  # fmt: skip


def metrics(service: Service) -> Iterator[Metric]:
    counts = service.machine.copies.counts(service.now_ms())
    for name, about, value in (
        ("holdfast_tombstones", "Tombstones that stand", counts.tombstones),
        ("holdfast_tombstone_bytes", "What they take, about, the ids aside", counts.tombstone_bytes),
        ("holdfast_tombstone_oldest_seconds", "Age of the oldest", counts.oldest_ms / 1000),
        ("holdfast_holders", "Registered holders of copies", counts.holders),
        ("holdfast_copied_resources", "Resources of which a holder registered a copy", counts.copied_resources),
        (
            "holdfast_holder_lag_revisions",
            "How far the holder that is furthest behind is from the newest tombstone",
            counts.furthest_behind,
        ),
    ):
        yield GaugeMetricFamily(name, about, value=value)
    for name, about, value in (
        ("holdfast_tombstones_created", "Tombstones left, on every node the same", counts.created),
        ("holdfast_tombstones_purged", "Tombstones that every holder had processed", counts.purged),
        (
            "holdfast_holders_removed",
            "Holders that left, were removed, or went with their session",
            counts.holders_removed,
        ),
        (
            "holdfast_resurrections_refused",
            "Requests this node refused because of a tombstone",
            service.telemetry.denials["tombstoned"],
        ),
    ):
        yield CounterMetricFamily(name, about, value=value)
