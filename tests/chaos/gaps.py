"""What a gap in the watch leaves in doubt, and what it does not: of leases and locks, when they began and ended.

One counter gives every lease and every hold its token, in the order of the log. So a beginning can only lie in a gap
if its token lies between those that were seen before and after it; and an end only if the thing began before the gap
was over, had no successor in its place before it, and was not there after it. All else is judged as if there were no
gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.records import Record, of

Place = tuple[str, ...]
"""Where there is one at a time: a lock, or the lease of one owner on one resource."""
BEGINNINGS = {"lease_acquired": "lease", "lock_granted": "lock"}


@dataclass
class Thing:
    """A lease or a hold that somebody was told to have."""

    name: str
    place: Place
    token: int
    there_s: float = 0.0
    """It was there then, as its holder knew or saw."""


@dataclass
class Gap:
    at_s: float
    """When the watch was told of it: what is missing was done before."""
    above: int = 0
    below: float = math.inf
    """What began in the gap has a token between these."""
    newest: dict[Place, int] = field(default_factory=dict)
    """By place, the newest token that was seen before."""

    def may_hide_beginning(self, thing: Thing) -> bool:
        return self.above < thing.token < self.below

    def may_hide_end(self, thing: Thing) -> bool:
        followed = self.newest.get(thing.place, 0) > thing.token
        return thing.token < self.below and thing.there_s <= self.at_s and not followed


def place_of(event: Record) -> Place:
    kind = BEGINNINGS[event["kind"]]
    return (kind, event["key"]) if kind == "lock" else (kind, event["key"], event["owner"])


def gaps(records: Sequence[Record]) -> list[Gap]:
    found, above, newest = list[Gap](), 0, dict[Place, int]()
    for record in of(records, "event", "gap"):
        if record["what"] == "gap":
            found.append(Gap(record["at"], above, newest=dict(newest)))
            continue
        if record["kind"] not in BEGINNINGS:
            continue
        token = record["token"]
        above = max(above, token)
        newest[place_of(record)] = max(newest.get(place_of(record), 0), token)
        if record["kind"] == "lease_acquired":
            # Only leases: that a hold is taken again by its holder is told as a grant, under the token that it has.
            for gap in found:
                gap.below = min(gap.below, token)
    return found
