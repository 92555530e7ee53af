"""What the machine can be told: a closed union of values, checked by `codec` before anything reaches the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["exclusive", "shared"]


@dataclass(frozen=True, slots=True)
class AcquireLease:
    resource_id: str
    client_id: str
    lease_duration_ms: int
    session_id: int | None = None
    max_lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AcquireLeases:
    """All of them or, over a quota, none."""

    resource_ids: tuple[str, ...]
    client_id: str
    lease_duration_ms: int
    session_id: int | None = None
    max_lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RenewLease:
    lease_id: int
    client_id: str
    extend_duration_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    resource_id: str
    client_id: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`lease_ids`: packed little-endian u64."""

    client_id: str
    extend_duration_ms: int
    lease_ids: bytes


@dataclass(frozen=True, slots=True)
class CreateSession:
    client_id: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class HeartbeatSession:
    session_id: int


@dataclass(frozen=True, slots=True)
class DeleteSession:
    session_id: int


@dataclass(frozen=True, slots=True)
class AcquireLock:
    """`permits`: how many may hold the key at once (a semaphore when above one; only with mode exclusive)."""

    lock_key: str
    client_id: str
    lease_time_ms: int
    block_time_ms: int = 0
    mode: Mode = "exclusive"
    permits: int = 1
    session_id: int | None = None
    lock_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class AcquireLocks:
    """All keys or none; waits as one waiter in the queue of each."""

    lock_keys: tuple[str, ...]
    client_id: str
    lease_time_ms: int
    block_time_ms: int = 0
    mode: Mode = "exclusive"
    permits: int = 1
    session_id: int | None = None
    lock_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class RenewLock:
    lock_key: str
    client_id: str
    fencing_token: int
    extend_time_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    lock_key: str
    client_id: str
    fencing_token: int


@dataclass(frozen=True, slots=True)
class BreakLock:
    """By an administrator: every hold of the key ends at once, and its holders are refused from then on."""

    lock_key: str


@dataclass(frozen=True, slots=True)
class CancelWaiter:
    waiter_id: int


@dataclass(frozen=True, slots=True)
class PutNamespace:
    """Creates the namespace or changes its quotas. A quota below what is in use only stops more."""

    leases: int
    locks: int
    waiters: int
    sessions: int
    name_bytes: int


@dataclass(frozen=True, slots=True)
class DeleteNamespace:
    """Only an empty one."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Work off up to `limit` of what is due, on top of what every entry does."""

    limit: int


Command = (
    AcquireLease
    | AcquireLeases
    | RenewLease
    | ReleaseLease
    | Heartbeat
    | CreateSession
    | HeartbeatSession
    | DeleteSession
    | AcquireLock
    | AcquireLocks
    | RenewLock
    | ReleaseLock
    | BreakLock
    | CancelWaiter
    | PutNamespace
    | DeleteNamespace
    | Sweep
)
