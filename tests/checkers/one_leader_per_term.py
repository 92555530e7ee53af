"""At most one node leads in a term (I16), and a new leader has all that was ever committed (leader completeness)."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.node import ClusterNode
from tests.checkers.log_matching import LogMatching
from tests.checkers.violation import Violation


class OneLeaderPerTerm:
    def __init__(self, log: LogMatching) -> None:
        self._log = log
        self.leaders: dict[int, str] = {}
        """Who led in each term."""

    def check(self, leading: Iterable[ClusterNode]) -> None:
        """`leading`: the nodes that lead at this moment."""
        for node in leading:
            term, name = node.engine.term, node.options.node_id
            known = self.leaders.get(term)
            if known == name:
                continue
            if known is None:
                # One that wins on late votes, in a term already overtaken, may lack what the later term committed:
                # it can neither commit nor hold a lease.
                if term > max(self.leaders, default=0):
                    self._log.check_leader(name, node.journal)
                self.leaders[term] = name
            else:
                raise Violation("one_leader_per_term", f"{known} and {name} both lead in term {term}")
