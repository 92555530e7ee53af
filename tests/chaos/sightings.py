"""What the lookout saw of leaders and processes, and what follows from it: I5, I16 and I18."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from cluster.options import Timing
from tests.chaos.records import Record, of
from tests.chaos.tally import Verdict
from tests.checkers.bounded import Bounded
from tests.checkers.expired_goes import time_allowed_s
from tests.checkers.violation import Violation

CLOSE_S = 1.0
"""Two looks further apart say nothing of the time between them."""
THREADS = 64
"""A node has a handful of its own and the pool of its event loop, which is bounded by the cores."""


class Available:
    """The time for which a leader said, at both ends of each span, that it had its lease."""

    def __init__(self, records: Iterable[Record]) -> None:
        by_node: dict[str, list[Record]] = defaultdict(list)
        for record in of(records, "seen"):
            by_node[record["node"]].append(record)
        self.spans: list[tuple[float, float]] = sorted(
            (earlier["at"], later["asked"])
            for seen in by_node.values()
            for earlier, later in pairwise(seen)
            if earlier["lease"]
            and later["lease"]
            and earlier["term"] == later["term"]
            and 0 < later["asked"] - earlier["at"] <= CLOSE_S
        )
        self._begins = [began for began, _ in self.spans]

    def between(self, since: float, until: float) -> float:
        first = max(0, bisect_right(self._begins, since) - 1)
        last = bisect_right(self._begins, until)
        return sum(max(0.0, min(until, ended) - max(since, began)) for began, ended in self.spans[first:last])


def unrenewed_leases_go(records: Sequence[Record]) -> Verdict:
    """None is seen still there after more available time than it may have; none is there in the end (I5)."""
    available, drift, found = Available(records), Timing().drift, list[str]()
    taken = {record["lease_id"]: record for record in of(records, "forsaken")}
    for record in of(records, "forsaken_there"):
        lease = taken[record["lease_id"]]
        passed_s = available.between(lease["at"], record["called"])
        if passed_s > time_allowed_s(lease["ttl_ms"] / 1000, drift):
            told = f"{record['lease_id']}, which nobody renews, is there after {passed_s:.2f} s of available time"
            found.append(f"{told}; its time is {lease['ttl_ms']} ms (I5)")
    gone = {record["lease_id"] for record in of(records, "forsaken_gone")}
    found += [f"the lease {each}, which nobody renews, was never seen to go (I5)" for each in taken.keys() - gone]
    seconds = round(sum(ended - began for began, ended in available.spans))
    looks = len(of(records, "forsaken_there"))
    return Verdict("I5", {"unrenewed leases gone": len(gone), "looks": looks, "available seconds": seconds}, found)


def one_leader(records: Sequence[Record]) -> Verdict:
    """One leader a term; and nobody says it has the lease who is asked after one of a later term said so (I16)."""
    leaders: dict[int, str] = {}
    newest: tuple[int, str, float] | None = None
    found, claims = list[str](), 0
    for record in of(records, "seen"):
        if record["leads"] and leaders.setdefault(record["term"], record["node"]) != record["node"]:
            found.append(f"{leaders[record['term']]} and {record['node']} both lead in term {record['term']} (I16)")
    for record in sorted((each for each in of(records, "seen") if each["lease"]), key=lambda each: float(each["at"])):
        claims += 1
        if newest is not None and record["term"] < newest[0] and record["asked"] > newest[2]:
            told = f"{record['node']} says that it has the lease of term {record['term']}"
            found.append(f"{told}, after {newest[1]} had that of {newest[0]} (I16)")
        if newest is None or record["term"] > newest[0]:
            newest = record["term"], record["node"], record["at"]
    looks = len(of(records, "seen"))
    return Verdict(
        "I16", {"looks": looks, "terms with a leader": len(leaders), "leases said to be held": claims}, found
    )


def processes_stay_small(records: Sequence[Record], clients: int) -> Verdict:
    """Memory, descriptors, threads and queues are under their caps (I18)."""
    bounded, found, first = Bounded.of_clients(clients), list[str](), dict[tuple[str, int], int]()
    for record in of(records, "usage", "seen"):
        node = record["node"]
        if record["what"] == "seen":
            caps = [("commands in the queue", record["commands"], bounded.commands)]
        else:
            grown = record["rss"] - first.setdefault((node, record["pid"]), record["rss"])
            caps = [
                ("resident bytes", record["rss"], bounded.rss_bytes),
                ("resident bytes more than at first", grown, bounded.grown_bytes),
                ("descriptors", record["descriptors"], bounded.descriptors),
                ("threads", record["threads"], THREADS),
            ]
        for what, seen, cap in caps:
            try:
                bounded.check(node, what, seen, cap)
            except Violation as error:
                found.append(str(error))
    most = {f"most {what}": bounded.most.get(what, 0) for what in ("resident bytes", "descriptors", "threads")}
    return Verdict("I18", {"looks at processes": len(of(records, "usage")), **most}, found)
