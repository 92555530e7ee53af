"""Waiting for locks: a request that stands in a queue of the replicated machine, and is answered when that says so.

A wait has rounds. In each it is proposed, and the events that end it are waited for; a snapshot, or another connection
of the same request, may make another round necessary. From the first round that found it in the queue on it is there
until somebody takes it out, so that no refusal of a later round may be told: that would say that nothing happened.

Who has gone is taken out of the queue. A command whose outcome is unknown may come into it only later: it is looked out
for if its id is this node's own. Under a client's own id that client may ask again meanwhile, on any node, and nobody
could tell whose place it is: there the deadline of the wait ends what came late.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from cluster.ports import Committed, Denied, Outcome, Unknown
from coordinator.machine import results as r
from coordinator.machine.commands import AcquireLock, AcquireLocks, CancelWaiter
from coordinator.machine.events import Event
from coordinator.machine.limits import MAX_ID, MAX_REVISION

if TYPE_CHECKING:
    from coordinator.service import Service

OUTAGE_S = 60.0
"""The cluster clock stands still in an outage, and with it a waiter's deadline: by so much a request outlasts it."""
CANCEL_S = 30.0
LEAVE_S = 1.0
"""For so long an answer waits for its request to be out of the queue; then it says that this is not known."""
TIDY_MAX = 10_000
"""Waiters of closed connections that are being cancelled at once; past it their own deadlines end them."""
ASK_S = 5.0
"""At least so long a later round may take to be in the log, whatever was left of the time for the first."""

OWN = b"\xff"
"""So begins an id that this node gave to a request: never in UTF-8, so that no client can have chosen it."""
NO_WAITER = MAX_ID
"""In the place of a waiter, of what was granted without one."""

Round: TypeAlias = Outcome | Literal["again", "dismissed"]
"""`again`: a snapshot, the end of an earlier wait of this request, or another who asks for it, came in between.
`dismissed`: somebody else took this waiter out of the queue."""


_MAY_BE_QUEUED = Unknown("stopping", "this node is stopping, and you may be in the queue: repeat it under its id")


@dataclass(slots=True)
class Wait:
    """One connection that waits, through all its rounds."""

    namespace: str
    command: AcquireLock | AcquireLocks
    request_id: bytes
    timeout: float
    """For the first round to be in the log."""
    waiter_id: int | None = None
    """Its place in the queue, as the last round that found it there was told."""
    asked: int = 0
    """The last revision at which it was asked for and still had to wait. Not one that was told of a grant: another may
    have been told of it before, and would lose it if this one took back what it asked for."""
    gone: bool = False
    """Nobody is here any more to be answered."""
    leaving: asyncio.Task[bool] | None = None
    """Takes it out of the queue; whether that is where it is then."""

    @property
    def repeatable(self) -> bool:
        """Its id is the client's own: it can ask again."""
        return not self.request_id.startswith(OWN)

    @property
    def key(self) -> tuple[str, bytes]:
        return self.namespace, self.request_id

    def told(self, outcome: Outcome) -> None:
        """What became of a round in the log."""
        if isinstance(outcome, Committed) and isinstance(outcome.result, r.LockWaiting):
            self.asked = max(self.asked, outcome.index)
            self.waiter_id = outcome.result.waiter_id


class LockWaits:
    def __init__(self, service: Service) -> None:
        self._service = service
        self.here: set[asyncio.Future[None]] = set()
        """Rounds under way, each with a future that ends with it."""
        self._asked: dict[tuple[str, bytes], int] = {}
        """Of requests that wait here, the last revision at which those asked for them who have left."""

    async def acquire(self, wait: Wait) -> Outcome:
        """Ends with a grant, `LockBusy`, a denial or `Unknown`. Cancelled, it is taken out of the queue."""
        loop, service = asyncio.get_running_loop(), self._service
        until = loop.time() + wait.command.block_time_ms / 1000
        outcome: Round = "again"
        dismissed = False
        try:
            async with asyncio.timeout_at(until + wait.timeout + OUTAGE_S) as limit:
                # Only who was just dismissed is out of the queue: after `again` it may wait there, or have the lock.
                while outcome != "dismissed" or loop.time() < until:
                    outcome = await self._round(wait)
                    if isinstance(outcome, Committed | Denied | Unknown):
                        return outcome
                    if outcome == "dismissed":
                        # Another connection of the same request closed and took the waiter along, but this one is
                        # here: it queues again. The command stays as it was, or its id would stand for two requests.
                        dismissed, wait.waiter_id = True, None
                        limit.reschedule(until + wait.timeout)
        except TimeoutError:
            if not dismissed or not await self._is_out(wait):
                message = "the cluster did not answer in time; repeat it only under the same request id"
                return Unknown("deadline", message)
        return Committed(service.revision, service.machine.now_ms, self._result_of(wait, ()))

    async def _round(self, wait: Wait) -> Round:
        """The hub is asked for the request's events before the command is proposed: a grant in the same entry, or
        before this task runs again, is there when it looks."""
        hub = self._service.hub
        future = hub.expect(*wait.key)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.here.add(ended)
        proposal = asyncio.ensure_future(self._ask(wait))
        try:
            # Shielded: what the log says of a command that has left must be known, to take it back.
            outcome = await asyncio.shield(proposal)
            if isinstance(outcome, Unknown) and not wait.repeatable:
                self._leave(wait, proposal)
            if not isinstance(outcome, Committed) or not isinstance(outcome.result, r.LockWaiting):
                return outcome
            events = await asyncio.shield(future)
            if events and events[0].waiter_id != outcome.result.waiter_id:
                return "again"
            if events is not None:
                return self._ended(wait, events)
            hub.forget(*wait.key, future)
            self._leave(wait, proposal)
            if await self._is_out(wait):
                return Denied("stopping", "this node is stopping, and took you out of the queue: ask another node")
            return _MAY_BE_QUEUED
        except asyncio.CancelledError:
            hub.forget(*wait.key, future)
            self._leave(wait, proposal)
            raise
        finally:
            if hub.forget(*wait.key, future):
                self._asked.pop(wait.key, None)
            self.here.discard(ended)
            ended.set_result(None)

    async def _ask(self, wait: Wait) -> Outcome:
        """What stands in the queue already is asked for until the log has an answer."""
        pauses_s = self._service.pauses()
        while True:
            timeout = max(wait.timeout, ASK_S) if wait.asked else wait.timeout
            outcome = await self._service.propose(wait.namespace, wait.command, wait.request_id, timeout)
            wait.told(outcome)
            if wait.waiter_id is None or isinstance(outcome, Committed):
                return outcome
            if outcome.code == "stopping":
                return _MAY_BE_QUEUED
            if not wait.gone:
                await asyncio.sleep(next(pauses_s))
            if wait.gone:
                return outcome

    def _note(self, wait: Wait) -> None:
        self._asked[wait.key] = max(self._asked.get(wait.key, 0), wait.asked)

    def _ended(self, wait: Wait, events: tuple[Event, ...]) -> Round:
        if not events:
            return "again"
        if events[0].kind == "wait_cancelled":
            return "dismissed"
        service = self._service
        if service.machine.last_asked(*wait.key) > wait.asked:
            # Somebody asked for it after this one did, and would take it along on hanging up: not if asked once more.
            return "again"
        result = service.machine.outcome(*wait.key)
        if result is None or isinstance(result, r.LockWaiting):
            result = self._result_of(wait, events)
            told = Committed(events[0].revision, service.machine.now_ms, result)
            if service.still_held(wait.namespace, told) is not told:
                # Granted, and given back before this task ran: by one who had asked for it too, and hung up.
                return "dismissed"
        if isinstance(result, r.LockBusy):
            service.telemetry.denials["lock_held"] += 1
        return Committed(events[0].revision, service.machine.now_ms, result)

    def _result_of(self, wait: Wait, events: tuple[Event, ...]) -> r.LockGranted | r.LocksGranted | r.LockBusy:
        """From the events alone, when the machine has forgotten the request meanwhile (limits.MAX_REQUESTS)."""
        command, machine = wait.command, self._service.machine
        granted = [event for event in events if event.kind == "lock_granted"]
        if not granted:
            key = command.lock_key if isinstance(command, AcquireLock) else command.lock_keys[0]
            return r.LockBusy(key, command.client_id, None, 0)
        views = machine.leases(wait.namespace, [event.number for event in granted])
        grants = []
        for event, view in zip(granted, views, strict=True):
            ttl_ms = 0 if view is None else view.ttl_ms
            ends_ms = machine.now_ms + ttl_ms
            grants.append(r.LockGranted(event.key, event.owner, event.fencing_token, event.number, 1, ttl_ms, ends_ms))
        return grants[0] if isinstance(command, AcquireLock) else r.LocksGranted(tuple(grants))

    # --- leaving --------------------------------------------------------------------------------------------------

    def _leave(self, wait: Wait, proposal: asyncio.Future[Outcome]) -> None:
        """Nobody is here to be answered: out of the queue, or, granted meanwhile, out of the lock. Where others wait
        for the same request they will see to that, and must know when this one asked."""
        wait.gone = True
        wait.asked = max(wait.asked, self._asked.get(wait.key, 0))
        if self._service.tidying < TIDY_MAX:
            wait.leaving = self._service.tidy(self._cancel(wait, proposal))

    async def _cancel(self, wait: Wait, proposal: asyncio.Future[Outcome]) -> bool:
        """Whether it is known to be out of the queue."""
        service, outcome = self._service, await proposal
        if service.hub.expects(*wait.key):
            self._note(wait)
            return False
        if not wait.repeatable:
            await self._find(wait, outcome)
        if wait.waiter_id is None:
            # Of a client's own id, granted at once or perhaps late: it may ask again, and its time limits it anyway.
            return isinstance(outcome, Denied)
        # Under an id of this node's own, what was asked later, or comes later still, was the same command once more.
        asked = wait.asked if wait.repeatable else MAX_REVISION
        leaving = CancelWaiter(wait.waiter_id, wait.request_id, asked)
        patience_s = wait.command.block_time_ms / 1000 + CANCEL_S
        left = await service.insist(wait.namespace, leaving, patience_s)
        if isinstance(left, Committed) and isinstance(left.result, r.Denied):
            return left.result.code != "asked_again"
        return isinstance(left, Committed)

    async def _find(self, wait: Wait, outcome: Outcome) -> None:
        """Where a request is that nobody can ask for again: what was granted to it would be nobody's."""
        if wait.waiter_id is None and isinstance(outcome, Unknown):
            await self._come_late(wait)
        known = self._service.machine.outcome(*wait.key)
        if isinstance(known, r.LockWaiting):
            wait.waiter_id = known.waiter_id
        elif wait.waiter_id is None and isinstance(known, r.LockGranted | r.LocksGranted):
            wait.waiter_id = NO_WAITER

    async def _come_late(self, wait: Wait) -> None:
        """Until a command that may be on its way has its place in the queue, or its lock, if it ever comes there."""
        hub, machine = self._service.hub, self._service.machine
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait.command.block_time_ms / 1000 + OUTAGE_S):
                while not hub.stopping and machine.outcome(*wait.key) is None:
                    await hub.begins(*wait.key)

    async def _is_out(self, wait: Wait) -> bool:
        """Whether one that leaves is out of the queue by now, or is soon."""
        if wait.leaving is None:
            return False
        await asyncio.wait((wait.leaving,), timeout=LEAVE_S)
        return wait.leaving.done() and not wait.leaving.cancelled() and wait.leaving.result()
