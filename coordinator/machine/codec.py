"""Commands and results as msgpack, and the one place where a command's types and bounds are checked.

A command on the wire is `[request_id, namespace, verb, argument…]`. What does not fit comes out as a `Denied` that
names the field; nothing here raises for anything that can be in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any

import msgpack

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.limits import (
    MAX_BACK_OFF_MS,
    MAX_BATCH_EDGES,
    MAX_BATCH_LEASES,
    MAX_BATCH_RESOURCES,
    MAX_BLOCK_MS,
    MAX_BUFFER_MS,
    MAX_CLAIM_MS,
    MAX_CLAIMS,
    MAX_COMMAND_BYTES,
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
    MAX_REQUEST_ID_BYTES,
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

Check = Callable[[Any], str | None]
"""None when the value fits, else what is wanted."""


@dataclass(frozen=True, slots=True)
class Request:
    request_id: bytes | None
    namespace: str
    command: c.Command


# --- checks -------------------------------------------------------------------------------------------------------


def _name(value: Any) -> str | None:
    if type(value) is str and 0 < len(value) <= MAX_NAME_CHARACTERS:
        return None
    return f"a text of 1 to {MAX_NAME_CHARACTERS} characters"


def _integer(low: int, high: int) -> Check:
    wanted = f"an integer from {low} to {high}"
    return lambda value: None if type(value) is int and low <= value <= high else wanted


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _names(most: int) -> Check:
    wanted = f"1 to {most} texts of 1 to {MAX_NAME_CHARACTERS} characters"

    def check(value: Any) -> str | None:
        fits = type(value) is tuple and 0 < len(value) <= most and not any(map(_name, value))
        return None if fits else wanted

    return check


def _distinct_names(most: int) -> Check:
    names = _names(most)

    def check(value: Any) -> str | None:
        return names(value) or (None if len(set(value)) == len(value) else "each text once")

    return check


def _packed(most: int) -> Check:
    wanted = f"1 to {most} ids of 8 bytes each"
    return lambda value: None if type(value) is bytes and len(value) % 8 == 0 < len(value) <= 8 * most else wanted


def _request_id(value: Any) -> str | None:
    if type(value) is bytes and 0 < len(value) <= MAX_REQUEST_ID_BYTES:
        return None
    return f"1 to {MAX_REQUEST_ID_BYTES} bytes"


def _mode(value: Any) -> str | None:
    return None if type(value) is str and value in ("exclusive", "shared") else "exclusive or shared"


def _flag(value: Any) -> str | None:
    return None if type(value) is bool else "true or false"


def _policy(value: Any) -> str | None:
    fits = type(value) is str and value in ("cascade", "orphan", "block")
    return None if fits else "cascade, orphan or block"


def _text(most: int) -> Check:
    wanted = f"a text of at most {most} characters"
    return lambda value: None if type(value) is str and len(value) <= most else wanted


_ttl = _integer(MIN_TTL_MS, MAX_TTL_MS)
_identity = _integer(1, MAX_ID)
_token = _integer(0, MAX_TOKEN)
_quota = _integer(0, MAX_QUOTA)
_locking: tuple[Check, ...] = (
    _name, _ttl, _integer(0, MAX_BLOCK_MS), _mode, _integer(1, MAX_PERMITS), _optional(_identity),
    _integer(0, MAX_LOCK_DELAY_MS),
)  # fmt: skip
_leasing: tuple[Check, ...] = (_name, _ttl, _optional(_identity), _optional(_integer(1, MAX_LIFETIME_MS)))

VERBS: dict[str, tuple[type[c.Command], tuple[Check, ...]]] = {
    "heartbeat": (c.Heartbeat, (_name, _ttl, _packed(MAX_HEARTBEAT_LEASES))),
    "lease.acquire": (c.AcquireLease, (_name, *_leasing)),
    "lease.acquire_batch": (c.AcquireLeases, (_names(MAX_BATCH_LEASES), *_leasing)),
    "lease.renew": (c.RenewLease, (_identity, _name, _ttl)),
    "lease.release": (c.ReleaseLease, (_name, _name)),
    "session.create": (c.CreateSession, (_name, _ttl)),
    "session.heartbeat": (c.HeartbeatSession, (_identity,)),
    "session.delete": (c.DeleteSession, (_identity,)),
    "lock.acquire": (c.AcquireLock, (_name, *_locking)),
    "lock.acquire_many": (c.AcquireLocks, (_distinct_names(MAX_KEYS_PER_ACQUIRE), *_locking)),
    "lock.renew": (c.RenewLock, (_name, _name, _token, _ttl)),
    "lock.release": (c.ReleaseLock, (_name, _name, _token)),
    "lock.break": (c.BreakLock, (_name,)),
    "lock.cancel": (c.CancelWaiter, (_identity, _optional(_request_id), _integer(0, MAX_REVISION))),
    "resource.put": (
        c.PutResources,
        (
            _names(MAX_BATCH_RESOURCES),
            _name,
            _name,
            _optional(_integer(1, MAX_LIFETIME_MS)),
            _integer(0, MAX_BUFFER_MS),
            _flag,
            _policy,
        ),
    ),
    "resource.delete": (c.DeleteResource, (_name, _flag)),
    "edge.put": (c.PutEdges, (_names(MAX_BATCH_EDGES), _names(MAX_BATCH_EDGES), _optional(_policy))),
    "edge.delete": (c.DeleteEdge, (_name, _name)),
    "set.propose": (
        c.ProposeSet,
        (_integer(1, MAX_SET_NUMBER), _integer(0, MAX_RESOURCES), _packed(MAX_SET_PART), _flag),
    ),
    "suspects.settle": (c.SettleSuspects, (_packed(MAX_SETTLED), _integer(0, MAX_REVISION))),
    "suspects.add": (c.SuspectResources, (_packed(MAX_SETTLED),)),
    "reclaim.claim": (
        c.ClaimReclaims,
        (
            _name,
            _name,
            _integer(1, MAX_CLAIMS),
            _integer(MIN_CLAIM_MS, MAX_CLAIM_MS),
            lambda value: None if value == () else _distinct_names(MAX_KINDS_PER_CLAIM)(value),
        ),
    ),
    "reclaim.ack": (c.AckReclaims, (_name, _packed(MAX_CLAIMS), _packed(MAX_CLAIMS))),
    "reclaim.renew": (
        c.RenewReclaims,
        (_name, _packed(MAX_CLAIMS), _packed(MAX_CLAIMS), _integer(MIN_CLAIM_MS, MAX_CLAIM_MS)),
    ),
    "reclaim.return": (
        c.ReturnReclaims,
        (_name, _packed(MAX_CLAIMS), _packed(MAX_CLAIMS), _optional(_request_id), _integer(0, MAX_REVISION)),
    ),
    "reclaim.nack": (
        c.NackReclaim,
        (_name, _identity, _token, _text(MAX_REASON_CHARACTERS), _optional(_integer(0, MAX_BACK_OFF_MS))),
    ),
    "reclaim.retry": (c.RetryReclaims, (_name, _text(MAX_NAME_CHARACTERS), _integer(1, MAX_CLAIMS))),
    "reclaim.purge": (c.PurgeReclaims, (_name, _text(MAX_NAME_CHARACTERS), _integer(1, MAX_CLAIMS))),
    "namespace.put": (c.PutNamespace, (_quota, _quota, _quota, _quota, _quota, _quota, _quota, _flag)),
    "namespace.delete": (c.DeleteNamespace, ()),
    "sweep": (c.Sweep, (_integer(1, MAX_SWEEP),)),
}
"""By what a command is called in the log: its class, and a check for each of its fields in order."""

_VERB_OF = {command: verb for verb, (command, _) in VERBS.items()}
_FIELDS = {verb: tuple(field.name for field in fields(command)) for verb, (command, _) in VERBS.items()}


def shown_id(number: int) -> str:
    """A lease's or session's id as people and JSON see it: 16 hex digits."""
    return f"{number:016x}"


def parsed_id(text: str) -> int | None:
    """The id that `shown_id` shows so; None for any other text."""
    plain = len(text) == 16 and all(digit in "0123456789abcdef" for digit in text)
    return int(text, 16) if plain else None


# --- commands -----------------------------------------------------------------------------------------------------


def encode_command(command: c.Command, namespace: str = "default", request_id: bytes | None = None) -> bytes:
    verb = _VERB_OF[type(command)]
    values = [getattr(command, name) for name in _FIELDS[verb]]
    packed: bytes = msgpack.packb([request_id, namespace, verb, *values])
    return packed


def _malformed(field: str, wanted: str) -> r.Denied:
    return r.Denied("malformed", f"{field} must be {wanted}", {"field": field})


def check_command(command: c.Command) -> r.Denied | None:
    """What `decode_command` would refuse: for the service, which says it before anything reaches the log."""
    verb = _VERB_OF[type(command)]
    for name, check in zip(_FIELDS[verb], VERBS[verb][1], strict=True):
        wanted = check(getattr(command, name))
        if wanted is not None:
            return _malformed(name, wanted)
    if isinstance(command, c.AcquireLock | c.AcquireLocks) and command.mode == "shared" and command.permits != 1:
        return _malformed("permits", "1 when the mode is shared")
    if isinstance(command, c.AckReclaims | c.RenewReclaims | c.ReturnReclaims):
        as_many = len(command.tokens) == len(command.reclaim_ids)
        return None if as_many else _malformed("tokens", "as many as reclaim_ids")
    return None


def decode_command(raw: bytes) -> Request | r.Denied:
    if len(raw) > MAX_COMMAND_BYTES:
        return _malformed("command", f"at most {MAX_COMMAND_BYTES} bytes")
    try:
        parts = msgpack.unpackb(raw, use_list=False, strict_map_key=True, max_ext_len=0, max_map_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        return _malformed("command", f"msgpack ({type(error).__name__})")
    if type(parts) is not tuple or len(parts) < 3:
        return _malformed("command", "an array of request id, namespace, verb and arguments")
    request_id, namespace, verb, *values = parts
    wanted = _optional(_request_id)(request_id)
    if wanted is not None:
        return _malformed("request_id", wanted)
    wanted = _name(namespace)
    if wanted is not None:
        return _malformed("namespace", wanted)
    if type(verb) is not str or verb not in VERBS:
        return _malformed("verb", "one this version knows")
    command, checks = VERBS[verb]
    if len(values) != len(checks):
        return _malformed("command", f"{verb} with {len(checks)} arguments")
    decoded = command(*values)
    return check_command(decoded) or Request(request_id, namespace, decoded)


# --- results ------------------------------------------------------------------------------------------------------

_RESULTS: tuple[type[r.Result], ...] = (
    r.Denied, r.LeaseGranted, r.LeasesGranted, r.LeaseRenewed, r.LeaseReleased, r.HeartbeatAnswer, r.SessionCreated,
    r.SessionRenewed, r.SessionDeleted, r.LockGranted, r.LocksGranted, r.LockBusy, r.LockWaiting, r.LockRenewed,
    r.LockReleased, r.LockBroken, r.WaitCancelled, r.NamespaceChanged, r.Swept, r.ResourcesPut, r.ResourceDeleted,
    r.EdgesPut, r.EdgeDeleted, r.SetTaken, r.SuspectsSettled, r.ReclaimsClaimed, r.ReclaimsAnswered, r.ReclaimNacked,
    r.DeadLettersMoved,
)  # fmt: skip
"""A result's tag on the wire is its place here: append, never reorder."""

_TAG_OF = {result: tag for tag, result in enumerate(_RESULTS)}
_RESULT_FIELDS = tuple(tuple(field.name for field in fields(result)) for result in _RESULTS)


def result_parts(result: r.Result) -> list[Any]:
    """As plain values, for msgpack."""
    tag = _TAG_OF[type(result)]
    if isinstance(result, r.LocksGranted):
        return [tag, [result_parts(grant) for grant in result.grants]]
    if isinstance(result, r.ReclaimsClaimed):
        rest = (result.claim_ms, result.expires_ms, result.left, result.retry_in_ms)
        return [tag, [astuple(item) for item in result.items], *rest]
    return [tag, *(getattr(result, name) for name in _RESULT_FIELDS[tag])]


def result_of(parts: Any) -> r.Result:
    """Of what `result_parts` made. Only for our own bytes: a foreign shape raises."""
    tag, *values = parts
    result: Callable[..., r.Result] = _RESULTS[tag]
    if result is r.LocksGranted:
        return r.LocksGranted(tuple(_lock_granted(grant) for grant in values[0]))
    if result is r.ReclaimsClaimed:
        return r.ReclaimsClaimed(tuple(r.Reclaim(*item) for item in values[0]), *values[1:])
    return result(*values)


def _lock_granted(parts: Any) -> r.LockGranted:
    _, *values = parts
    return r.LockGranted(*values)


def encode_result(result: r.Result) -> bytes:
    packed: bytes = msgpack.packb(result_parts(result))
    return packed


def decode_result(raw: bytes) -> r.Result:
    return result_of(msgpack.unpackb(raw, use_list=False))
