"""Failpoints: every operation that the product asks of the world has a name, and can be made to crash or to fail.

The product has no line for it. Whatever it does to a disk, to a link, in the background or to the machine goes through
`cluster.ports`, and in the simulation those are ours: a point is the name of an operation there (`journal.fdatasync`,
`send.append_entries`, `apply.AckReclaims`). So there is nothing to switch on in production, nothing that could be
switched on by mistake, and no operation of the write path that has no point.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import msgpack

from cluster.options import MIB, Limits
from cluster.ports import Message
from cluster.proposer import PAYLOAD_KIND
from coordinator.machine.codec import decode_command
from coordinator.machine.results import Denied
from tests.sim.disk import SimCrash
from tests.sim.frame import Run, quiet
from tests.sim.plan import Fault, draw
from tests.sim.world import Site

PORTS = {
    "journal": "make_directory names create open size reserve truncate pread pwrite fdatasync sync_directory unlink",
    "snapshot": "make_directory names create open size pread pwrite fdatasync rename sync_directory unlink",
    "identity": "create open size pread pwrite fdatasync rename",
    "members": "create open size pread pwrite fdatasync rename",
    "directory": "make_directory names sync_directory",
    "lock": "lock",
    "background": "begin",
    "send": "append_entries next_node_idx request_vote response_vote pre_vote pre_vote_reply timeout_now forward "
    "forward_reply read_index read_index_reply status",
    "receive": "append_entries next_node_idx request_vote response_vote pre_vote pre_vote_reply timeout_now forward "
    "forward_reply read_index read_index_reply status",
    "apply": "nothing members",
}
"""Files of the log, of snapshots, of the membership and the identity; messages; work off the thread; entries."""
RECLAIM = {
    "apply": "PutResources PutEdges DeleteEdge AcquireLease ReleaseLease DeleteResource Sweep ProposeSet "
    "SettleSuspects ClaimReclaims AckReclaims",
}
"""From a resource that is registered to its clean-up that is done."""


def points(table: dict[str, str]) -> list[str]:
    return [f"{area}.{name}" for area, names in table.items() for name in names.split()]


CRASH, ERROR = "crash", "error"
DOWN_S = 0.1
AREAS = {"log": "journal", "snapshots": "snapshot", "identity": "identity", "members": "members", "lock": "lock"}


class Firing(NamedTuple):
    point: str
    mode: str


class Failpoints:
    """Fires each of `wanted` once, on the first node that reaches it; other nodes only when that one is well again."""

    def __init__(self, run: Run, wanted: Iterable[Firing]) -> None:
        self._run, self._world = run, run.world
        self.wanted = dict.fromkeys(wanted)
        self.reached: Counter[str] = Counter()
        self.fired: list[Firing] = []
        self._hurt: str | None = None
        """Who is not well yet."""
        world = self._world
        world.network.may_leave = self._on_send
        world.network.tap = self._on_receive
        world.before_work = self._on_work
        world.apply_watchers.append(self._on_apply)
        world.up_watchers.append(self._on_up)
        for site in world.sites.values():
            site.before_disk = self._disk_of(site)
        world.at(0.1, self._look)

    def _look(self) -> None:
        """Once the one that was hit follows again, or leads, another may be hit."""
        self._world.at(0.05, self._look)
        if self._hurt is not None and self._run.progress.settled():
            self._run.faults.make_well(self._world.sites[self._hurt])
            self._hurt = None

    def _strikes(self, site: Site, point: str) -> str | None:
        """How the point fails this time; None if it does not."""
        self.reached[point] += 1
        if self._hurt not in (None, site.member.id):
            return None
        for mode in (CRASH, ERROR):
            firing = Firing(point, mode)
            if firing in self.wanted:
                del self.wanted[firing]
                self.fired.append(firing)
                self._hurt = site.member.id
                self._run.faults.make_sick(site, DOWN_S)
                self._world.note(site.member.id, "failpoint", f"{point} {mode}")
                return mode
        return None

    def _crash(self, site: Site, point: str) -> None:
        self._world.crash(site.member.id)
        raise SimCrash(point)

    # --- the ports -------------------------------------------------------------------------------------------------

    def _on_up(self, site: Site) -> None:
        site.before_disk = self._disk_of(site)

    def _disk_of(self, site: Site) -> Callable[[str, str], None]:
        def before(operation: str, path: str) -> None:
            point = f"{_area(path)}.{operation}"
            mode = self._strikes(site, point)
            if mode == CRASH:
                raise SimCrash(point)
            if mode == ERROR:
                raise OSError(errno.EIO, "input/output error", path)

        return before

    def _on_send(self, sender: str, message: Message) -> bool:
        site, point = self._world.sites[sender], f"send.{message['type']}"
        mode = self._strikes(site, point)
        if mode == CRASH:
            self._crash(site, point)
        return mode is None

    def _on_receive(self, sender: str, receiver: str, message: Message) -> Message | None:
        site = self._world.sites[receiver]
        mode = self._strikes(site, f"receive.{message['type']}")
        if mode == CRASH:
            self._world.crash(receiver)
        elif mode == ERROR:
            self._world.network.reset(sender, receiver)
        return message if mode is None else None

    def _on_work(self, site: Site) -> None:
        mode = self._strikes(site, "background.begin")
        if mode == CRASH:
            self._crash(site, "background.begin")
        if mode == ERROR:
            raise OSError(errno.EIO, "input/output error")

    def _on_apply(self, site: Site, index: int, term: int, payload: bytes | None) -> None:
        for name in _commands(payload):
            mode = self._strikes(site, f"apply.{name}")
            if mode == CRASH:
                self._crash(site, name)
            if mode == ERROR:
                raise ValueError(f"a bug in applying {name}")


def _area(path: str) -> str:
    parts = path.split("/")[2:]
    return AREAS.get(parts[0].split(".")[0], "directory") if parts else "directory"


def _commands(payload: bytes | None) -> Iterator[str]:
    if payload is None:
        yield "nothing"
    elif payload[:1] != PAYLOAD_KIND:
        yield "members"
    else:
        for raw in msgpack.unpackb(payload[1:])[1]:
            request = decode_command(raw)
            if not isinstance(request, Denied):
                yield type(request.command).__name__


SMALL = Limits(
    command_bytes=64 * 1024,
    entry_bytes=2_000,
    append_bytes=5_000,
    frame_bytes=4 * MIB,
    link_buffer_bytes=8 * MIB,
    segment_bytes=3_000,
    log_bytes=6_000,
    log_entries=60,
    retain_bytes=0,
    snapshot_chunk_bytes=1_000,
    apply_bytes=300,
)
"""So small that segments roll, logs are compacted and snapshots travel in pieces all the time."""


def fire_all(kind: type[Run], table: dict[str, str], every_s: float, seconds: float = 120.0) -> Failpoints:
    """Each point of `table` crashes once and fails once, under load. The run is over when all have; its checkers have
    looked at all of it by then."""
    plan = replace(draw(1, 3, seconds), limits=SMALL, faults=stirred(seconds, every_s), clients=3, rate=5.0)
    quiet()
    run = kind(plan)
    failpoints = Failpoints(run, [Firing(point, mode) for point in points(table) for mode in (CRASH, ERROR)])
    run.is_over = lambda: not failpoints.wanted  # type: ignore[method-assign]
    run.play()
    return failpoints


def stirred(seconds: float, every_s: float) -> tuple[Fault, ...]:
    """No faults but these: what brings a cluster to all of its points, again and again."""
    kinds = ("snapshot", "kill", "snapshot", "isolate", "transfer", "add", "power_cut", "snapshot", "remove", "replace")
    faults = []
    for number in range(int(seconds / every_s)):
        dice = tuple((number * step) % 10 / 10 for step in (3, 7, 1, 9))
        kind = kinds[number % len(kinds)]
        target = "all" if kind == "snapshot" else str(number % 3)
        faults.append(Fault(2.0 + number * every_s, kind, target, 0.6, dice))
    return tuple(faults)
