"""AcquireLease, RenewLease and ReleaseReference: the same commands as /api/v1/leases, by the same rules for names."""

from __future__ import annotations

from typing import Any

from coordinator.http.fields import Identity, Integer, Text, hex_id
from coordinator.http.moments import epoch_ms, ttl_ms
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.limits import MAX_TTL_MS, MIN_TTL_MS
from coordinator.rpc.calls import Call
from coordinator.rpc.messages import CLASSES

INT32_MAX = (1 << 31) - 1

NAME = Text()
LEASE_ID = Identity()
DURATION = Integer(low=MIN_TTL_MS, high=MAX_TTL_MS)

_Acquired = CLASSES["AcquireLeaseResponse"]
_Renewed = CLASSES["RenewLeaseResponse"]
_Released = CLASSES["ReleaseReferenceResponse"]


async def acquire(call: Call, request: Any) -> Any:
    command = c.AcquireLease(
        NAME.read("resource_id", request.resource_id),
        NAME.read("client_id", request.client_id),
        DURATION.read("lease_duration_ms", request.lease_duration_ms),
        session_id=None,
        max_lifetime_ms=None,
    )
    await call.allow(command.client_id, resource_id=command.resource_id, urgent=False)
    outcome = await call.propose(command)
    committed = call.settled(call.service.still_held(call.namespace, outcome))
    grant = committed.result
    if isinstance(grant, r.Denied):
        return _Acquired()
    left_ms = ttl_ms(grant.expires_ms, committed.now_ms)
    return _Acquired(lease_id=hex_id(grant.lease_id), expires_at_epoch_ms=epoch_ms(left_ms), success=True)


async def renew(call: Call, request: Any) -> Any:
    command = c.RenewLease(
        LEASE_ID.read("lease_id", request.lease_id),
        NAME.read("client_id", request.client_id),
        DURATION.read("extend_duration_ms", request.extend_duration_ms),
    )
    if await call.allow(command.client_id, lease_ids=[command.lease_id]):
        call.not_found()
        return not_renewed()
    committed = call.settled(await call.propose(command))
    if isinstance(committed.result, r.Denied):
        return not_renewed()
    return renewed(ttl_ms(committed.result.expires_ms, committed.now_ms))


def renewed(left_ms: int) -> Any:
    return _Renewed(success=True, new_expires_at_epoch_ms=epoch_ms(left_ms))


def not_renewed() -> Any:
    return _Renewed()


async def release(call: Call, request: Any) -> Any:
    command = c.ReleaseLease(NAME.read("resource_id", request.resource_id), NAME.read("client_id", request.client_id))
    await call.allow(command.client_id, resource_id=command.resource_id)
    result = call.settled(await call.propose(command)).result
    if isinstance(result, r.Denied):
        return _Released()
    return _Released(success=True, remaining_reference_count=min(result.remaining_reference_count, INT32_MAX))
