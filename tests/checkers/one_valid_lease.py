"""At most one leader lease is valid at any instant (I16), by the clocks of the nodes themselves.

A node that is stopped counts, too: nothing tells it that it was, so when it goes on it acts by its lease.
"""

from __future__ import annotations

from collections.abc import Collection

from cluster.node import ClusterNode
from tests.checkers.violation import Violation


class OneValidLease:
    def __init__(self) -> None:
        self.checks = 0

    def check(self, leading: Collection[ClusterNode]) -> None:
        self.checks += 1
        if len(leading) < 2:
            return
        holders = [node for node in leading if node.leadership.lease_valid()]
        if len(holders) > 1:
            told = ", ".join(f"{node.options.node_id} in term {node.engine.term}" for node in holders)
            raise Violation("one_valid_lease", f"valid leases at one instant: {told}")
