"""A keeper stays in every gossip component (I14): where one part of a group has a tombstone, that part has it from then
on, until the parts themselves change.

With exact sets a record that was purged is the end of it: nobody has it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.gossip.replica import Record, Replica, Tombstone
from tests.checkers.violation import Violation


class KeeperStays:
    """`exact`: whether a purge must be the end of the record."""

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._borne: dict[tuple[int, str], bool] = {}

    def parted(self) -> None:
        """Nodes are on other sides than before: who has what there is seen anew."""
        self._borne.clear()

    def check(self, nodes: Mapping[str, Replica], side: Mapping[str, int], purged: Iterable[str]) -> None:
        """`side`: the component that each node is in."""
        gone = set(purged)
        seen = {each for node in nodes.values() for each in node.items} | {each for _, each in self._borne}
        for record_id in sorted(seen | gone):
            items = {name: node.items.get(record_id) for name, node in nodes.items()}
            held = [name for name, item in items.items() if isinstance(item, Record)]
            if self._exact and record_id in gone and held:
                raise Violation("no_resurrection", f"{record_id} was purged and is back at {held} (I14)")
            bearing = {side[name] for name, item in items.items() if isinstance(item, Tombstone)}
            for each in set(side.values()):
                if self._borne.get((each, record_id)) and each not in bearing:
                    raise Violation("keeper_stays", f"no keeper of {record_id} is left on side {each} (I14)")
                self._borne[each, record_id] = each in bearing
