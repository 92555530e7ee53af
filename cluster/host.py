"""A node of the cluster in a real process: the real clock, disk, sockets and event loop around `ClusterNode`.

The methods are the asyncio face of the node: what takes a callback there is awaited here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom
from typing import Any, TypeVar

from cluster.disk import RealDisk
from cluster.lanes import FRONT, Lane
from cluster.node import ClusterNode
from cluster.options import ClusterOptions
from cluster.ports import Denied, Member, Outcome, StateMachine
from cluster.scheduler import BootClock, LoopScheduler
from cluster.status import Status
from cluster.transport import SocketTransport, peer_ssl_contexts

log = logging.getLogger("holdfast.cluster")

HAND_OVER_S = 2.0
EXIT_BROKEN = 70
"""The exit code of a node that stopped itself: it must be looked at, not just restarted."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Files of this node's certificate, its key, and the authority both sides trust."""

    certificate: str
    key: str
    authority: str

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """OptionsError if the files cannot be used."""
        return peer_ssl_contexts(self.certificate, self.key, self.authority)


def _log_event(kind: str, fields: dict[str, Any]) -> None:
    log.info("%s %s", kind, " ".join(f"{name}={value}" for name, value in fields.items()))


def _end_process(reason: str) -> None:
    """Not an exception: the library around us swallows those, and a broken node must not go on."""
    log.critical("this node stops now: %s", reason)
    logging.shutdown()
    os._exit(EXIT_BROKEN)


class Host:
    def __init__(self, node: ClusterNode, scheduler: LoopScheduler, transport: SocketTransport) -> None:
        self.node = node
        self._scheduler = scheduler
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        options: ClusterOptions,
        machine: StateMachine,
        *,
        listen: str,
        secret: bytes,
        previous_secret: bytes | None = None,
        tls: PeerTls | None = None,
        on_event: Callable[[str, dict[str, Any]], None] = _log_event,
    ) -> Host:
        """Reads the data directory; raises JournalError, SnapshotCorrupt, RecordFileCorrupt or OptionsError if it
        cannot be used.

        That may take long, so it happens in a thread while the loop goes on; until it is done, `machine` and
        `on_event` are that thread's alone. It cannot be interrupted: cancelled, it goes on unheard.
        """
        loop = asyncio.get_running_loop()
        random = SystemRandom()
        incarnation = random.getrandbits(40)
        scheduler = LoopScheduler(loop)
        contexts = (None, None) if tls is None else tls.contexts()
        transport = SocketTransport(
            loop, options.node_id, options.cluster_id, listen, secret, options.timing, options.limits, incarnation,
            *contexts, log=log, random=random, previous_secret=previous_secret, joining=not options.members,
        )  # fmt: skip
        node = await asyncio.to_thread(
            ClusterNode,
            options,
            machine,
            clock=BootClock(random),
            random=random,
            scheduler=scheduler,
            disk=RealDisk(),
            transport=transport,
            incarnation=incarnation,
            pid=os.getpid(),
            stop_process=_end_process,
            on_event=on_event,
        )
        return cls(node, scheduler, transport)

    async def start(self) -> None:
        self.node.start()
        await self._transport.ready()

    async def stop(self) -> None:
        """Hand leadership over, so that nobody waits for an election, then close."""
        if self.node.engine.is_leader and len(self.node.membership.voters) > 1:
            await self.transfer(None, HAND_OVER_S)
        self.node.close()
        await self._transport.wait_closed()
        self._scheduler.close()

    def renew(self, tls: PeerTls | None, secret: bytes, previous_secret: bytes | None) -> None:
        """Links made from now on are proven by these; a mistake in them is raised and changes nothing."""
        self._transport.renew(None if tls is None else tls.contexts(), secret, previous_secret)

    def status(self) -> Status:
        return self.node.status()

    def disk_room(self) -> tuple[int, int]:
        """Free bytes of the disk that the data directory is on, and all of them."""
        space = shutil.disk_usage(self.node.options.data_dir)
        return space.free, space.total

    async def propose(self, command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
        return await self._wait(lambda done: self.node.propose(command, timeout, done, lane, cost))

    async def read_index(self, timeout: float) -> int | Denied:
        return await self._wait(lambda done: self.node.read_index(timeout, done))

    async def add_member(self, member: Member, timeout: float) -> Outcome:
        return await self._wait(lambda done: self.node.add_member(member, timeout, done))

    async def remove_member(self, node_id: str, timeout: float) -> Outcome:
        return await self._wait(lambda done: self.node.remove_member(node_id, timeout, done))

    async def transfer(self, target: str | None, timeout: float) -> Outcome:
        return await self._wait(lambda done: self.node.transfer(target, timeout, done))

    async def raise_level(self, command: bytes, timeout: float) -> Outcome:
        """The command that does it, in an entry that a release from before levels stops at. On the leader."""

        def start(done: Callable[[Outcome], None]) -> None:
            self.node.proposer.append_level(command, timeout, done)
            self.node.kick()

        return await self._wait(start)

    async def snapshot(self, timeout: float) -> Outcome:
        return await self._wait(lambda done: self.node.snapshot(timeout, done))

    async def _wait(self, start: Callable[[Callable[[T], None]], None]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()

        def done(outcome: T) -> None:
            # The caller may be gone (a closed connection cancels it); its outcome is then nobody's.
            if not future.done():
                future.set_result(outcome)

        start(done)
        return await future
