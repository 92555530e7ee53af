"""A world of holders with copies on their own disks, around one machine; and what must be true of it at every moment.

The holders here do what docs/TOMBSTONES.md asks of them and know nothing of the machine but its answers. They go
offline, are started anew, removed, taken over by another process under the same name; their requests come late.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine import tombstonecommands as t
from coordinator.machine import tombstoneresults as tr
from coordinator.machine.codec import encode_command
from coordinator.machine.machine import Machine
from coordinator.machine.names import CLIENT, RESOURCE
from tests.machine.driver import Driver

RESOURCES = ("r0", "r1", "r2", "r3", "r4", "r5")
NAMES = ("h0", "h1", "h2")


class Broken(AssertionError):
    """The world is in a state that must not be."""


@dataclass
class Process:
    """A holder's process and its disk: copies (id to incarnation), and what the coordinator told it."""

    name: str
    copies: dict[str, int] = field(default_factory=dict)
    token: int | None = None
    serving: bool = False
    """It believes that it is a holder in good standing."""
    session: int | None = None
    listed: tuple[list[str], int] | None = None
    """What it has read of the tombstones and not acknowledged yet."""


class World(Driver):
    def __init__(self) -> None:
        super().__init__()
        self.processes = [Process(name) for name in NAMES]
        self.retired: list[Process] = []
        """Processes whose name another one took over; they never noticed."""
        self.watermarks: dict[str, int] = {}
        """What every registered holder has acknowledged, told by the answers alone."""
        self.buried: dict[tuple[str, int], int] = {}
        """Revisions of the tombstones that stand, told by the events alone."""
        self.seen = 0

    def entry(self, *raw: bytes) -> list[r.Result]:
        results = super().entry(*raw)
        for event in self.events():
            if event.kind == "holder_removed":
                self.watermarks.pop(event.key, None)
        return results

    # --- what can happen ------------------------------------------------------------------------------------------

    def step(self, what: int, which: int, much: int) -> None:
        acts = (
            self.provide, self.keep, self.keep, self.keep, self.keep, self.delete, self.work, self.follow,
            self.acknowledge, self.catch_up, self.catch_up, self.catch_up, self.remove, self.come_back, self.come_back,
            self.restart, self.open_session, self.time, self.restore, self.take_over, self.together,
        )  # fmt: skip
        acts[what % len(acts)](which, much)
        self.look()

    def _process(self, which: int) -> Process:
        everybody = self.processes + self.retired
        return everybody[which % len(everybody)]

    def provide(self, which: int, much: int) -> None:
        """Some of them go by themselves."""
        for resource_id in RESOURCES[which % len(RESOURCES) :]:
            self.do(c.PutResources((resource_id,), "p", "k", safety_buffer_ms=much % 2 * 100, pinned=much % 7 > 0))

    def keep(self, which: int, much: int) -> None:
        """Registers, and only then has the copy."""
        process, resource_id = self._process(which), RESOURCES[much % len(RESOURCES)]
        if process.token is None and process.copies:
            return
        answer = self.do(t.RegisterCopy(resource_id, process.name, process.session, process.token))
        if isinstance(answer, tr.CopyRegistered):
            if answer.joined:
                self.watermarks[process.name] = answer.watermark
            process.token, process.serving = answer.holder_token, True
            process.copies[resource_id] = answer.incarnation
        self._heed(process, answer)

    def delete(self, which: int, much: int) -> None:
        self.do(c.DeleteResource(RESOURCES[which % len(RESOURCES)], force=True))

    def work(self, which: int, much: int) -> None:
        """A worker claims and acknowledges some, or purges what was given up."""
        claimed = self.do(c.ClaimReclaims("p", "w", 1 + much % 3, 1_000))
        ids = [item.reclaim_id for item in claimed.items]
        tokens = [item.token for item in claimed.items]
        if ids:
            packed = [struct.pack(f"<{len(ids)}Q", *numbers) for numbers in (ids, tokens)]
            self.do(c.AckReclaims("w", *packed))

    def follow(self, which: int, much: int) -> None:
        """Reads a page from its watermark on, and drops what is dead. It may die before it acknowledges."""
        process = self._process(which)
        if process.token is None or not process.serving:
            return
        view = self.machine.copies.holder("default", process.name, self.now_ms)
        page = self.machine.copies.tombstones(
            "default", 0 if view is None else view.watermark, None, 1 + much % 2, self.now_ms
        )
        for each in page.tombstones:
            if process.copies.get(each.resource_id) == each.incarnation:
                del process.copies[each.resource_id]
        process.listed = ([each.resource_id for each in page.tombstones], page.complete_to)

    def acknowledge(self, which: int, much: int) -> None:
        process = self._process(which)
        if process.token is None or process.listed is None:
            return
        answer = self.do(t.AckTombstones(process.name, process.token, process.listed[1]))
        process.listed = None
        if isinstance(answer, tr.TombstonesAcked):
            self.watermarks[process.name] = max(self.watermarks[process.name], answer.watermark)
        self._heed(process, answer)

    def catch_up(self, which: int, much: int) -> None:
        for _ in range(4):
            self.follow(which, 1)
            self.acknowledge(which, 1)

    def remove(self, which: int, much: int) -> None:
        self.do(t.RemoveHolder(NAMES[which % len(NAMES)]))

    def come_back(self, which: int, much: int) -> None:
        """Verifies, a copy a page; things happen in between; it may die in the middle."""
        process = self._process(which)
        if process.serving:
            process.listed = process.listed or ([], 0)
            self.acknowledge(which, much)
        if process.serving or not (process.token or process.copies):
            return
        process.token, process.listed = None, None
        pages = [[each] for each in process.copies.items()] or [[]]
        for place, page in enumerate(pages):
            last = place == len(pages) - 1
            ids = tuple(resource_id for resource_id, _ in page)
            packed = struct.pack(f"<{len(page)}Q", *(incarnation for _, incarnation in page))
            answer = self.do(t.VerifyCopies(process.name, ids, packed, last, process.session, process.token))
            if isinstance(answer, r.Denied):
                self._heed(process, answer)
                return
            if not place:
                self.watermarks[process.name] = answer.watermark
            process.token = answer.holder_token
            for resource_id, keep in zip(ids, answer.keep, strict=True):
                if not keep:
                    del process.copies[resource_id]
            process.serving = answer.verified
            for turn in range(much % 4):
                (self.delete, self.work, self.provide, self.restart)[turn](which + turn, turn)
            self.look()
            if not process.serving and not last and much % 5 == 4:
                return

    def restart(self, which: int, much: int) -> None:
        """Its disk stays; what it had read and not acknowledged is forgotten."""
        self._process(which).listed = None

    def open_session(self, which: int, much: int) -> None:
        process = self._process(which)
        process.session = self.session(f"s-{process.name}", 1_000 + much % 3 * 1_000)

    def time(self, which: int, much: int) -> None:
        self.pass_time(200 * (1 + much % 10))

    def restore(self, which: int, much: int) -> None:
        """Onto another node, from a snapshot."""
        before = self.machine.digest()
        other = Machine()
        other.restore(self.machine.freeze().chunks())
        if other.digest() != before:
            raise Broken("a restored machine is in another state")
        other._ring.clear(self.index)
        self.machine = other

    def take_over(self, which: int, much: int) -> None:
        """A new process under an old name, on an empty disk, while the old one may still run."""
        place = which % len(NAMES)
        if len(self.retired) < 2:
            self.retired.append(self.processes[place])
            self.processes[place] = Process(NAMES[place])

    def together(self, which: int, much: int) -> None:
        """A whole life in one entry: what is seen, dies and is acknowledged before the entry is over."""
        resource_id, name = f"t{which % 3}", f"fast-{self.index}"
        results = self.entry(
            encode_command(c.PutResources((resource_id,), "p", "k", safety_buffer_ms=0)),
            encode_command(t.RegisterCopy(resource_id, name)),
            encode_command(c.DeleteResource(resource_id, force=True)),
            encode_command(c.Sweep(10)),
            encode_command(c.ClaimReclaims("p", "w", 1, 1_000)),
            encode_command(c.AckReclaims("w", *self._foreseen(resource_id))),
        )
        registered = results[1]
        if isinstance(registered, tr.CopyRegistered):
            process = Process(name, {resource_id: registered.incarnation}, registered.holder_token, serving=True)
            self.watermarks[name] = registered.watermark
            self.processes.append(process)
            if len(self.processes) > len(NAMES) + 1:
                gone = self.processes.pop(len(NAMES))
                self.do(t.RemoveHolder(gone.name))

    def _foreseen(self, resource_id: str) -> tuple[bytes, bytes]:
        """The reclaim's id and token that an entry will give, if nothing else is in the way."""
        state = self.machine.state
        twin = Machine()
        twin.restore(self.machine.freeze().chunks())
        twin.apply(self.index + 1, self.now_ms, [encode_command(c.PutResources((resource_id,), "p", "k"))])
        view = twin.resource("default", resource_id)
        number = 1 if view is None else twin.state.resource_id(twin.state.resource_of(_name(twin, resource_id)))
        return struct.pack("<Q", number), struct.pack("<Q", state.last_token + 2)

    def _heed(self, process: Process, answer: Any) -> None:
        if not isinstance(answer, r.Denied):
            return
        if answer.code in ("holder_fenced", "holder_verifying"):
            process.serving = False
        if answer.code in ("session_expired", "unknown_session"):
            process.session = None

    # --- what must be true ----------------------------------------------------------------------------------------

    def look(self) -> None:
        self._look_at_events()
        for process in self.processes + self.retired:
            if self._stands(process):
                for resource_id, incarnation in process.copies.items():
                    self._look_at_copy(process, resource_id, incarnation)

    def _look_at_events(self) -> None:
        for event in self.events(self.seen):
            if event.kind == "tombstone_purged":
                # The purge comes at the end of its entry: what was acknowledged in it counts.
                revision = self.buried.pop((event.key, event.number))
                for name, watermark in self._now_registered().items():
                    if watermark < revision:
                        raise Broken(f"I14: {event.key} of {revision} was purged, and {name} is at {watermark}")
            if event.kind == "tombstone_created":
                self.buried[event.key, event.number] = event.revision
        self.seen = self.index

    def _now_registered(self) -> dict[str, int]:
        known = {self.machine.state.names.text(name) for name in self.machine.state.copies.holders}
        return {name: mark for name, mark in self.watermarks.items() if name in known}

    def _stands(self, process: Process) -> bool:
        """Whether the coordinator would let it serve: asked of the state, not of the process."""
        state = self.machine.state
        holder = state.copies.holders.get(state.names.find(CLIENT, 0, process.name))
        return holder is not None and holder.token == process.token and holder.verified and process.serving

    def _look_at_copy(self, process: Process, resource_id: str, incarnation: int) -> None:
        """Of something alive, or of something dead of which the holder is still going to be told."""
        state = self.machine.state
        slot = state.slot_of(state.resources, incarnation)
        if slot >= 0 and state.names.text(state.resources.name[slot]) == resource_id:
            return
        tombstone = next((each for each in state.copies.tombstones.values() if each.incarnation == incarnation), None)
        mark = self.watermarks[process.name]
        if tombstone is None or tombstone.revision <= mark:
            raise Broken(f"{process.name} (at {mark}) serves {resource_id}, which is dead, and will never know")


def _name(machine: Machine, resource_id: str) -> int:
    return machine.state.names.find(RESOURCE, 0, resource_id)
