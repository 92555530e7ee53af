"""What must stand, and what must not come back: waiters in their order (I12, I13), copies (I14), facts (I9)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import ClassVar

from coordinator.machine.events import Event
from tests.chaos.gaps import BEGINNINGS, Gap, Thing, gaps
from tests.chaos.records import Record, of
from tests.chaos.tally import Verdict
from tests.checkers.exclusive_holds import ENDS, ExclusiveHolds
from tests.checkers.free_lock_granted import FreeLockGranted
from tests.checkers.grant_order import GrantOrder
from tests.checkers.violation import Violation

WAITS = ("wait_begun", "wait_expired", "wait_cancelled")


class _Turns:
    """One stretch of events without a gap. What began before it is not known, and not judged."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._holds, self.order = ExclusiveHolds(), GrantOrder()
        self.free = FreeLockGranted(self._holds, self.order)

    def event(self, event: Event) -> None:
        known = event.waiter_id in self.order.queues[event.key]
        ends_unknown = event.kind in ENDS and event.key not in self._holds.held
        if not self._whole and (ends_unknown or (event.kind == "lock_granted" and event.waiter_id and not known)):
            # Whoever waits here came later than those from before the gap, of whom nothing is known.
            return
        if not self._whole and event.kind == "wait_begun" and event.key not in self._holds.held:
            return
        self.order.event(event, 0)
        self._holds.event(event)


def waiters_have_their_turn(records: Sequence[Record]) -> list[Verdict]:
    """In their order, and none whose wait was over by the log; at once (I12, I13).

    That a wait should have been over, and the log does not say so, is not looked at here: that is by the clock of the
    cluster, which stands still in an outage, and of which a watch tells nothing. The simulation does.
    """
    turns, found = _Turns(whole=True), {"I12": list[str](), "I13": list[str]()}
    handed_over = waiters = last = 0
    over = {"waits over before their turn": sum(each["kind"] in WAITS[1:] for each in of(records, "event"))}

    def settled() -> None:
        try:
            turns.free.check(0)
        except Violation as error:
            found["I13"].append(str(error))

    for record in of(records, "event", "gap"):
        if record["what"] == "gap":
            handed_over, waiters = handed_over + turns.order.handed_over, waiters + turns.free.waiters
            turns = _Turns(whole=False)
            continue
        if record["revision"] != last:
            settled()
            last = record["revision"]
        if not record["kind"].startswith("lock_") and record["kind"] not in WAITS:
            continue
        try:
            turns.event(_event(record))
        except Violation as error:
            found["I12"].append(str(error))
    settled()
    handed_over, waiters = handed_over + turns.order.handed_over, waiters + turns.free.waiters
    return [
        Verdict("I12", {"grants in order, to waits not over in the log": handed_over}, found["I12"], over),
        Verdict("I13", {"waiters seen at the end of an entry": waiters}, found["I13"]),
    ]


def _event(record: Record) -> Event:
    number, waiter = int(record["lease_id"] or "0", 16), int(record["waiter"] or "0", 16)
    token = record["token"] or 0
    return Event(record["revision"], record["kind"], "default", record["key"], record["owner"], number, token, waiter)


def the_dead_stay_dead(records: Sequence[Record], standing: Iterable[str]) -> Verdict:
    """`standing`: tombstones in the end. One goes only when every holder has dropped its copy, and is then served by
    nobody; in the end all have gone (I14)."""
    kept: dict[tuple[str, str], set[str]] = {}
    purged: set[tuple[str, str]] = set()
    found, away, served = list[str](), 0, 0
    for record in of(records, "kept", "kept_over", "dropped", "event", "serves", "holder_starts"):
        match record["what"]:
            case "kept":
                kept.setdefault((record["name"], record["incarnation"]), set()).add(record["holder"])
            case "kept_over" | "dropped":
                kept.get((record["name"], record["incarnation"]), set()).discard(record["holder"])
            case "serves":
                served += len(record["copies"])
                found += [
                    f"{record['holder']} serves {name}, which died and was purged as {incarnation} (I14)"
                    for name, incarnation in record["copies"].items()
                    if (name, incarnation) in purged
                ]
            case "holder_starts":
                away += bool(record["copies"])
            case "event" if record["kind"] == "tombstone_purged":
                place = record["key"], record["incarnation"]
                purged.add(place)
                if holders := kept.get(place):
                    found.append(f"the tombstone of {place[0]} went, and {', '.join(sorted(holders))} has a copy (I14)")
    found += [f"the tombstone of {each} stands in the end (I14)" for each in standing]
    counts = {"tombstones purged": len(purged), "copies served": served, "returns of a holder with copies": away}
    return Verdict("I14", counts, found)


# --- facts, leases and locks (I9) -------------------------------------------------------------------------------------


def acknowledged_is_there(records: Sequence[Record], facts: Iterable[str], active: Iterable[str]) -> Verdict:
    """Each fact is there; each lease and lock that was granted is in the log, and is there or was ended there (I9).

    Left out is only what a gap in the watch may hide; how much that is, is told.
    """
    told = {record["name"] for record in of(records, "fact")}
    found = [f"{each}, which was acknowledged, is not there in the end (I9)" for each in sorted(told - set(facts))]
    events, missing = of(records, "event"), gaps(records)
    leases, locks = _Log("lease", missing), _Log("lock", missing)
    for event in events:
        leases.event(event, event["lease_id"])
        locks.event(event, (event["key"], event["token"]))
    leases.judge(_leases(records), set(active))
    locks.judge(_holds(records), set())
    return Verdict(
        "I9",
        {"facts": len(told), "leases": leases.judged, "locks": locks.judged},
        found + leases.found + locks.found,
        {"gaps in the watch": len(missing), "leases in a gap": leases.hidden, "locks in a gap": locks.hidden},
    )


class _Log:
    """The beginnings and ends of leases, or of locks, that the watch told of."""

    ENDS: ClassVar = {"lease": ("lease_released", "lease_expired"), "lock": ENDS}

    def __init__(self, kind: str, missing: Sequence[Gap]) -> None:
        self._kind, self._missing = kind, missing
        self._began, self._ended = set[Hashable](), set[Hashable]()
        self.judged = self.hidden = 0
        self.found: list[str] = []

    def event(self, event: Record, identity: Hashable) -> None:
        if BEGINNINGS.get(event["kind"]) == self._kind:
            self._began.add(identity)
        elif event["kind"] in self.ENDS[self._kind]:
            self._ended.add(identity)

    def judge(self, things: Mapping[Hashable, Thing], there: Set[Hashable]) -> None:
        for identity, thing in things.items():
            unheard = identity not in self._began
            lost = identity not in self._ended and identity not in there
            hides_beginning = any(gap.may_hide_beginning(thing) for gap in self._missing)
            hides_end = any(gap.may_hide_end(thing) for gap in self._missing)
            if unheard and not hides_beginning:
                self.found.append(f"the log does not have {thing.name}, which was acknowledged (I9)")
            if lost and not hides_end:
                self.found.append(f"{thing.name} was acknowledged, was not ended and is not there (I9)")
            hidden = (unheard and hides_beginning) or (lost and hides_end)
            self.hidden += hidden
            self.judged += not hidden


def _leases(records: Sequence[Record]) -> dict[Hashable, Thing]:
    """By id, with until when each was surely there: while it was promised and not given back, or was seen."""
    found: dict[Hashable, Thing] = {}
    for record in of(records, "leased", "forsaken"):
        number = record["lease_id"]
        found[number] = Thing(f"the lease {number}", ("lease", record["name"], record["who"]), record["token"])
    for record in of(records, "promised"):
        for number in record["until"].keys() & found.keys():
            found[number].there_s = record["until"][number]
    for record in of(records, "lease_released", "lease_lost", "forsaken_there"):
        thing = found[record["lease_id"]]
        if record["what"] == "forsaken_there":
            thing.there_s = max(thing.there_s, record["called"])
        else:
            thing.there_s = min(thing.there_s, record["at"])
    return found


def _holds(records: Sequence[Record]) -> dict[Hashable, Thing]:
    """By key and token. Who notes that it holds has not given back, so it was there then, unless its time was over."""
    found: dict[Hashable, Thing] = {}
    for record in of(records, "held"):
        key, token = place = record["key"], record["token"]
        thing = found.setdefault(place, Thing(f"the hold of {key} under {token}", ("lock", key), token))
        if record["until"] > record["at"]:
            thing.there_s = max(thing.there_s, record["at"])
    return found
