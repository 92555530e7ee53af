"""What the machine answers: a closed union of values. A client's mistake is a `Denied`, never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from coordinator.machine.accessresults import AccessResult
from coordinator.machine.taskresults import TaskResult
from coordinator.machine.tombstoneresults import TombstoneResult
from coordinator.machine.values import value

DenialCode = Literal[
    "malformed", "unknown_namespace", "namespace_in_use", "request_id_reused", "quota_exceeded", "capacity_exceeded",
    "unknown_lease", "lease_expired", "not_owner", "session_owned", "lifetime_reached",
    "unknown_session", "session_expired",
    "not_holder", "mode_mismatch", "permits_mismatch", "session_mismatch", "unknown_lock", "unknown_waiter",
    "asked_again",
    "unknown_resource", "resource_reclaiming", "resource_in_use", "provider_mismatch", "unknown_edge",
    "would_close_cycle", "order_too_costly", "set_refused", "unknown_reclaim",
    "unknown_queue", "queue_in_use", "queue_draining", "unknown_task", "task_done", "kept_by_task", "unknown_worker",
    "tombstoned", "holder_known", "holder_fenced", "holder_verifying", "unknown_holder", "revision_ahead",
    "unknown_token", "token_known", "level_lower", "level_unknown",
]  # fmt: skip

Verdict = Literal["unknown", "not_owner", "expired", "session_owned", "lifetime_reached"]
VERDICTS: tuple[Verdict, ...] = ("unknown", "not_owner", "expired", "session_owned", "lifetime_reached")
"""Why a heartbeat did not renew a lease: a verdict's byte is its place here plus one.

`session_owned`: only the session's heartbeat renews it. `lifetime_reached`: its absolute lifetime allows no full
extension; it lives on until that lifetime ends and not longer.
"""


ReclaimVerdict = Literal["ok", "already_done", "not_holder", "unknown"]
RECLAIM_VERDICTS: tuple[ReclaimVerdict, ...] = ("ok", "already_done", "not_holder", "unknown")
"""A verdict's byte is its place here.

`already_done`: this clean-up is over; the acknowledgement was repeated, or another worker was faster. `not_holder`: the
claim ran out and the item was, or will be, handed to another; its effect is that one's to report.
"""


@value(frozen=True, slots=True)
class Denied:
    """Nothing was changed. `details` names the field, the limit, or the holder."""

    code: DenialCode
    message: str
    details: Mapping[str, int | str | tuple[str, ...] | None] = field(default_factory=dict)


# --- leases -------------------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class LeaseGranted:
    """`reacquired`: the client had a lease on the resource already and keeps it, extended."""

    lease_id: int
    fencing_token: int
    ttl_ms: int
    expires_ms: int
    reference_count: int
    reacquired: bool


@value(frozen=True, slots=True)
class LeasesGranted:
    """`lease_ids`: packed little-endian u64, in the order asked for. Every one has at least `ttl_ms` left."""

    lease_ids: bytes
    ttl_ms: int
    expires_ms: int


@value(frozen=True, slots=True)
class LeaseRenewed:
    ttl_ms: int
    expires_ms: int


@value(frozen=True, slots=True)
class LeaseReleased:
    remaining_reference_count: int


@value(frozen=True, slots=True)
class HeartbeatAnswer:
    """`failed_ids`: packed little-endian u64; `verdicts`: one byte each, see VERDICTS."""

    renewed: int
    failed_ids: bytes
    verdicts: bytes
    now_ms: int


# --- sessions -----------------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class SessionCreated:
    session_id: int
    ttl_ms: int
    expires_ms: int


@value(frozen=True, slots=True)
class SessionRenewed:
    ttl_ms: int
    expires_ms: int


@value(frozen=True, slots=True)
class SessionDeleted:
    """`leases`: how many leases and locks end with it."""

    leases: int


# --- locks --------------------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class LockGranted:
    lock_key: str
    client_id: str
    fencing_token: int
    lease_id: int
    hold_count: int
    ttl_ms: int
    expires_ms: int


@value(frozen=True, slots=True)
class LocksGranted:
    """In the order of the keys asked for."""

    grants: tuple[LockGranted, ...]


@value(frozen=True, slots=True)
class LockBusy:
    """Not acquired. `holder` is None while a lock-delay runs or earlier waiters come first."""

    lock_key: str
    client_id: str
    holder: str | None
    queue_length: int


@value(frozen=True, slots=True)
class LockWaiting:
    """In the queue, `position` counted from 0. A `lock_granted` or `wait_expired` event with `waiter_id` ends it."""

    lock_key: str
    client_id: str
    waiter_id: int
    position: int
    deadline_ms: int


@value(frozen=True, slots=True)
class LockRenewed:
    ttl_ms: int
    expires_ms: int


@value(frozen=True, slots=True)
class LockReleased:
    hold_count: int


@value(frozen=True, slots=True)
class LockBroken:
    holders: int


@value(frozen=True, slots=True)
class WaitCancelled:
    pass


# --- resources and reclaim ----------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class ResourcesPut:
    """`resource_ids`: packed little-endian u64, in the order asked for."""

    resource_ids: bytes
    created: int


@value(frozen=True, slots=True)
class ResourceDeleted:
    reclaim_id: int


@value(frozen=True, slots=True)
class EdgesPut:
    created: int


@value(frozen=True, slots=True)
class EdgeDeleted:
    """`remaining_references`: of the target, leases and edges together."""

    remaining_references: int


@value(frozen=True, slots=True)
class SetTaken:
    """A part of a proposed set was taken. `condemned`: all of it, and it is being reclaimed.

    After the last part it may be that edges are left to count: then parts without members follow, until it is decided.
    """

    members: int
    condemned: bool


@value(frozen=True, slots=True)
class SuspectsSettled:
    settled: int


@value(frozen=True, slots=True)
class Reclaim:
    """One clean-up: do it once, then acknowledge it with the token. `since_ms`: when it became garbage."""

    reclaim_id: int
    resource_id: str
    kind: str
    token: int
    attempt: int
    since_ms: int


@value(frozen=True, slots=True)
class ReclaimsClaimed:
    """`left`: how many more are ready for this provider now. `retry_in_ms`: when to ask again if there are none."""

    items: tuple[Reclaim, ...]
    claim_ms: int
    expires_ms: int
    left: int
    retry_in_ms: int | None


@value(frozen=True, slots=True)
class ReclaimsAnswered:
    """To an acknowledgement or renewal: one byte for each id, see RECLAIM_VERDICTS."""

    verdicts: bytes


@value(frozen=True, slots=True)
class ReclaimNacked:
    """`dead`: it was the last attempt. Otherwise it is handed out again after `retry_in_ms`."""

    dead: bool
    attempt: int
    retry_in_ms: int


@value(frozen=True, slots=True)
class DeadLettersMoved:
    """`left`: how many more dead letters match."""

    moved: int
    left: int


# --- the rest -----------------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class NamespaceChanged:
    pass


@value(frozen=True, slots=True)
class Swept:
    """`backlog`: what is due and not worked off yet."""

    expired: int
    backlog: int


@value(frozen=True, slots=True)
class LevelRaised:
    """`level`: the one in force, which may have been so before."""

    level: int


Result = (
    Denied
    | LeaseGranted
    | LeasesGranted
    | LeaseRenewed
    | LeaseReleased
    | HeartbeatAnswer
    | SessionCreated
    | SessionRenewed
    | SessionDeleted
    | LockGranted
    | LocksGranted
    | LockBusy
    | LockWaiting
    | LockRenewed
    | LockReleased
    | LockBroken
    | WaitCancelled
    | ResourcesPut
    | ResourceDeleted
    | EdgesPut
    | EdgeDeleted
    | SetTaken
    | SuspectsSettled
    | ReclaimsClaimed
    | ReclaimsAnswered
    | ReclaimNacked
    | DeadLettersMoved
    | NamespaceChanged
    | Swept
    | LevelRaised
    | TaskResult
    | TombstoneResult
    | AccessResult
)
