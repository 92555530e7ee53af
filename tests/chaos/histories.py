"""The histories of locks and leases, read at leaders and followers alike: I10 and I11."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tests.chaos.records import Record, of
from tests.chaos.tally import Verdict
from tests.checkers import linearizable
from tests.checkers.leasemodel import Leases
from tests.checkers.linearizable import FOREVER, UNKNOWN, Model, Operation
from tests.checkers.lockmodel import Locks
from tests.checkers.own_revisions import OwnRevisions
from tests.checkers.violation import Violation


def linearizable_histories(records: Sequence[Record]) -> Verdict:
    models: dict[str, Model] = {"locks": Locks(), "leases": Leases()}
    noted, found, counts = of(records, "operation"), list[str](), dict[str, int]()
    for kind, model in models.items():
        history = [_operation(record) for record in noted if record["kind"] == kind]
        counts[f"{kind} operations"] = sum(operation.returned != FOREVER for operation in history)
        try:
            linearizable.check(history, model)
        except Violation as error:
            found.append(f"{error} (I10)")
    return Verdict("I10", {**counts, "reads at followers": _follower_reads(records)}, found)


def _operation(record: Record) -> Operation:
    place = record["client"], record["key"], record["verb"], tuple(record["arguments"]), record["called"]
    if record["returned"] is None:
        return Operation(*place, FOREVER, UNKNOWN)
    return Operation(*place, record["returned"], tuple(record["result"]))


def _follower_reads(records: Sequence[Record]) -> int:
    """At nodes other than the one that was last seen to lead."""
    leading = [(record["at"], record["endpoint"]) for record in of(records, "seen") if record["lease"]]
    times = [at for at, _ in leading]
    count = 0
    for record in of(records, "operation"):
        place = bisect_right(times, record["called"])
        if record["endpoint"] and place and leading[place - 1][1] != record["endpoint"]:
            count += 1
    return count


def revisions_rise(records: Sequence[Record]) -> Verdict:
    """What one client is told, of any node, never goes back (I11)."""
    revisions, found = OwnRevisions(), list[str]()
    for record in of(records, "operation"):
        if record["returned"] is None:
            continue
        try:
            revisions.told(record["who"], f"{record['verb']} {record['key']}", record["revision"])
        except Violation as error:
            found.append(str(error))
    return Verdict("I11", {"answers": revisions.checks}, found)
