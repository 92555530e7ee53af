"""What must stand, and what must not come back: waiters in their order (I12, I13), copies (I14), facts (I9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.machine.events import Event
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
    turns, found = _Turns(whole=True), {"I12": list[str](), "I13": list[str]()}
    handed_over = waiters = last = 0

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
        Verdict("I12", {"grants to waiters": handed_over}, found["I12"]),
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


def acknowledged_is_there(records: Sequence[Record], facts: Iterable[str], active: Iterable[str]) -> Verdict:
    """Each fact is there; each lease and lock that was granted is in the log, and is there or was ended there (I9)."""
    told = {record["name"] for record in of(records, "fact")}
    events = of(records, "event")
    began = {record["lease_id"] for record in events if record["kind"] == "lease_acquired"}
    ended = {record["lease_id"] for record in events if record["kind"] in ("lease_released", "lease_expired")}
    granted = {(record["key"], record["token"]) for record in events if record["kind"] == "lock_granted"}
    over = {(record["key"], record["token"]) for record in events if record["kind"] in ENDS}
    leased = {record["lease_id"] for record in of(records, "leased", "forsaken")}
    held = {(record["key"], record["token"]) for record in of(records, "held")}
    found = [f"{each}, which was acknowledged, is not there in the end (I9)" for each in sorted(told - set(facts))]
    if not of(records, "gap"):
        found += [f"the log does not have the lease {each}, which was acknowledged (I9)" for each in leased - began]
        lost = leased - ended - set(active)
        found += [f"the lease {each} was acknowledged, was not ended and is not there (I9)" for each in lost]
        found += [f"the log does not have the grant of {key} under {token} (I9)" for key, token in held - granted]
        found += [f"the hold of {key} under {token} did not end, nor is it there (I9)" for key, token in held - over]
    counts = {"facts": len(told), "leases": len(leased), "locks": len(held)}
    return Verdict("I9", counts, found)
