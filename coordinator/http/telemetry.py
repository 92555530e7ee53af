"""/api/v1/telemetry as JSON and /metrics for Prometheus: the same numbers, with stable names and units."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.http import copymetrics, queuemetrics
from coordinator.http.operations import Call, Operation
from coordinator.http.schemas import COUNT, MS, NUMBER, TEXT, listed, record
from coordinator.machine.graphcounts import ReclaimCounts
from coordinator.service import Service
from coordinator.telemetry import CollectorCounts, Histogram

RECLAIM_STATES = ("pending", "delayed", "claimed", "dead")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def telemetry(call: Call) -> web.Response:
    return call.answer(document(call.service))


async def metrics(call: Call) -> web.Response:
    await call.service.look_at_leader()
    registry = CollectorRegistry()
    registry.register(_Numbers(call.service))
    return web.Response(body=generate_latest(registry), headers={"Content-Type": METRICS_TYPE})


def document(service: Service) -> dict[str, Any]:
    counted, counts = service.telemetry, service.machine.counts()
    graph, reclaims = service.machine.graph_counts(), service.machine.reclaim_counts(service.now_ms())
    return {
        "orphans": graph.unreferenced + reclaims.open,
        "sweep_backlog": counts.backlog,
        "renewal_failure_rate": counted.recent_renewals.refused_part,
        "renewals": counted.renewals,
        "renewal_failures": counted.renewal_failures,
        "denials": dict(counted.denials),
        "active_leases": counts.active_leases,
        "expired_leases": counts.expired_leases,
        "sessions": counts.sessions,
        "locks": counts.locks,
        "waiters": counts.waiters,
        "queue_depth": service.queue_depth(),
        "watches": service.hub.watches,
        "watch_lag_revisions": service.hub.lag,
        "leader_changes": counted.leader_changes,
        "role": "leader" if service.leading else "follower",
        "revision": service.revision,
        "now_ms": service.now_ms(),
        "last_fencing_token": counts.last_token,
        "resources": graph.resources,
        "edges": graph.edges,
        "suspects": graph.suspects,
        "reclaims": _reclaims(reclaims),
        "collector": _collector(counted.collector),
        "dispatch": queuemetrics.document(service),
        "copies": copymetrics.document(service),
    }


def _reclaims(counts: ReclaimCounts) -> dict[str, Any]:
    return {
        "pending": counts.pending,
        "delayed": counts.delayed,
        "claimed": counts.claimed,
        "dead": counts.dead,
        "done": counts.done,
        "oldest_pending_ms": counts.oldest_ms,
        "lanes": counts.lanes,
        "closed_lanes": counts.closed_lanes,
        "fullest_lanes": [asdict(lane) for lane in counts.fullest],
    }


def _collector(counts: CollectorCounts) -> dict[str, Any]:
    """Of this node while it led: the sum over the nodes is the cluster's."""
    return {
        **asdict(counts.collection),
        "audits": counts.audits,
        "audit_findings": counts.audit_findings,
        "last_audit_s": counts.last_audit_s,
    }


class _Numbers(Collector):
    """Prometheus's view of one moment."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._gauges()
        yield from self._graph()
        yield from queuemetrics.metrics(self._service)
        yield from copymetrics.metrics(self._service)
        yield from self._histograms()

    def _counters(self) -> Iterator[Metric]:
        counted = self._service.telemetry
        yield CounterMetricFamily(
            "holdfast_renewals", "Leases and locks renewed by requests this node served", value=counted.renewals
        )
        yield CounterMetricFamily(
            "holdfast_renewal_failures", "Renewals this node was asked for and refused", value=counted.renewal_failures
        )
        yield CounterMetricFamily(
            "holdfast_swept", "What sweeps of this node worked off while it led", value=counted.swept
        )
        yield CounterMetricFamily(
            "holdfast_leader_changes", "Leaders this node has seen come", value=counted.leader_changes
        )
        for name, label, about, counter in (
            ("holdfast_denials", "reason", "Requests this node refused", counted.denials),
            ("holdfast_proposals", "outcome", "Commands this node proposed", counted.outcomes),
            ("holdfast_expired", "kind", "Applied expiries, on every node the same", counted.expired),
            ("holdfast_watches_cut", "reason", "Watches this node ended", counted.watches_cut),
        ):
            family = CounterMetricFamily(name, about, labels=[label])
            for key in sorted(counter):
                family.add_metric([key], counter[key])
            yield family

    def _gauges(self) -> Iterator[Metric]:
        service = self._service
        counts = service.machine.counts()
        leases = GaugeMetricFamily("holdfast_leases", "Leases and lock holds in the state", labels=["state"])
        leases.add_metric(["active"], counts.active_leases)
        leases.add_metric(["expired"], counts.expired_leases)
        yield leases
        role = GaugeMetricFamily("holdfast_role", "1 for what this node is", labels=["role"])
        for name in ("leader", "follower"):
            role.add_metric([name], float(service.leading == (name == "leader")))
        yield role
        clock_s = service.now_ms() / 1000 - time.time()
        free_bytes, disk_bytes = service.host.disk_room()
        for name, about, value in (
            ("holdfast_sessions", "Sessions in the state", counts.sessions),
            ("holdfast_locks", "Locks that are held or waited for", counts.locks),
            ("holdfast_lock_waiters", "Waiters in lock queues", counts.waiters),
            ("holdfast_sweep_backlog", "What is due and not worked off yet", counts.backlog),
            ("holdfast_remembered_requests", "Request ids kept", counts.remembered_requests),
            ("holdfast_queue_commands", "Commands that wait for an entry on this node", service.queue_depth()),
            ("holdfast_watches", "Open watches on this node", service.hub.watches),
            ("holdfast_watch_lag_revisions", "How far the slowest watch is behind", service.hub.lag),
            ("holdfast_revision", "Last applied log index", service.revision),
            ("holdfast_level", "By which level's rules the state goes", service.machine.level),
            ("holdfast_known_level", "The highest level that this node knows", service.machine.known_level),
            ("holdfast_disk_free_bytes", "Free on the disk of this node's data directory", free_bytes),
            ("holdfast_disk_bytes", "Size of that disk", disk_bytes),
            ("holdfast_staleness_seconds", "How old this node's state may be", service.staleness_ms() / 1000),
            (
                "holdfast_cluster_clock_minus_wall_seconds",
                "Grows smaller in an outage; any other change is a step of this node's wall clock",
                clock_s,
            ),
        ):
            yield GaugeMetricFamily(name, about, value=value)
        if expires_s := service.telemetry.certificate_expires_s:
            yield _certificates(expires_s)

    def _graph(self) -> Iterator[Metric]:
        graph, counted = self._service.machine.graph_counts(), self._service.telemetry.collector
        collection = counted.collection
        reclaims = self._service.machine.reclaim_counts(self._service.now_ms())
        for name, about, value in (
            (
                "holdfast_orphans",
                "Resources that nothing refers to, clean-ups included",
                graph.unreferenced + reclaims.open,
            ),
            ("holdfast_resources", "Registered resources", graph.resources),
            ("holdfast_edges", "References between resources", graph.edges),
            ("holdfast_suspects", "Resources of which it is not known whether anything keeps them", graph.suspects),
            ("holdfast_garbage", "Known to be garbage, references not all cut yet", graph.garbage),
            ("holdfast_reclaim_oldest_seconds", "Age of the oldest clean-up next in a lane", reclaims.oldest_ms / 1000),
            ("holdfast_reclaim_closed_lanes", "Lanes closed by their failures", reclaims.closed_lanes),
            ("holdfast_audit_seconds", "What the last audit of this node took", counted.last_audit_s),
        ):
            yield GaugeMetricFamily(name, about, value=value)
        for name, about, value in (
            ("holdfast_reclaims_done", "Clean-ups acknowledged, on every node the same", reclaims.done),
            ("holdfast_collector_rounds", "Searches for cycles that this node began", collection.rounds),
            ("holdfast_collector_visits", "What they cost: steps of the search", collection.visits),
            ("holdfast_collector_settled", "Suspects they found alive", collection.settled),
            ("holdfast_collector_sets_proposed", "Sets they found to be garbage", collection.sets_proposed),
            (
                "holdfast_collector_sets_refused",
                "Of these, changed before they were taken",
                collection.sets_refused,
            ),
            ("holdfast_collector_condemned", "Resources of sets that were taken", collection.condemned),
            ("holdfast_audits", "Full marks from the roots on this node", counted.audits),
            ("holdfast_audit_findings", "Garbage that was missed; must stay 0", counted.audit_findings),
        ):
            yield CounterMetricFamily(name, about, value=value)
        yield from _lanes(reclaims)

    def _histograms(self) -> Iterator[Metric]:
        counted = self._service.telemetry
        for name, about, histogram in (
            ("holdfast_commit_seconds", "From a request to its applied answer", counted.commit_s),
            ("holdfast_apply_seconds", "Applying one entry", counted.apply_s),
            ("holdfast_sweep_seconds", "One sweep, committed", counted.sweep_s),
            ("holdfast_batch_commands", "Commands in one entry", counted.batch_commands),
            ("holdfast_collector_slice_seconds", "One slice of the search for cycles", counted.collector.slice_s),
            ("holdfast_collector_round_seconds", "One whole search, its sets taken", counted.collector.round_s),
        ):
            yield _histogram(name, about, histogram)


def _certificates(expires_s: dict[str, float]) -> Metric:
    """The label is the setting of [tls] that names the file."""
    about = "When the node's certificate, or an authority it believes, expires"
    family = GaugeMetricFamily("holdfast_certificate_expires_timestamp_seconds", about, labels=["file"])
    for file, seconds in expires_s.items():
        family.add_metric([file], seconds)
    return family


def _lanes(reclaims: ReclaimCounts) -> Iterator[Metric]:
    """Only the fullest have series of their own."""
    total = GaugeMetricFamily("holdfast_reclaims", "Clean-ups that are not done", labels=["state"])
    for state in RECLAIM_STATES:
        total.add_metric([state], getattr(reclaims, state))
    yield total
    labels = ["namespace", "provider", "kind"]
    lanes = GaugeMetricFamily("holdfast_lane_reclaims", "The same by lane, the fullest", labels=[*labels, "state"])
    oldest = GaugeMetricFamily("holdfast_lane_oldest_seconds", "Age of the clean-up that is next", labels=labels)
    for lane in reclaims.fullest:
        names = [lane.namespace, lane.provider, lane.kind]
        for state in RECLAIM_STATES:
            lanes.add_metric([*names, state], getattr(lane, state))
        oldest.add_metric(names, lane.oldest_ms / 1000)
    yield from (lanes, oldest)


def _histogram(name: str, about: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, about, buckets=histogram.cumulative(), sum_value=histogram.sum)


def operations() -> list[Operation]:
    lane = record(
        namespace=TEXT, provider=TEXT, kind=TEXT, pending=COUNT, delayed=COUNT, claimed=COUNT, dead=COUNT,
        oldest_ms=MS, closed={"type": "boolean"},
    )  # fmt: skip
    rate = {**NUMBER, "description": "Of the renewals asked of this node in the last minute, the part it refused."}
    numbers = record(
        orphans=COUNT, sweep_backlog=COUNT, renewal_failure_rate=rate, renewals=COUNT, renewal_failures=COUNT,
        denials={"type": "object"}, active_leases=COUNT, expired_leases=COUNT, sessions=COUNT, locks=COUNT,
        waiters=COUNT, queue_depth=COUNT, watches=COUNT, watch_lag_revisions={"type": "integer"},
        leader_changes=COUNT, role=TEXT, revision=COUNT, now_ms=MS, last_fencing_token=COUNT,
        resources=COUNT, edges=COUNT, suspects=COUNT,
        reclaims=record(
            pending=COUNT, delayed=COUNT, claimed=COUNT, dead=COUNT, done=COUNT, oldest_pending_ms=MS, lanes=COUNT,
            closed_lanes=COUNT, fullest_lanes=listed(lane),
        ),
        collector=record(
            rounds=COUNT, visits=COUNT, settled=COUNT, sets_proposed=COUNT, sets_refused=COUNT, condemned=COUNT,
            audits=COUNT, audit_findings=COUNT, last_audit_s=NUMBER,
        ),
        dispatch=queuemetrics.schema(),
        copies=copymetrics.schema(),
    )  # fmt: skip
    return [
        Operation(
            method="GET", tag="operations", path="/api/v1/telemetry", handler=telemetry, spaced=False,
            about="This node's numbers as JSON.", answers={200: numbers},
        ),
        Operation(
            method="GET", tag="operations", path="/metrics", handler=metrics, spaced=False,
            about="This node's numbers for Prometheus.", answers={200: {}},
        ),
    ]  # fmt: skip
