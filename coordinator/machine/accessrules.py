"""The rules of the commands about access tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.machine import accesscommands as a
from coordinator.machine.access import AccessToken, rotated
from coordinator.machine.accessresults import ActionNoted, TokenPut, TokenRevoked
from coordinator.machine.limits import MAX_ACCESS_TOKENS
from coordinator.machine.namespaces import Namespace
from coordinator.machine.results import Denied, Result
from coordinator.machine.state import State


def create(state: State, _: Namespace, command: a.CreateToken) -> Result:
    if command.token_id in state.access.tokens:
        return Denied("token_known", "there is a token of this id already; create it under another")
    if not state.access.make_room(state.now_ms):
        message = f"there may be {MAX_ACCESS_TOKENS} access tokens; revoke some that are not used"
        return Denied("capacity_exceeded", message, {"limit": MAX_ACCESS_TOKENS})
    expires_ms = None if command.ttl_ms is None else state.now_ms + command.ttl_ms
    token = AccessToken(
        command.token_id, command.digest, command.identity, command.scopes, command.bound, state.now_ms, expires_ms
    )
    state.access.put(token, state.revision)
    return TokenPut(token.token_id, expires_ms)


def rotate(state: State, _: Namespace, command: a.RotateToken) -> Result:
    known = state.access.tokens.get(command.token_id)
    if known is None:
        return _unknown(command.token_id)
    token = rotated(known, command.digest, command.overlap_ms, state.now_ms)
    state.access.put(token, state.revision)
    return TokenPut(token.token_id, token.expires_ms)


def revoke(state: State, _: Namespace, command: a.RevokeToken) -> Result:
    if command.token_id not in state.access.tokens:
        return _unknown(command.token_id)
    state.access.revoke(command.token_id, state.revision)
    return TokenRevoked(command.token_id)


def note(state: State, _: Namespace, __: a.NoteAction) -> Result:
    """The trail records it as it records other commands: this is only its number."""
    return ActionNoted(state.access.trail.last + 1)


def _unknown(token_id: str) -> Denied:
    return Denied("unknown_token", f"there is no access token {token_id}", {"field": "token_id"})


ACCESS_RULES: dict[Any, Callable[[State, Namespace, Any], Result]] = {
    a.CreateToken: create,
    a.RotateToken: rotate,
    a.RevokeToken: revoke,
    a.NoteAction: note,
}
