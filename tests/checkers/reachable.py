"""Nothing that is reachable when a reclaim applies is reclaimed (I6). `garbage_goes` asks here what is left (I7).

Works from the rows before and after each step of an entry, without the machine's own idea of what is kept; networkx
says what can be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx
import numpy as np

from coordinator.machine import commands as c
from coordinator.machine.codec import decode_command
from coordinator.machine.graph import BLOCK, LIVE, ORPHAN, ORPHANED, PINNED
from coordinator.machine.machine import Machine
from coordinator.machine.names import RESOURCE
from coordinator.machine.results import Denied, Result, SetTaken
from coordinator.machine.state import ACTIVE, State
from tests.checkers.newest import Newest
from tests.checkers.violation import Violation


class Picture:
    """The graph as it was: copied rows, looked at only when something went."""

    def __init__(self, state: State) -> None:
        self._resources, self._edges, self._leases = (
            table.rows[: table.used].copy() for table in (state.resources, state.edges, state.leases)
        )
        rows = self._resources
        self._usable = rows["state"] == LIVE
        if state.condemned:
            self._usable &= ~np.isin(rows["candidate"], list(state.condemned))
        self.usable = set((rows["generation"].astype(np.int64) << 32 | np.arange(len(rows)))[self._usable].tolist())

    def ended(self, now_ms: int) -> set[int]:
        """Slots whose lifetime is over."""
        return set(np.flatnonzero(self._usable & (self._resources["deadline_ms"] <= now_ms)).tolist())

    def reachable(self, now_ms: int, ended: set[int]) -> set[int]:
        """Ids of what must stay, when time is `now_ms` and the `ended` ones go."""
        graph, roots = networkx.DiGraph(), self._kept(now_ms)
        for edge in self._edges[self._edges["state"] != 0]:
            source, target, policy = int(edge["source"]), int(edge["target"]), int(edge["state"])
            if policy == ORPHAN:
                roots.add(target)
            if self._usable[source] and self._usable[target] and not {source, target} & ended:
                graph.add_edge(source, target)
                if policy == BLOCK:
                    roots.add(source)
        roots = {slot for slot in roots if self._usable[slot]} - ended
        graph.add_nodes_from(roots)
        found: set[int] = set()
        for root in roots:
            if root not in found:
                found |= {root, *networkx.descendants(graph, root)}
        return {int(self._resources["generation"][slot]) << 32 | slot for slot in found}

    def _kept(self, now_ms: int) -> set[int]:
        rows, leases = self._resources, self._leases
        kept = rows["flags"] & (PINNED | ORPHANED) != 0
        kept |= (rows["on_lost"] == ORPHAN) | (rows["hold_ms"] > now_ms)
        held = leases[(leases["state"] == ACTIVE) & (leases["kind"] == RESOURCE)]
        lasting = set(held["resource"][held["expiry_ms"] > now_ms].tolist())
        buffered = set(held["resource"].tolist())
        for slot in np.flatnonzero(self._usable).tolist():
            name = int(rows["name"][slot])
            if name in lasting or (name in buffered and rows["buffer_ms"][slot]):
                kept[slot] = True
        return set(np.flatnonzero(kept & self._usable).tolist())


class WatchedMachine(Machine):
    """The product's machine, watched at every step of every entry."""

    def __init__(self, newest: Newest | None = None) -> None:
        super().__init__()
        self.stepped = newest or Newest()
        self._picture: Picture | None = None
        """Before the step under way; None while somebody else's entry is gone through again."""
        self.reclaims = 0
        """How often something went, and was rightly found to be garbage."""
        self.sets = 0

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[Result]:
        self._picture, self._sweeps = Picture(self.state) if self.stepped.is_new(index) else None, True
        results = super().apply(index, now_ms, commands)
        self._step()
        return results

    def _apply_one(self, raw: bytes) -> Result:
        if self._picture is None:
            return super()._apply_one(raw)
        if self._sweeps:
            self._step()
        command = _command(raw)
        self._sweeps = isinstance(command, c.Sweep)
        result = super()._apply_one(raw)
        self.sets += isinstance(result, SetTaken) and result.condemned
        self._step(deleted=_deleted(command, result))
        self._sweeps = False
        return result

    def _step(self, deleted: int | None = None) -> None:
        if self._picture is None:
            return
        before, after = self._picture, Picture(self.state)
        self._picture = after
        gone = before.usable - after.usable - {deleted}
        if not gone:
            return
        now_ms = self.state.now_ms
        ended = before.ended(now_ms) if self._sweeps else set()
        wrong = {number for number in gone if number & 0xFFFFFFFF not in ended} & before.reachable(now_ms, ended)
        if wrong:
            names = sorted(self._name(number) for number in wrong)
            raise Violation("reachable_stays", f"at {self.revision} {names} can be reached and were reclaimed (I6)")
        self.reclaims += len(gone)

    def _name(self, number: int) -> str:
        return str(self.state.names.text(self.state.resources.name[number & 0xFFFFFFFF]))

    def garbage(self) -> list[str]:
        """What cannot be reached and is not being reclaimed."""
        picture = Picture(self.state)
        return sorted(map(self._name, picture.usable - picture.reachable(self.state.now_ms, set())))


def _command(raw: bytes) -> c.Command | None:
    request = decode_command(raw)
    return None if isinstance(request, Denied) else request.command


def _deleted(command: c.Command | None, result: Any) -> int | None:
    """The resource that somebody ordered to be deleted."""
    return int(result.reclaim_id) if isinstance(command, c.DeleteResource) and not isinstance(result, Denied) else None
