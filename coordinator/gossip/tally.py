"""A set of node ids that only grows: exact while it is small, sketches after that.

Small sets are lists of ids, so "is everyone of these in those" has an exact answer. Past EXACT_IDS a set becomes LANES
HyperLogLog sketches, each of the ids under a hash of its own. One set covers another when it dominates it in every
lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coordinator.gossip.limits import EXACT_IDS, LANES, MEMBERS, NODE_ID_BYTES, PRECISION
from coordinator.machine.sketch import Sketch


class Implausible(ValueError):
    """Something that no honest node sends. Its message is refused and nothing changes."""


@dataclass(frozen=True)
class Shape:
    """How sets are kept: the same on all nodes of a group, or they refuse each other's sketches."""

    exact_ids: int = EXACT_IDS
    lanes: int = LANES
    precision: int = PRECISION


STANDARD = Shape()


@dataclass(frozen=True, eq=False)
class Tally:
    """Never changes; every operation makes a new one, or gives back the same one when nothing is new."""

    shape: Shape = STANDARD
    ids: frozenset[str] | None = frozenset()
    """None when there are too many to list."""
    sketches: tuple[Sketch, ...] = ()
    """Empty while the ids are listed. Nobody changes one after it is in here."""

    @classmethod
    def of(cls, ids: Iterable[str], shape: Shape = STANDARD) -> Tally:
        listed = frozenset(ids)
        if len(listed) <= shape.exact_ids:
            return cls(shape, listed)
        return cls(shape, None, _sketched(listed, shape))

    def adding(self, *ids: str) -> Tally:
        return self.union(Tally.of(ids, self.shape))

    def union(self, other: Tally) -> Tally:
        if self.covers(other):
            return self
        if self.ids is not None and other.ids is not None:
            return Tally.of(self.ids | other.ids, self.shape)
        mine, theirs = self._lanes, other._lanes
        return Tally(self.shape, None, tuple(a.union(b) for a, b in zip(mine, theirs, strict=True)))

    def covers(self, other: Tally) -> bool:
        """Whether everyone in `other` is here. Exact while this set is; else a yes may be a mistake, a no never."""
        if self.ids is not None:
            # More ids than can be listed are not among those that are.
            return other.ids is not None and other.ids <= self.ids
        if other.ids is not None:
            return not other.ids - self._seen(other.ids)
        return all(mine.dominates(theirs) for mine, theirs in zip(self.sketches, other.sketches, strict=True))

    def holds(self, node_id: str) -> bool:
        return self.covers(Tally.of((node_id,), self.shape))

    def same(self, other: Tally) -> bool:
        return self.ids == other.ids and self.sketches == other.sketches

    def estimate(self) -> int:
        return len(self.ids) if self.ids is not None else self.sketches[0].estimate()

    def wire(self) -> list[Any]:
        if self.ids is not None:
            return [0, sorted(self.ids)]
        return [1, [sketch.to_bytes() for sketch in self.sketches]]

    @classmethod
    def from_wire(cls, raw: Any, shape: Shape = STANDARD) -> Tally:
        """Implausible for anything an honest node of this shape cannot have sent."""
        match raw:
            case [0, list(ids)]:
                return cls(shape, _checked_ids(ids, shape))
            case [1, list(lanes)] if len(lanes) == shape.lanes:
                return cls(shape, None, tuple(_checked_lane(lane, shape) for lane in lanes))
        raise Implausible("a set of node ids that is neither a list of them nor sketches in all lanes")

    @cached_property
    def _lanes(self) -> tuple[Sketch, ...]:
        return self.sketches if self.ids is None else _sketched(self.ids, self.shape)

    def _seen(self, ids: frozenset[str]) -> frozenset[str]:
        """Those of `ids` that are, or seem to be, here."""
        if self.ids is not None:
            return ids & self.ids
        return frozenset(
            each
            for each in ids
            if all(
                lane.dominates(one)
                for lane, one in zip(self.sketches, _sketched(frozenset((each,)), self.shape), strict=True)
            )
        )


def lane_name(lane: int, node_id: str) -> str:
    """What is put into a lane for a node: other bytes in each lane, so other hashes."""
    return f"{lane}/{node_id}"


def _sketched(ids: frozenset[str], shape: Shape) -> tuple[Sketch, ...]:
    def one(lane: int) -> Sketch:
        sketch = Sketch(shape.precision)
        for node_id in ids:
            sketch.add(lane_name(lane, node_id))
        return sketch

    return tuple(one(lane) for lane in range(shape.lanes))


def _checked_ids(ids: list[Any], shape: Shape) -> frozenset[str]:
    if len(ids) > shape.exact_ids:
        raise Implausible(f"a list of {len(ids)} ids where at most {shape.exact_ids} are listed")
    for each in ids:
        check_node_id(each)
    if ids != sorted(set(ids)):
        raise Implausible("ids that are not in order, or twice in one list")
    return frozenset(ids)


def check_node_id(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.encode()) <= NODE_ID_BYTES:
        raise Implausible(f"a node id is printable text of 1 to {NODE_ID_BYTES} bytes")
    return value


def _checked_lane(raw: Any, shape: Shape) -> Sketch:
    if not isinstance(raw, bytes):
        raise Implausible("a sketch that is no bytes")
    try:
        sketch = Sketch.from_bytes(raw, shape.precision)
    except ValueError as error:
        raise Implausible(str(error)) from None
    # Registers pushed up everywhere would make a set cover everything: the estimate shows it. One register pushed up
    # alone does not show; as a holder that never comes it keeps the tombstone, which is safe.
    if sketch.estimate() > 2 * MEMBERS:
        raise Implausible(f"a sketch of about {sketch.estimate()} nodes where a group has at most {MEMBERS}")
    return sketch
