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
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine import tombstoneresults as tb
from coordinator.machine.checks import a_name, a_request_id, optional
from coordinator.machine.limits import MAX_COMMAND_BYTES
from coordinator.machine.taskverbs import TASK_VERBS, misfit
from coordinator.machine.tombstoneverbs import TOMBSTONE_VERBS
from coordinator.machine.verbs import VERBS as PLAIN_VERBS


@dataclass(frozen=True, slots=True)
class Request:
    request_id: bytes | None
    namespace: str
    command: c.Command


VERBS = PLAIN_VERBS | TASK_VERBS | TOMBSTONE_VERBS
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
    wrong = misfit(command)
    return None if wrong is None else _malformed(*wrong)


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
    wanted = optional(a_request_id)(request_id)
    if wanted is not None:
        return _malformed("request_id", wanted)
    wanted = a_name(namespace)
    if wanted is not None:
        return _malformed("namespace", wanted)
    if type(verb) is not str or verb not in VERBS:
        return _malformed("verb", "one this version knows")
    command, checks = VERBS[verb]
    if len(values) != len(checks):
        return _malformed("command", f"{verb} with {len(checks)} arguments")
    decoded = command(*values)
    wrong = check_command(decoded)
    if wrong is None and isinstance(decoded, t.PutTasks):
        decoded = t.PutTasks(decoded.queue, tuple(t.NewTask(*task) for task in decoded.tasks))
    return wrong or Request(request_id, namespace, decoded)


# --- results ------------------------------------------------------------------------------------------------------

_RESULTS: tuple[type[r.Result], ...] = (
    r.Denied, r.LeaseGranted, r.LeasesGranted, r.LeaseRenewed, r.LeaseReleased, r.HeartbeatAnswer, r.SessionCreated,
    r.SessionRenewed, r.SessionDeleted, r.LockGranted, r.LocksGranted, r.LockBusy, r.LockWaiting, r.LockRenewed,
    r.LockReleased, r.LockBroken, r.WaitCancelled, r.NamespaceChanged, r.Swept, r.ResourcesPut, r.ResourceDeleted,
    r.EdgesPut, r.EdgeDeleted, r.SetTaken, r.SuspectsSettled, r.ReclaimsClaimed, r.ReclaimsAnswered, r.ReclaimNacked,
    r.DeadLettersMoved, tr.QueuePut, tr.QueueStands, tr.QueueDeleted, tr.TasksPut, tr.TasksAcquired, tr.TasksAnswered,
    tr.TaskFailed, tr.TaskTaken, tr.TasksMoved, tr.ShardsPut, tr.WorkerSeen, tr.WorkerLeft,
    tb.CopyRegistered, tb.CopiesVerified, tb.TombstonesAcked, tb.HolderRemoved,
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
    if result is tr.TasksAcquired:
        return tr.TasksAcquired(tuple(tr.Task(*task) for task in values[0]), *values[1:])
    if result is tr.WorkerSeen:
        version, changed, *both, expires_ms, revoked_ms, heartbeat_ms = values
        shards, revoking = (tuple(tr.ShardGrant(*grant) for grant in grants) for grants in both)
        return tr.WorkerSeen(version, changed, shards, revoking, expires_ms, revoked_ms, heartbeat_ms)
    return result(*values)


def _lock_granted(parts: Any) -> r.LockGranted:
    _, *values = parts
    return r.LockGranted(*values)


def encode_result(result: r.Result) -> bytes:
    packed: bytes = msgpack.packb(result_parts(result))
    return packed


def decode_result(raw: bytes) -> r.Result:
    return result_of(msgpack.unpackb(raw, use_list=False))
