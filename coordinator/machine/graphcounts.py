"""Numbers of the reference graph and its clean-ups, for telemetry."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest

from coordinator.machine import garbage
from coordinator.machine.graph import Lane
from coordinator.machine.limits import LANE_FAILURES
from coordinator.machine.state import State

MAX_LANES_TOLD = 50
"""The fullest; their names are labels of time series, of which there must not be any number."""


@dataclass(frozen=True, slots=True)
class LaneCounts:
    namespace: str
    provider: str
    kind: str
    pending: int
    delayed: int
    claimed: int
    dead: int
    oldest_ms: int
    """For how long the first of the pending ones has been garbage."""
    closed: bool
    """Its failures have closed it: nothing is handed out, or one at a time."""


@dataclass(frozen=True, slots=True)
class ReclaimCounts:
    pending: int
    delayed: int
    claimed: int
    dead: int
    done: int
    """Ever."""
    oldest_ms: int
    lanes: int
    closed_lanes: int
    fullest: tuple[LaneCounts, ...]

    @property
    def open(self) -> int:
        """Clean-ups that are not done."""
        return self.pending + self.delayed + self.claimed + self.dead


@dataclass(frozen=True, slots=True)
class GraphCounts:
    resources: int
    edges: int
    unreferenced: int
    """LIVE, not pinned, and nothing refers to it."""
    suspects: int
    garbage: int
    """Known to be garbage, its references not all cut."""


def _size(lane: Lane) -> int:
    return lane.ready.count + lane.delayed + lane.claimed + lane.dead.count


def _oldest_ms(state: State, lane: Lane, now_ms: int) -> int:
    if not lane.ready.first:
        return 0
    return max(0, now_ms - int(state.resources.since_ms[lane.ready.first - 1]))


def _told(state: State, provider: int, kind: int, lane: Lane, now_ms: int) -> LaneCounts:
    names = state.names
    return LaneCounts(
        state.namespace_of(provider).name, names.text(provider), names.text(kind), lane.ready.count, lane.delayed,
        lane.claimed, lane.dead.count, _oldest_ms(state, lane, now_ms), lane.failures >= LANE_FAILURES,
    )  # fmt: skip


def reclaim_counts(state: State, now_ms: int) -> ReclaimCounts:
    lanes = [(provider, kind, lane) for provider, kinds in state.lanes.items() for kind, lane in kinds.items()]
    fullest = nlargest(MAX_LANES_TOLD, lanes, key=lambda each: _size(each[2]))
    return ReclaimCounts(
        pending=sum(lane.ready.count for _, _, lane in lanes),
        delayed=sum(lane.delayed for _, _, lane in lanes),
        claimed=sum(lane.claimed for _, _, lane in lanes),
        dead=sum(lane.dead.count for _, _, lane in lanes),
        done=state.reclaimed,
        oldest_ms=max((_oldest_ms(state, lane, now_ms) for _, _, lane in lanes), default=0),
        lanes=len(lanes),
        closed_lanes=sum(lane.failures >= LANE_FAILURES for _, _, lane in lanes),
        fullest=tuple(_told(state, *each, now_ms) for each in fullest),
    )


def graph_counts(state: State) -> GraphCounts:
    waiting = garbage.backlog(state)
    return GraphCounts(state.resources.live, state.edges.live, state.orphans, state.suspects.count, waiting)
