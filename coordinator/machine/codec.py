"""Commands and results as msgpack, and the one place where a command's types and bounds are checked.

A command on the wire is `[request_id, namespace, verb, argument…]`; for one that the audit trail records, the verb is
`[verb, identity, token_id]` if it came with an access token. What does not fit comes out as a `Denied` that
names the field; nothing here raises for anything that can be in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import msgpack

from coordinator.machine import accessresults as ar
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine import taskcommands as t
from coordinator.machine import taskresults as tr
from coordinator.machine import tombstoneresults as tb
from coordinator.machine.accesscommands import CreateToken, Scope
from coordinator.machine.accessverbs import ACCESS_VERBS
from coordinator.machine.checks import a_name, a_request_id, optional
from coordinator.machine.levels import LEVEL
from coordinator.machine.limits import MAX_COMMAND_BYTES, MAX_IDENTITY_CHARACTERS
from coordinator.machine.taskverbs import TASK_MISFITS, TASK_VERBS
from coordinator.machine.tombstoneverbs import TOMBSTONE_VERBS
from coordinator.machine.trail import NOBODY, RECORDED, Actor
from coordinator.machine.values import row_of, value
from coordinator.machine.verbs import PLAIN_MISFITS, PLAIN_VERBS


@value(frozen=True, slots=True)
class Request:
    request_id: bytes | None
    namespace: str
    command: c.Command
    actor: Actor = NOBODY


VERBS = PLAIN_VERBS | TASK_VERBS | TOMBSTONE_VERBS | ACCESS_VERBS
_MISFITS = PLAIN_MISFITS | TASK_MISFITS
_VERB_OF = {command: verb for verb, (command, _) in VERBS.items()}
_FIELDS = {verb: tuple(field.name for field in fields(command)) for verb, (command, _) in VERBS.items()}


_an_optional_request_id = optional(a_request_id)


def _short(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_IDENTITY_CHARACTERS


def shown_id(number: int) -> str:
    """A lease's or session's id as people and JSON see it: 16 hex digits."""
    return f"{number:016x}"


def parsed_id(text: str) -> int | None:
    """The id that `shown_id` shows so; None for any other text."""
    plain = len(text) == 16 and all(digit in "0123456789abcdef" for digit in text)
    return int(text, 16) if plain else None


# --- commands -----------------------------------------------------------------------------------------------------


def encode_command(
    command: c.Command, namespace: str = "default", request_id: bytes | None = None, actor: Actor = NOBODY
) -> bytes:
    """`actor`: only what the audit trail records carries it."""
    verb = _VERB_OF[type(command)]
    values = [getattr(command, name) for name in _FIELDS[verb]]
    signed = verb if actor is NOBODY or type(command) not in RECORDED else (verb, *actor)
    packed: bytes = msgpack.packb([request_id, namespace, signed, *values])
    return packed


def _malformed(field: str, wanted: str) -> r.Denied:
    return r.Denied("malformed", f"{field} must be {wanted}", {"field": field})


def check_command(command: c.Command) -> r.Denied | None:
    """What `decode_command` would refuse: for the service, which says it before anything reaches the log."""
    verb = _VERB_OF[type(command)]
    if isinstance(command, c.RaiseLevel) and command.level > LEVEL:
        # In the log it would stop every node that does not know it; nobody of this release puts it there.
        return r.Denied("level_unknown", f"this release knows levels up to {LEVEL}", {"field": "level"})
    return _wrong_value(verb, [getattr(command, name) for name in _FIELDS[verb]]) or _misfit(command)


def _wrong_value(verb: str, values: Sequence[Any]) -> r.Denied | None:
    for place, check in enumerate(VERBS[verb][1]):
        wanted = check(values[place])
        if wanted is not None:
            return _malformed(_FIELDS[verb][place], wanted)
    return None


def _misfit(command: c.Command) -> r.Denied | None:
    """A field whose value does not go with that of another."""
    find = _MISFITS.get(type(command))
    wrong = None if find is None else find(command)
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
    wanted = _an_optional_request_id(request_id)
    if wanted is not None:
        return _malformed("request_id", wanted)
    wanted = a_name(namespace)
    if wanted is not None:
        return _malformed("namespace", wanted)
    actor = NOBODY
    if type(verb) is tuple and len(verb) == 3 and all(map(_short, verb[1:])):
        verb, actor = verb[0], Actor(*verb[1:])
    if type(verb) is not str or verb not in VERBS:
        return _malformed("verb", "one this version knows")
    command, checks = VERBS[verb]
    if len(values) != len(checks):
        return _malformed("command", f"{verb} with {len(checks)} arguments")
    wrong = _wrong_value(verb, values)
    if wrong is not None:
        return wrong
    decoded = command(*values)
    if isinstance(decoded, t.PutTasks):
        decoded = t.PutTasks(decoded.queue, tuple(t.NewTask(*task) for task in decoded.tasks))
    elif isinstance(decoded, CreateToken):
        decoded = replace(decoded, scopes=tuple(Scope(*scope) for scope in decoded.scopes))
    return _misfit(decoded) or Request(request_id, namespace, decoded, actor)


# --- results ------------------------------------------------------------------------------------------------------

_RESULTS: tuple[type[r.Result], ...] = (
    r.Denied, r.LeaseGranted, r.LeasesGranted, r.LeaseRenewed, r.LeaseReleased, r.HeartbeatAnswer, r.SessionCreated,
    r.SessionRenewed, r.SessionDeleted, r.LockGranted, r.LocksGranted, r.LockBusy, r.LockWaiting, r.LockRenewed,
    r.LockReleased, r.LockBroken, r.WaitCancelled, r.NamespaceChanged, r.Swept, r.ResourcesPut, r.ResourceDeleted,
    r.EdgesPut, r.EdgeDeleted, r.SetTaken, r.SuspectsSettled, r.ReclaimsClaimed, r.ReclaimsAnswered, r.ReclaimNacked,
    r.DeadLettersMoved, tr.QueuePut, tr.QueueStands, tr.QueueDeleted, tr.TasksPut, tr.TasksAcquired, tr.TasksAnswered,
    tr.TaskFailed, tr.TaskTaken, tr.TasksMoved, tr.ShardsPut, tr.WorkerSeen, tr.WorkerLeft,
    tb.CopyRegistered, tb.CopiesVerified, tb.TombstonesAcked, tb.HolderRemoved,
    ar.TokenPut, ar.TokenRevoked, ar.ActionNoted, r.LevelRaised,
)  # fmt: skip
"""A result's tag on the wire is its place here: append, never reorder."""

_TAG_OF = {result: tag for tag, result in enumerate(_RESULTS)}
_RESULT_ROWS = tuple(map(row_of, _RESULTS))
_RECLAIM_ROW = row_of(r.Reclaim)


def result_parts(result: r.Result) -> list[Any]:
    """As plain values, for msgpack."""
    tag = _TAG_OF[type(result)]
    if isinstance(result, r.LocksGranted):
        return [tag, [result_parts(grant) for grant in result.grants]]
    if isinstance(result, r.ReclaimsClaimed):
        rest = (result.claim_ms, result.expires_ms, result.left, result.retry_in_ms)
        return [tag, [_RECLAIM_ROW(item) for item in result.items], *rest]
    return [tag, *_RESULT_ROWS[tag](result)]


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
