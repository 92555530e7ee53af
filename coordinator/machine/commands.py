"""What the machine can be told: a closed union of values, checked by `codec` before anything reaches the rules."""

from __future__ import annotations

from typing import Literal

from coordinator.machine.accesscommands import AccessCommand
from coordinator.machine.limits import (
    DEFAULT_BUFFER_MS,
    DEFAULT_EDGES,
    DEFAULT_HOLDERS,
    DEFAULT_QUEUES,
    DEFAULT_REQUESTS_PER_S,
    DEFAULT_RESOURCES,
    DEFAULT_TASK_BYTES,
    DEFAULT_TASKS,
    DEFAULT_TOMBSTONES,
    MAX_REVISION,
)
from coordinator.machine.taskcommands import TaskCommand
from coordinator.machine.tombstonecommands import TombstoneCommand
from coordinator.machine.values import value

Mode = Literal["exclusive", "shared"]
OnLost = Literal["cascade", "orphan", "block"]


@value(frozen=True, slots=True)
class AcquireLease:
    resource_id: str
    client_id: str
    lease_duration_ms: int
    session_id: int | None = None
    max_lifetime_ms: int | None = None


@value(frozen=True, slots=True)
class AcquireLeases:
    """All of them or, over a quota, none."""

    resource_ids: tuple[str, ...]
    client_id: str
    lease_duration_ms: int
    session_id: int | None = None
    max_lifetime_ms: int | None = None


@value(frozen=True, slots=True)
class RenewLease:
    lease_id: int
    client_id: str
    extend_duration_ms: int


@value(frozen=True, slots=True)
class ReleaseLease:
    resource_id: str
    client_id: str


@value(frozen=True, slots=True)
class Heartbeat:
    """`lease_ids`: packed little-endian u64."""

    client_id: str
    extend_duration_ms: int
    lease_ids: bytes


@value(frozen=True, slots=True)
class CreateSession:
    client_id: str
    ttl_ms: int


@value(frozen=True, slots=True)
class HeartbeatSession:
    session_id: int


@value(frozen=True, slots=True)
class DeleteSession:
    session_id: int


@value(frozen=True, slots=True)
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


@value(frozen=True, slots=True)
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


@value(frozen=True, slots=True)
class RenewLock:
    lock_key: str
    client_id: str
    fencing_token: int
    extend_time_ms: int


@value(frozen=True, slots=True)
class ReleaseLock:
    lock_key: str
    client_id: str
    fencing_token: int


@value(frozen=True, slots=True)
class BreakLock:
    """By an administrator: every hold of the key ends at once, and its holders are refused from then on."""

    lock_key: str


@value(frozen=True, slots=True)
class CancelWaiter:
    """Who asked for `request_id` up to revision `asked` is gone: out of the queue or, granted by now, of the lock."""

    waiter_id: int
    request_id: bytes | None = None
    asked: int = MAX_REVISION


@value(frozen=True, slots=True)
class PutResources:
    """Registers resources or changes what is known of them; all or none. A lifetime, once given, only gets shorter."""

    resource_ids: tuple[str, ...]
    provider: str
    kind: str
    max_lifetime_ms: int | None = None
    safety_buffer_ms: int = DEFAULT_BUFFER_MS
    pinned: bool = False
    on_lost: OnLost = "cascade"


@value(frozen=True, slots=True)
class DeleteResource:
    """Has it reclaimed. One that is referred to only with `force`: then its leases end and its edges go."""

    resource_id: str
    force: bool = False


@value(frozen=True, slots=True)
class PutEdges:
    """All or none. `on_lost`: None takes what the target was registered with."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    on_lost: OnLost | None = None


@value(frozen=True, slots=True)
class DeleteEdge:
    source_resource_id: str
    target_resource_id: str


@value(frozen=True, slots=True)
class ProposeSet:
    """From the collector: the resources of set `number` that nothing refers to, in parts. The last part decides.

    `members`: packed little-endian u64 ids.
    """

    number: int
    part: int
    members: bytes
    last: bool


@value(frozen=True, slots=True)
class SettleSuspects:
    """From the collector: these were found alive as of a revision, and are no suspects unless they lost more since."""

    resource_ids: bytes
    as_of: int


@value(frozen=True, slots=True)
class SuspectResources:
    """From the audit: look at these again."""

    resource_ids: bytes


@value(frozen=True, slots=True)
class ClaimReclaims:
    """`kinds`: only these; empty for all of the provider's."""

    provider: str
    worker_id: str
    max: int
    claim_ms: int
    kinds: tuple[str, ...] = ()


@value(frozen=True, slots=True)
class AckReclaims:
    """`reclaim_ids`, `tokens`: packed little-endian u64, one token for each id."""

    worker_id: str
    reclaim_ids: bytes
    tokens: bytes


@value(frozen=True, slots=True)
class RenewReclaims:
    worker_id: str
    reclaim_ids: bytes
    tokens: bytes
    claim_ms: int


@value(frozen=True, slots=True)
class ReturnReclaims:
    """Not begun, and for others at once: no attempt is used up, and nothing failed.

    With `request_id`, the claim that got them: only if nobody asked for it again after revision `asked`.
    """

    worker_id: str
    reclaim_ids: bytes
    tokens: bytes
    request_id: bytes | None = None
    asked: int = MAX_REVISION


@value(frozen=True, slots=True)
class NackReclaim:
    """`retry_in_ms`: None leaves it to the back-off."""

    worker_id: str
    reclaim_id: int
    token: int
    reason: str
    retry_in_ms: int | None = None


@value(frozen=True, slots=True)
class RetryReclaims:
    """Dead letters of a kind (empty: of every kind) get another chance, oldest first."""

    provider: str
    kind: str
    max: int


@value(frozen=True, slots=True)
class PurgeReclaims:
    """Dead letters are forgotten, with their resources: somebody cleaned up by hand, or nobody will."""

    provider: str
    kind: str
    max: int


@value(frozen=True, slots=True)
class PutNamespace:
    """Creates the namespace or changes its quotas. A quota below what is in use only stops more.

    `acyclic`: edges that would close a cycle are refused. Only while there are no edges can it be switched on.
    """

    leases: int
    locks: int
    waiters: int
    sessions: int
    name_bytes: int
    resources: int = DEFAULT_RESOURCES
    edges: int = DEFAULT_EDGES
    acyclic: bool = False
    tasks: int = DEFAULT_TASKS
    queues: int = DEFAULT_QUEUES
    holders: int = DEFAULT_HOLDERS
    tombstones: int = DEFAULT_TOMBSTONES
    task_bytes: int = DEFAULT_TASK_BYTES
    requests_per_s: int = DEFAULT_REQUESTS_PER_S


@value(frozen=True, slots=True)
class DeleteNamespace:
    """Only an empty one."""


@value(frozen=True, slots=True)
class Sweep:
    """Work off up to `limit` of what is due, on top of what every entry does."""

    limit: int


@value(frozen=True, slots=True)
class RaiseLevel:
    """From the leader, once every member knows it: from here on all go by the rules of this level (`levels`)."""

    level: int


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
    | PutResources
    | DeleteResource
    | PutEdges
    | DeleteEdge
    | ProposeSet
    | SettleSuspects
    | SuspectResources
    | ClaimReclaims
    | AckReclaims
    | RenewReclaims
    | ReturnReclaims
    | NackReclaim
    | RetryReclaims
    | PurgeReclaims
    | PutNamespace
    | DeleteNamespace
    | Sweep
    | RaiseLevel
    | TaskCommand
    | TombstoneCommand
    | AccessCommand
)
