"""Waiting for a clean-up: a worker gets what is ready or, while there is nothing, what becomes ready.

A worker that hangs up while its claim is on its way to the log must not leave clean-ups that nobody has: they are given
back as soon as the claim is known to have got them.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from hashlib import blake2b

from cluster.ports import Committed, Denied, Outcome
from coordinator.machine.commands import ClaimReclaims, ReturnReclaims
from coordinator.machine.results import ReclaimsClaimed
from coordinator.service import CANCEL_S, Service

CLAIM_LOOK_S = 1.0
"""How often a waiting worker looks by itself: a closed lane opens by time, without an event."""


async def claim(
    service: Service,
    namespace: str,
    command: ClaimReclaims,
    wait_ms: int,
    request_id: bytes | None,
    timeout: float = 5.0,
) -> Outcome:
    """At once or, while there is nothing, within `wait_ms`; whatever happens, `timeout` seconds later it ends.

    Each try has an id of its own, made from the request's: a repeated request gets what any of its tries got.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_ms / 1000
    tries = 0
    with service.hub.clean_ups(namespace, command.provider) as news:
        outcome = await _claim_once(service, namespace, command, request_id, timeout)
        while _is_empty(outcome):
            own_id = None if request_id is None else _id_of_try(request_id, tries + 1)
            if not await _may_claim(service, namespace, command, own_id, news, until):
                break
            try:
                async with asyncio.timeout_at(until + timeout):
                    await service.claiming.acquire()
            except TimeoutError:
                return Denied("no_leader", "nothing was claimed, for want of a leader to ask in time: try again")
            try:
                if _worth_a_try(service, namespace, command, own_id):
                    tries += 1
                    left_s = max(0.001, min(timeout, until + timeout - loop.time()))
                    outcome = await _claim_once(service, namespace, command, own_id, left_s)
            finally:
                service.claiming.release()
    if service.hub.stopping and wait_ms and _is_empty(outcome):
        return Denied("stopping", "this node is stopping, and nothing was claimed: ask another")
    return outcome


async def _claim_once(
    service: Service, namespace: str, command: ClaimReclaims, request_id: bytes | None, timeout: float
) -> Outcome:
    proposal = asyncio.ensure_future(service.propose(namespace, command, request_id, timeout))
    try:
        # Shielded: what the log says of a command that has left must be known, to take it back.
        return await asyncio.shield(proposal)
    except asyncio.CancelledError:
        service.tidy(_give_back(service, namespace, command, request_id, proposal))
        raise


async def _give_back(
    service: Service,
    namespace: str,
    command: ClaimReclaims,
    request_id: bytes | None,
    proposal: asyncio.Future[Outcome],
) -> None:
    outcome = await proposal
    if not isinstance(outcome, Committed) or not isinstance(outcome.result, ReclaimsClaimed):
        return
    items = outcome.result.items
    if not items or outcome.result.expires_ms != outcome.now_ms + command.claim_ms:
        # Nothing, or what another try of this request got before: that one was answered, or gives it back itself.
        return
    ids = struct.pack(f"<{len(items)}Q", *(item.reclaim_id for item in items))
    tokens = struct.pack(f"<{len(items)}Q", *(item.token for item in items))
    returning = ReturnReclaims(command.worker_id, ids, tokens, request_id, outcome.index)
    await service.propose(namespace, returning, None, CANCEL_S)


async def _may_claim(
    service: Service,
    namespace: str,
    command: ClaimReclaims,
    own_id: bytes | None,
    news: asyncio.Event,
    until: float,
) -> bool:
    """Whether there is something before `until`."""
    loop = asyncio.get_running_loop()
    while not service.hub.stopping:
        news.clear()
        left_s = until - loop.time()
        if left_s <= 0 and (own_id is None or service.machine.outcome(namespace, own_id) is None):
            return False
        if _worth_a_try(service, namespace, command, own_id):
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, CLAIM_LOOK_S)):
                await news.wait()
    return False


def _worth_a_try(service: Service, namespace: str, command: ClaimReclaims, own_id: bytes | None) -> bool:
    if own_id is not None and service.machine.outcome(namespace, own_id) is not None:
        return True
    return service.machine.claimable(namespace, command.provider, command.kinds, service.now_ms())


def _id_of_try(request_id: bytes, number: int) -> bytes:
    """The same for the same request on every node, and none that a client can have chosen."""
    return b"\xff" + blake2b(request_id + number.to_bytes(8, "little"), digest_size=16).digest()


def _is_empty(outcome: Outcome) -> bool:
    return isinstance(outcome, Committed) and isinstance(outcome.result, ReclaimsClaimed) and not outcome.result.items
