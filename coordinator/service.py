"""Propose, read, wait: the only place that joins the machine and the cluster.

`Replica` is the machine as the cluster drives it, with its events led to the hub in the same step. `Service` is what
the interfaces call; it knows outcomes and waiting, and nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import struct
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cluster.host import Host
from cluster.ports import Committed, Denied, Frozen, NodeTooOld, Outcome, Unknown
from coordinator.claimturns import ClaimTurns
from coordinator.lanes import lane_of
from coordinator.lockwaits import OWN, LockWaits, Wait
from coordinator.machine import results as r
from coordinator.machine.codec import check_command, encode_command
from coordinator.machine.commands import (
    AcquireLock,
    AcquireLocks,
    CancelWaiter,
    Command,
    Heartbeat,
    HeartbeatSession,
    RenewLease,
    RenewLock,
    ReturnReclaims,
)
from coordinator.machine.events import Compacted, Event
from coordinator.machine.machine import Machine, TooNew
from coordinator.machine.taskcommands import BeatWorker, RenewTasks, ReturnTasks
from coordinator.machine.trail import NOBODY, Actor
from coordinator.telemetry import Telemetry
from coordinator.watches import Hub

Consistency = Literal["linearizable", "bounded", "local"]
Done = TypeVar("Done")

INSIST_S = (0.05, 1.0)
"""The first pause before what was refused is asked again, and the longest."""

FRESH_MS, LOOK_S = 1_000, 1.0
"""A node that was up to date so lately need not ask its leader before it tells how old its state is; who is asked has
so long to answer."""
CLAIMS_AT_ONCE, CLAIMS_OF_NODE = 16, 256
"""Of the workers that one ready clean-up wakes, so many ask for it; the others see that it is gone. And so many ask for
work of all kinds, in all namespaces."""
ENDED_TOLD = 100
"""Of the leases of a batch that have ended since it was granted, so many are told by name."""
SEARCHES_AT_ONCE = 2
BACKUPS_AT_ONCE = 1

_AGAIN = ("applied", "link_lost", "leader_changed", "snapshot", "asked_twice")
"""Unknown outcomes that came before the deadline: what applies once can be sent again."""

_HARMLESS = (
    Heartbeat, HeartbeatSession, RenewLease, RenewLock, CancelWaiter, ReturnReclaims, RenewTasks, ReturnTasks,
    BeatWorker,
)  # fmt: skip
"""Twice is as good as once, so they need no request id for that."""


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """Local state that is fit for the read. `staleness_ms`: how old it may be."""

    revision: int
    now_ms: int
    staleness_ms: int


@dataclass(frozen=True, slots=True)
class AskedTwice:
    """The result of a request that stood in its entry before: of the two nobody can say which was asked last. But who
    was is who may keep what it got, when the other hangs up. So it is asked once more."""

    result: r.Result


class Replica:
    """The machine as a cluster's StateMachine: applies, and tells of it before anybody is answered."""

    def __init__(self, machine: Machine, telemetry: Telemetry, clock: Callable[[], float] = time.perf_counter) -> None:
        self.machine = machine
        self.telemetry = telemetry
        self.clock = clock
        """Seconds, for how long things take."""
        self.hub = Hub(machine.events_since)

    @property
    def level(self) -> int:
        return self.machine.level

    @property
    def known_level(self) -> int:
        return self.machine.known_level

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> Sequence[Any]:
        began = self.clock()
        try:
            results: list[Any] = list(self.machine.apply(index, now_ms, commands))
        except TooNew as error:
            raise NodeTooOld(str(error)) from error
        for place in self.machine.repeats:
            results[place] = AskedTwice(results[place])
        events = self.machine.events_since(index - 1)
        told: Sequence[Event] = () if isinstance(events, Compacted) else events
        self.hub.applied(index, told)
        if self.machine.access_changed == index:
            self.hub.look_again()
        self.telemetry.applied(len(commands), told, self.clock() - began, now_ms)
        return results

    def freeze(self) -> Frozen:
        return self.machine.freeze()

    def restore(self, chunks: Iterable[bytes]) -> None:
        try:
            self.machine.restore(chunks)
        except TooNew as error:
            raise NodeTooOld(str(error)) from error
        self.hub.restored(self.machine.revision)


class Service:
    def __init__(self, host: Host, replica: Replica) -> None:
        self.host = host
        self.machine = replica.machine
        self.hub = replica.hub
        self.telemetry = replica.telemetry
        self.clock = replica.clock
        self.waits = LockWaits(self)
        self._tidying: set[asyncio.Task[Any]] = set()
        self.claiming = ClaimTurns(CLAIMS_AT_ONCE, CLAIMS_OF_NODE)
        self.searches = asyncio.Semaphore(SEARCHES_AT_ONCE)
        """How many may look through the graph at the same time."""
        self.backups = asyncio.Semaphore(BACKUPS_AT_ONCE)

    # --- where this node stands -----------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self.host.node.engine.applied_index

    @property
    def leader(self) -> str | None:
        return self.host.node.engine.leader

    @property
    def members_at(self) -> int:
        """Grows with every change of who the members are that cannot be undone."""
        node = self.host.node
        return node.membership.committed_index(node.engine.commit_index)

    @property
    def leading(self) -> bool:
        return self.host.node.engine.is_leader and self.host.node.leadership.ready

    def now_ms(self) -> int:
        """The cluster clock as far as this node knows it; never behind the machine's."""
        node = self.host.node
        heard_ms = node.cluster_clock.advance(node.clock.now(), node.leadership.lease_valid())
        return max(heard_ms, self.machine.now_ms)

    def queue_depth(self) -> int:
        return self.host.node.proposer.queued_commands

    # --- writes ---------------------------------------------------------------------------------------------------

    async def propose(
        self,
        namespace: str,
        command: Command,
        request_id: bytes | None = None,
        timeout: float = 5.0,
        actor: Actor = NOBODY,
    ) -> Outcome:
        """`Committed.result` is the machine's answer. What applies once is asked again after an early `Unknown`."""
        malformed = check_command(command)
        if malformed is not None:
            return Committed(self.revision, self.machine.now_ms, malformed)
        raw = encode_command(command, namespace, request_id, actor)
        lane, cost = lane_of(namespace, command)
        began = self.clock()
        once = request_id is not None or isinstance(command, _HARMLESS)
        doubt: Unknown | None = None
        while True:
            outcome = await self.host.propose(raw, max(0.001, timeout - (self.clock() - began)), lane, cost)
            late = self.clock() - began >= timeout
            if isinstance(outcome, Committed) and isinstance(outcome.result, AskedTwice):
                outcome = Unknown("asked_twice", "the same request came twice at the same time; repeat it under its id")
            if not once or late or not isinstance(outcome, Unknown) or outcome.code not in _AGAIN:
                break
            doubt = outcome
        if isinstance(outcome, Denied) and doubt is not None:
            outcome = doubt  # this time it was refused, but before it may have happened
        if isinstance(outcome, Committed):
            self.telemetry.answered(outcome.result, self.clock() - began)
            if isinstance(command, RenewLease | RenewLock) and isinstance(outcome.result, r.Denied):
                self.telemetry.renewal_denied()
        else:
            self.telemetry.failed("unknown" if isinstance(outcome, Unknown) else "denied", outcome.code)
        return outcome

    # --- waiting for a lock ---------------------------------------------------------------------------------------

    async def acquire(
        self, namespace: str, command: AcquireLock | AcquireLocks, request_id: bytes | None, timeout: float = 5.0
    ) -> Outcome:
        """Waits as long as the command says; ends with a grant, `LockBusy` or a denial. Cancelled, so is the wait."""
        if not command.block_time_ms:
            outcome = await self.propose(namespace, command, request_id, timeout)
        elif self.hub.stopping:
            outcome = Denied("stopping", "this node is stopping: ask another")
        else:
            outcome = await self.waits.acquire(Wait(namespace, command, request_id or _own_id(), timeout))
        return self.still_held(namespace, outcome)

    def still_held(self, namespace: str, outcome: Outcome, resource_ids: Sequence[str] = ()) -> Outcome:
        """A grant remembered from an earlier try of the same request may be over by now: that is not acquired.

        `resource_ids`: what a batch is of, to say which of it has ended."""
        if not isinstance(outcome, Committed):
            return outcome
        result = outcome.result
        if isinstance(result, r.LeasesGranted):
            denied = self._ended_of(namespace, result, resource_ids)
            return outcome if denied is None else Committed(outcome.index, outcome.now_ms, denied)
        grants = result.grants if isinstance(result, r.LocksGranted) else (result,)
        for grant in grants:
            if not isinstance(grant, r.LockGranted | r.LeaseGranted):
                continue
            (lease,) = self.machine.leases(namespace, [grant.lease_id])
            if lease is None or lease.state != "ACTIVE" or lease.fencing_token != grant.fencing_token:
                code: r.DenialCode = "not_holder" if isinstance(grant, r.LockGranted) else "lease_expired"
                message = "this was granted under the same request id before, and has ended since; use a new id"
                return Committed(outcome.index, outcome.now_ms, r.Denied(code, message))
        return outcome

    def _ended_of(self, namespace: str, granted: r.LeasesGranted, resource_ids: Sequence[str]) -> r.Denied | None:
        lease_ids = struct.unpack(f"<{len(granted.lease_ids) // 8}Q", granted.lease_ids)
        leases = dict(zip(resource_ids, self.machine.leases(namespace, lease_ids), strict=True))
        ended = [name for name, lease in leases.items() if lease is None or lease.state != "ACTIVE"]
        if not ended:
            return None
        message = (
            f"{len(ended)} of these {len(leases)} leases, which were granted under the same request id before, have "
            "ended since; use a new id"
        )
        told = tuple(ended[:ENDED_TOLD])
        return r.Denied("lease_expired", message, {"granted": len(leases), "ended": len(ended), "resource_ids": told})

    async def insist(self, namespace: str, command: Command, patience_s: float) -> Outcome:
        """Until it is in the log: nobody is left to ask again. Of what may be applied twice."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience_s
        pauses_s = self.pauses()
        while True:
            outcome = await self.propose(namespace, command, None, max(0.001, until - loop.time()))
            pause_s = next(pauses_s)
            if isinstance(outcome, Committed) or outcome.code == "stopping" or loop.time() + pause_s >= until:
                return outcome
            await asyncio.sleep(pause_s)

    @staticmethod
    def pauses() -> Iterator[float]:
        """Before what was refused is asked again, and again."""
        pause_s, longest_s = INSIST_S
        while True:
            yield pause_s
            pause_s = min(2 * pause_s, longest_s)

    @property
    def tidying(self) -> int:
        return len(self._tidying)

    def tidy(self, undoing: Coroutine[Any, Any, Done]) -> asyncio.Task[Done]:
        """In the background; a node that stops waits for it."""
        task = asyncio.ensure_future(undoing)
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)
        return task

    # --- reads ----------------------------------------------------------------------------------------------------

    async def read(self, consistency: Consistency, max_staleness_ms: int, timeout: float) -> ReadPoint | Denied:
        """When it returns, the machine may be read: at once, without awaiting anything in between."""
        if consistency != "linearizable":
            staleness_ms = self.staleness_ms()
            if consistency == "local" or staleness_ms <= max_staleness_ms:
                return ReadPoint(self.revision, self.now_ms(), staleness_ms)
        index = await self.host.read_index(timeout)
        if isinstance(index, Denied):
            return index
        return ReadPoint(self.revision, self.now_ms(), 0)

    def staleness_ms(self) -> int:
        """A leader under its lease has everything; a node that never heard of one has an age beyond any bound."""
        return math.ceil(min(max(self.host.node.staleness(), 0.0), 1e9) * 1000)

    async def look_at_leader(self) -> None:
        """So that the staleness told next is what it could be at best: a node that nobody reads from does not know."""
        await self.read("bounded", FRESH_MS, LOOK_S)

    def silence_s(self) -> float:
        """For how long no leader was heard here. A node whose state nobody has read for long is not silent for that."""
        return float(self.host.node.elections.silence_s)

    async def drain(self, timeout: float) -> None:
        """Before the node ends: waiting requests are answered and leave their queues, watches end."""
        self.hub.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                # Those that were woken just now have yet to say that they leave their queues.
                while self.waits.here or self._tidying:
                    await asyncio.wait([*self.waits.here, *self._tidying])
        for task in self._tidying:
            task.cancel()


def _own_id() -> bytes:
    """A request id that no client can have chosen."""
    return OWN + secrets.token_bytes(12)
