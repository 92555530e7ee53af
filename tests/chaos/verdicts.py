"""The invariants, held against what clients were told and what their store accepted.

Each answers what is wrong; those of a numbered invariant also say how much they looked at. They work on plain records
and rows, so that each is shown, in test_verdicts, what it must find.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cluster.options import Timing
from coordinator.machine.events import Event
from tests.chaos.records import Record, of
from tests.chaos.tally import Verdict
from tests.checkers.exclusive_holds import ENDS, ExclusiveHolds
from tests.checkers.fencing import Fencing
from tests.checkers.no_early_expiry import EXPIRIES, NoEarlyExpiry
from tests.checkers.token_order import TokenOrder
from tests.checkers.violation import Violation

Row = Sequence[Any]
SHOWN = 5


def _shown(found: Iterable[Any]) -> str:
    listed = sorted(found, key=str)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(map(str, listed[:SHOWN])) + more


# --- locks with fencing -----------------------------------------------------------------------------------------------


def guard_holds(
    admitted: Sequence[Row], writes: Sequence[Row], balances: Iterable[Row], records: Sequence[Record]
) -> Verdict:
    """All that the guard of the store let in or kept out (I1)."""
    found = tokens_rise(admitted) + no_lost_update(writes, balances) + late_writes_refused(records)
    late = len(of(records, "overtaken"))
    return Verdict(
        "I1", {"let in by the guard": len(admitted), "guarded writes": len(writes), "late writes": late}, found
    )


def tokens_rise(admitted: Iterable[Row]) -> list[str]:
    """(key, token, who) of every transaction that the guard let in, in order (I1)."""
    fencing, found = Fencing(), list[str]()
    for key, token, who in admitted:
        try:
            fencing.accepted(key, token, who)
        except Violation as error:
            found.append(str(error))
    return found


def no_lost_update(writes: Iterable[Row], balances: Iterable[Row]) -> list[str]:
    """(key, token, who, before, after) in order: each began with what the last one left, and none is missing."""
    amounts: dict[str, int] = defaultdict(int)
    found = []
    for key, token, who, before, after in writes:
        if before != amounts[key]:
            found.append(f"{who} under {token} wrote {after} to {key}, having read {before}; it was {amounts[key]}")
        amounts[key] = after
    stored = {row[0]: row[1] for row in balances}
    if stored != dict(amounts):
        found.append(f"the balances are {stored}, the writes lead to {dict(amounts)}")
    return found


def late_writes_refused(records: Iterable[Record]) -> list[str]:
    """A client that was stopped with a lock, and overtaken, gets its write refused and learns of the loss."""
    late = {(record["key"], record["token"]) for record in of(records, "overtaken")}
    woken = {(record["key"], record["token"]): record for record in of(records, "awake")}
    found = [f"the sleeper with token {token} of {key} never woke up" for key, token in late - woken.keys()]
    for key, token in late & woken.keys():
        seen = woken[key, token]
        if seen["verdict"] != "refused":
            found.append(f"a late write to {key} under {token} was {seen['verdict']} (I1)")
        if seen["state"] == "HELD":
            found.append(f"the SDK says that {key} under {token} is still held, which another has (I4)")
    return found


# --- the log ----------------------------------------------------------------------------------------------------------


def _events(records: Iterable[Record]) -> Iterator[tuple[Event | None, float]]:
    """None where some may be missing."""
    for record in of(records, "event", "gap"):
        if record["what"] == "gap":
            yield None, record["at"]
            continue
        number, token = int(record["lease_id"] or "0", 16), record["token"] or 0
        event = Event(record["revision"], record["kind"], "default", record["key"], record["owner"], number, token)
        yield event, record["at"]


def log_is_in_order(records: Sequence[Record]) -> list[Verdict]:
    """Revisions rise, tokens rise with grants (I2), exclusive holds are disjoint (I3)."""
    order, holds, last, whole = TokenOrder(), ExclusiveHolds(), 0, True
    found, disjoint, held = list[str](), list[str](), 0
    for event, _ in _events(records):
        if event is None:
            holds, whole = ExclusiveHolds(), False
            continue
        if event.revision < last:
            found.append(f"the watch told of revision {event.revision} after {last}")
        last = event.revision
        if not event.kind.startswith("lock_") or (not whole and event.kind in ENDS and event.key not in holds.held):
            continue
        held += event.kind == "lock_granted" and event.key not in holds.held
        for check, into in ((order.event, found), (holds.event, disjoint)):
            try:
                check(event)
            except Violation as error:
                into.append(str(error))
    return [Verdict("I2", {"grants": order.grants}, found), Verdict("I3", {"holds": held}, disjoint)]


def _promised(records: Sequence[Record]) -> NoEarlyExpiry:
    """Leases that the SDK keeps, until when it said; those that nobody renews, as long as they were asked for."""
    checker = NoEarlyExpiry(Timing().drift)
    for record in of(records, "promised"):
        for lease_id, until in record["until"].items():
            checker.acknowledged("lease", int(lease_id, 16), until, 0.0)
    for record in of(records, "forsaken"):
        checker.acknowledged("lease", int(record["lease_id"], 16), record["sent"], record["ttl_ms"] / 1000)
    return checker


def nothing_expires_early(records: Sequence[Record]) -> Verdict:
    """No lease and no lock was seen to run out within the time that its holder was told to have (I4).

    Seen: by the watch, which hears of it a little later than it happens.
    """
    checker, found, judged = _promised(records), list[str](), 0
    held: dict[tuple[str, int], float] = {}
    for record in of(records, "held"):
        place = record["key"], record["token"]
        held[place] = max(held.get(place, 0.0), record["until"])
    for event, at in _events(records):
        if event is None:
            continue
        if event.kind == "lock_granted" and (event.key, event.fencing_token) in held:
            checker.acknowledged("lock", event.number, held[event.key, event.fencing_token], 0.0)
        judged += event.kind in EXPIRIES and checker.promised_s(event) > 0
        try:
            checker.event(event, at)
        except Violation as error:
            found.append(str(error))
    unpromised = {"expiries of what nobody noted a promise for": checker.expiries - judged}
    return Verdict("I4", {"expiries held against a promise": judged}, found, unpromised)


# --- leases -----------------------------------------------------------------------------------------------------------


def believed(records: Iterable[Record]) -> set[str]:
    """The leases that their holder was given and neither gave back nor was told to have lost."""
    found: set[str] = set()
    for record in of(records, "leased", "lease_lost", "lease_released"):
        if record["what"] == "leased":
            found.add(record["lease_id"])
        else:
            found.discard(record["lease_id"])
    return found


def losses_are_told(records: Sequence[Record], active: Iterable[str]) -> list[str]:
    """`active`: the leases that the cluster has at the end. What is believed in is there, and did not run out."""
    kept = believed(records)
    gone = {record["lease_id"] for record in of(records, "event") if record["kind"] == "lease_expired"}
    found = [f"the lease {each} ran out, and its holder was not told" for each in sorted(kept & gone)]
    if missing := kept - gone - set(active):
        found.append(f"leases that their holder has are not there: {_shown(missing)}")
    return found


# --- what is reclaimed ------------------------------------------------------------------------------------------------


class Circles:
    """What the owner of the circles made and let go of."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.ids: dict[int, list[str]] = {}
        self.shared: set[str] = set()
        self._kept_by: dict[int, set[str]] = defaultdict(set)
        self._until: dict[int, float] = defaultdict(float)
        for record in of(records, "circle", "circle_leased", "circle_left"):
            number = record["number"]
            if record["what"] == "circle":
                self.ids[number] = record["ids"]
                self.shared.add(record["shared"])
            elif record["what"] == "circle_leased":
                self._kept_by[number].add(record["lease_id"])
            else:
                self._kept_by[number].discard(record["lease_id"])
                until = record["until"] if record["lost"] else record["at"]
                self._until[number] = max(self._until[number], until)

    def garbage(self) -> dict[str, float]:
        """Every resource that nothing keeps, with the moment until which something did."""
        freed = {number for number in self.ids if number in self._until and not self._kept_by[number]}
        return {resource: self._until[number] for number in freed for resource in self.ids[number]}

    def reachable(self) -> set[str]:
        garbage = self.garbage()
        return {resource for ids in self.ids.values() for resource in ids if resource not in garbage} | self.shared


def only_garbage_goes_once(records: Sequence[Record], cleaned: Sequence[Row]) -> list[Verdict]:
    """(resource, reclaim, token, who, at): nothing that is kept (I6), and nothing twice (I8)."""
    circles = Circles(records)
    garbage, times, found = circles.garbage(), Counter[str](), list[str]()
    for resource, _, _, who, at in cleaned:
        times[resource] += 1
        if resource not in garbage:
            found.append(f"{resource} was cleaned up by {who}, and something keeps it (I6)")
        elif at < garbage[resource]:
            early_s = garbage[resource] - at
            found.append(f"{resource} was cleaned up by {who} {early_s:.3f} s before the last lease on it ended (I6)")
    twice = [f"{resource} was cleaned up {count} times (I8)" for resource, count in times.items() if count > 1]
    return [
        Verdict("I6", {"clean-ups": len(cleaned)}, found),
        Verdict("I8", {"resources cleaned up": len(times)}, twice),
    ]


def garbage_is_gone(
    garbage: Iterable[str], reachable: Iterable[str], cleaned: Iterable[Row], live: Iterable[str]
) -> list[Verdict]:
    """`garbage` from before, `reachable` from after `live` was asked for: what the cluster has at the end (I6, I7)."""
    left, kept, there, found, lost = set(garbage), set(reachable), set(live), list[str](), list[str]()
    if waiting := left - {row[0] for row in cleaned}:
        found.append(f"nothing keeps {_shown(waiting)}, and it was not cleaned up (I7)")
    if missing := kept - there:
        lost.append(f"{_shown(missing)} should be there, and the cluster does not have it (I6)")
    if more := there & left:
        found.append(f"the cluster still has {_shown(more)}, which nothing keeps (I7)")
    return [
        Verdict("I6", {"reachable in the end": len(kept)}, lost),
        Verdict("I7", {"resources that nothing keeps": len(left)}, found),
    ]


# --- dispatch ---------------------------------------------------------------------------------------------------------


def each_task_once(records: Iterable[Record], effects: Iterable[Row], view: Record) -> Verdict:
    """(number, task, token, who): of every number that was taken in one effect, and the queue says the same (I8)."""
    fed = {record["number"] for record in of(records, "fed")}
    times = Counter(row[0] for row in effects)
    found = []
    if lost := fed - times.keys():
        found.append(f"tasks that were taken in had no effect: {_shown(lost)}")
    if twice := [number for number, count in times.items() if count > 1]:
        found.append(f"tasks had their effect twice: {_shown(twice)}")
    if unknown := times.keys() - fed:
        found.append(f"effects of tasks that nobody put in: {_shown(unknown)}")
    counted = {"completed": len(fed), "dead": 0, "ready": 0, "leased": 0}
    if wrong := {name: view[name] for name, count in counted.items() if view[name] != count}:
        found.append(f"of {len(fed)} tasks the queue says {wrong}")
    return Verdict("I8", {"tasks": len(fed)}, found)


# --- calls ------------------------------------------------------------------------------------------------------------


def no_call_fails(records: Iterable[Record], windows: Iterable[tuple[float, float]]) -> list[str]:
    """In these times, of rolling restarts, the SDK answers every call, with whatever retries that takes."""
    between = list(windows)
    return [
        f"during a rolling restart {record['who']} was told {record['error']}: {record['text']}"
        for record in of(records, "failed")
        if any(began <= record["began"] < ended for began, ended in between)
    ]
