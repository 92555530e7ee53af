"""What each command is called in the log, and what its fields must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.machine import commands as c
from coordinator.machine.checks import (
    Check,
    a_flag,
    a_mode,
    a_name,
    a_policy,
    a_request_id,
    distinct_names,
    integer,
    names,
    optional,
    packed,
    text,
)
from coordinator.machine.levels import MAX_LEVEL, OLDEST
from coordinator.machine.limits import (
    MAX_BACK_OFF_MS,
    MAX_BATCH_EDGES,
    MAX_BATCH_LEASES,
    MAX_BATCH_RESOURCES,
    MAX_BLOCK_MS,
    MAX_BUFFER_MS,
    MAX_CLAIM_MS,
    MAX_CLAIMS,
    MAX_HEARTBEAT_LEASES,
    MAX_ID,
    MAX_KEYS_PER_ACQUIRE,
    MAX_KINDS_PER_CLAIM,
    MAX_LIFETIME_MS,
    MAX_LOCK_DELAY_MS,
    MAX_NAME_CHARACTERS,
    MAX_PERMITS,
    MAX_QUOTA,
    MAX_REASON_CHARACTERS,
    MAX_RESOURCES,
    MAX_REVISION,
    MAX_SET_NUMBER,
    MAX_SET_PART,
    MAX_SETTLED,
    MAX_SWEEP,
    MAX_TOKEN,
    MAX_TTL_MS,
    MIN_CLAIM_MS,
    MIN_TTL_MS,
)

Verbs = dict[str, tuple[type[c.Command], tuple[Check, ...]]]
Misfit = tuple[str, str] | None
"""A field that does not go with another one, and what is wanted."""
Misfits = dict[type[c.Command], Callable[[Any], Misfit]]
"""By command, for those with such fields: a look at a command whose fields are right each by itself."""

_ttl = integer(MIN_TTL_MS, MAX_TTL_MS)
_identity = integer(1, MAX_ID)
_token = integer(0, MAX_TOKEN)
_quota = integer(0, MAX_QUOTA)
_locking: tuple[Check, ...] = (
    a_name, _ttl, integer(0, MAX_BLOCK_MS), a_mode, integer(1, MAX_PERMITS), optional(_identity),
    integer(0, MAX_LOCK_DELAY_MS),
)  # fmt: skip
_leasing: tuple[Check, ...] = (a_name, _ttl, optional(_identity), optional(integer(1, MAX_LIFETIME_MS)))

PLAIN_VERBS: Verbs = {
    "heartbeat": (c.Heartbeat, (a_name, _ttl, packed(MAX_HEARTBEAT_LEASES))),
    "lease.acquire": (c.AcquireLease, (a_name, *_leasing)),
    "lease.acquire_batch": (c.AcquireLeases, (names(MAX_BATCH_LEASES), *_leasing)),
    "lease.renew": (c.RenewLease, (_identity, a_name, _ttl)),
    "lease.release": (c.ReleaseLease, (a_name, a_name)),
    "session.create": (c.CreateSession, (a_name, _ttl)),
    "session.heartbeat": (c.HeartbeatSession, (_identity,)),
    "session.delete": (c.DeleteSession, (_identity,)),
    "lock.acquire": (c.AcquireLock, (a_name, *_locking)),
    "lock.acquire_many": (c.AcquireLocks, (distinct_names(MAX_KEYS_PER_ACQUIRE), *_locking)),
    "lock.renew": (c.RenewLock, (a_name, a_name, _token, _ttl)),
    "lock.release": (c.ReleaseLock, (a_name, a_name, _token)),
    "lock.break": (c.BreakLock, (a_name,)),
    "lock.cancel": (c.CancelWaiter, (_identity, optional(a_request_id), integer(0, MAX_REVISION))),
    "resource.put": (
        c.PutResources,
        (
            names(MAX_BATCH_RESOURCES),
            a_name,
            a_name,
            optional(integer(1, MAX_LIFETIME_MS)),
            integer(0, MAX_BUFFER_MS),
            a_flag,
            a_policy,
        ),
    ),
    "resource.delete": (c.DeleteResource, (a_name, a_flag)),
    "edge.put": (c.PutEdges, (names(MAX_BATCH_EDGES), names(MAX_BATCH_EDGES), optional(a_policy))),
    "edge.delete": (c.DeleteEdge, (a_name, a_name)),
    "set.propose": (
        c.ProposeSet,
        (integer(1, MAX_SET_NUMBER), integer(0, MAX_RESOURCES), packed(MAX_SET_PART, least=0), a_flag),
    ),
    "suspects.settle": (c.SettleSuspects, (packed(MAX_SETTLED), integer(0, MAX_REVISION))),
    "suspects.add": (c.SuspectResources, (packed(MAX_SETTLED),)),
    "reclaim.claim": (
        c.ClaimReclaims,
        (
            a_name,
            a_name,
            integer(1, MAX_CLAIMS),
            integer(MIN_CLAIM_MS, MAX_CLAIM_MS),
            lambda value: None if value == () else distinct_names(MAX_KINDS_PER_CLAIM)(value),
        ),
    ),
    "reclaim.ack": (c.AckReclaims, (a_name, packed(MAX_CLAIMS), packed(MAX_CLAIMS))),
    "reclaim.renew": (
        c.RenewReclaims,
        (a_name, packed(MAX_CLAIMS), packed(MAX_CLAIMS), integer(MIN_CLAIM_MS, MAX_CLAIM_MS)),
    ),
    "reclaim.return": (
        c.ReturnReclaims,
        (a_name, packed(MAX_CLAIMS), packed(MAX_CLAIMS), optional(a_request_id), integer(0, MAX_REVISION)),
    ),
    "reclaim.nack": (
        c.NackReclaim,
        (a_name, _identity, _token, text(MAX_REASON_CHARACTERS), optional(integer(0, MAX_BACK_OFF_MS))),
    ),
    "reclaim.retry": (c.RetryReclaims, (a_name, text(MAX_NAME_CHARACTERS), integer(1, MAX_CLAIMS))),
    "reclaim.purge": (c.PurgeReclaims, (a_name, text(MAX_NAME_CHARACTERS), integer(1, MAX_CLAIMS))),
    "namespace.put": (c.PutNamespace, (*[_quota] * 7, a_flag, *[_quota] * 6)),
    "namespace.delete": (c.DeleteNamespace, ()),
    "sweep": (c.Sweep, (integer(1, MAX_SWEEP),)),
    "level.raise": (c.RaiseLevel, (integer(OLDEST, MAX_LEVEL),)),
}
"""By what a command is called in the log: its class, and a check for each of its fields in order."""


def _permits_of_shared(command: Any) -> Misfit:
    alone = command.mode == "shared" and command.permits != 1
    return ("permits", "1 when the mode is shared") if alone else None


def _tokens_of_reclaims(command: Any) -> Misfit:
    return None if len(command.tokens) == len(command.reclaim_ids) else ("tokens", "as many as reclaim_ids")


PLAIN_MISFITS: Misfits = {
    c.AcquireLock: _permits_of_shared,
    c.AcquireLocks: _permits_of_shared,
    c.AckReclaims: _tokens_of_reclaims,
    c.RenewReclaims: _tokens_of_reclaims,
    c.ReturnReclaims: _tokens_of_reclaims,
}
