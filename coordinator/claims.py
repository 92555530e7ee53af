"""Waiting for work: a worker gets what is ready or, while there is nothing, what becomes ready.

One place for clean-ups, tasks and the assignments of shards (`coordinator/dispatch.py` has the last two). It wakes by
events of the machine. A worker that hangs up while its claim is on its way to the log must not leave work that nobody
has: it is given back as soon as the claim is known to have got it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import replace
from hashlib import blake2b
from typing import Protocol

from cluster.ports import Committed, Denied, Outcome
from coordinator.lockwaits import CANCEL_S
from coordinator.machine.commands import ClaimReclaims, Command, ReturnReclaims
from coordinator.machine.results import Denied as Refused
from coordinator.machine.results import ReclaimsClaimed, Result
from coordinator.service import Service
from coordinator.watches import Topic

CLAIMED_AT_ONCE = 50
"""A claim gets no more, whatever it asks for: others wait for the entry that hands them out, and for the one in which
their worker says that they are done."""
CLAIM_LOOK_S = 1.0
"""How often a worker that waits for clean-ups looks by itself: a closed lane opens by time, without an event."""


class Wanted(Protocol):
    """What a worker asks for: the command that gets it, and how it is known whether there is any."""

    @property
    def command(self) -> Command: ...

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Of whose events to hear."""

    @property
    def look_s(self) -> float | None:
        """How often to look also without an event, if there are changes that have none."""

    def is_there(self, service: Service, namespace: str) -> bool:
        """Whether asking is worth an entry of the log."""

    def is_nothing(self, result: Result) -> bool: ...

    def returning(
        self, service: Service, namespace: str, committed: Committed, request_id: bytes | None
    ) -> tuple[Command, ...]:
        """Gives back what was got for nobody: each only if the one before it was not refused."""


class WantedReclaims:
    look_s = CLAIM_LOOK_S

    def __init__(self, command: ClaimReclaims) -> None:
        self.command = replace(command, max=min(command.max, CLAIMED_AT_ONCE))
        self.topics: tuple[Topic, ...] = (("reclaims", command.provider),)

    def is_there(self, service: Service, namespace: str) -> bool:
        return service.machine.claimable(namespace, self.command.provider, self.command.kinds, service.now_ms())

    def is_nothing(self, result: Result) -> bool:
        return isinstance(result, ReclaimsClaimed) and not result.items

    def returning(
        self, service: Service, namespace: str, committed: Committed, request_id: bytes | None
    ) -> tuple[Command, ...]:
        claimed = committed.result
        if not isinstance(claimed, ReclaimsClaimed) or not claimed.items:
            return ()
        if claimed.expires_ms != committed.now_ms + self.command.claim_ms:
            # Another try of this request got it before: that one was answered, or gives it back itself.
            return ()
        ids = packed([item.reclaim_id for item in claimed.items])
        tokens = packed([item.token for item in claimed.items])
        return (ReturnReclaims(self.command.worker_id, ids, tokens, request_id, committed.index),)


def packed(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


async def claim(
    service: Service,
    namespace: str,
    command: ClaimReclaims,
    wait_ms: int,
    request_id: bytes | None,
    timeout: float = 5.0,
) -> Outcome:
    """Clean-ups, at once or, while there are none, within `wait_ms`."""
    return await got(service, namespace, WantedReclaims(command), wait_ms, request_id, timeout)


async def got(
    service: Service,
    namespace: str,
    wanted: Wanted,
    wait_ms: int,
    request_id: bytes | None,
    timeout: float = 5.0,
) -> Outcome:
    """At once or, while there is nothing, within `wait_ms`; whatever happens, `timeout` seconds later it ends.

    Each try has an id of its own, made from the request's: a repeated request gets what any of its tries got. That one
    of them got nothing, though, may be long ago, and what came since was news to nobody here.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_ms / 1000
    kind = (namespace, type(wanted.command))
    tries = 0
    with service.hub.news(namespace, wanted.topics) as news:
        outcome = await _try_once(service, namespace, wanted, request_id, timeout)
        is_recalled = request_id is not None  # perhaps: the log alone knows whether it has it from before
        while _is_empty(wanted, outcome):
            if is_recalled:
                news.set()
            own_id = None if request_id is None else _id_of_try(request_id, tries + 1)
            if not await _may_try(service, namespace, wanted, own_id, news, until):
                break
            try:
                async with asyncio.timeout_at(until + timeout):
                    await service.claiming.acquire(kind)
            except TimeoutError:
                return Denied("no_leader", "nothing was claimed, for want of a leader to ask in time: try again")
            try:
                is_recalled = own_id is not None and service.machine.outcome(namespace, own_id) is not None
                if is_recalled or wanted.is_there(service, namespace):
                    tries += 1
                    left_s = max(0.001, min(timeout, until + timeout - loop.time()))
                    outcome = await _try_once(service, namespace, wanted, own_id, left_s)
            finally:
                service.claiming.release(kind)
    if service.hub.stopping and wait_ms and _is_empty(wanted, outcome):
        return Denied("stopping", "this node is stopping, and nothing was claimed: ask another")
    return outcome


async def _try_once(
    service: Service, namespace: str, wanted: Wanted, request_id: bytes | None, timeout: float
) -> Outcome:
    proposal = asyncio.ensure_future(service.propose(namespace, wanted.command, request_id, timeout))
    try:
        # Shielded: what the log says of a command that has left must be known, to take it back.
        return await asyncio.shield(proposal)
    except asyncio.CancelledError:
        service.tidy(_give_back(service, namespace, wanted, request_id, proposal))
        raise


async def _give_back(
    service: Service,
    namespace: str,
    wanted: Wanted,
    request_id: bytes | None,
    proposal: asyncio.Future[Outcome],
) -> None:
    outcome = await proposal
    if not isinstance(outcome, Committed):
        return
    for returning in wanted.returning(service, namespace, outcome, request_id):
        returned = await service.insist(namespace, returning, CANCEL_S)
        if not isinstance(returned, Committed) or isinstance(returned.result, Refused):
            return


async def _may_try(
    service: Service,
    namespace: str,
    wanted: Wanted,
    own_id: bytes | None,
    news: asyncio.Event,
    until: float,
) -> bool:
    """Whether there is something before `until`. Not before there is news: the last try has just found nothing."""
    loop = asyncio.get_running_loop()
    while not service.hub.stopping:
        left_s = until - loop.time()
        if own_id is not None and service.machine.outcome(namespace, own_id) is not None:
            return True
        if left_s <= 0:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s if wanted.look_s is None else min(left_s, wanted.look_s)):
                await news.wait()
        news.clear()
        if _worth_a_try(service, namespace, wanted, own_id):
            return True
    return False


def _worth_a_try(service: Service, namespace: str, wanted: Wanted, own_id: bytes | None) -> bool:
    if own_id is not None and service.machine.outcome(namespace, own_id) is not None:
        return True
    return wanted.is_there(service, namespace)


def _id_of_try(request_id: bytes, number: int) -> bytes:
    """The same for the same request on every node, and none that a client can have chosen."""
    return b"\xff" + blake2b(request_id + number.to_bytes(8, "little"), digest_size=16).digest()


def _is_empty(wanted: Wanted, outcome: Outcome) -> bool:
    return isinstance(outcome, Committed) and wanted.is_nothing(outcome.result)
