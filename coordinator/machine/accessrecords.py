"""What a snapshot holds of access tokens and of the audit trail; and what must be true of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from coordinator.machine.access import Access, AccessToken
from coordinator.machine.accesscommands import Scope
from coordinator.machine.faults import require
from coordinator.machine.limits import ACCESS_DIGEST_BYTES, MAX_ACCESS_TOKENS, MAX_ACTIONS, MAX_SCOPES
from coordinator.machine.trail import Action


class FrozenAccess:
    """The records are immutable, so only what holds them is copied."""

    def __init__(self, access: Access) -> None:
        self._tokens = list(access.tokens.values())
        self._last, self._actions = access.trail.last, list(access.trail.actions)

    def records(self) -> Iterator[list[Any]]:
        yield [
            [
                each.token_id, each.digest, each.identity, each.scopes, each.bound, each.created_ms, each.expires_ms,
                each.rotated_ms, each.before, each.before_until_ms,
            ]
            for each in self._tokens
        ]  # fmt: skip
        yield [self._last]
        yield self._actions


def read(access: Access, records: Callable[[], list[Any]]) -> None:
    for token_id, digest, identity, scopes, *rest in records():
        access.tokens[token_id] = AccessToken(token_id, digest, identity, tuple(Scope(*each) for each in scopes), *rest)
    (access.trail.last,) = records()
    access.trail.actions.extend(Action(*each) for each in records())


def check(access: Access, revision: int) -> None:
    require(len(access.tokens) <= MAX_ACCESS_TOKENS, "there are too many access tokens")
    for token_id, token in access.tokens.items():
        require(token.token_id == token_id, "an access token is filed under another's id")
        require(len(token.digest) == ACCESS_DIGEST_BYTES, "an access token has no digest")
        require(0 < len(token.scopes) <= MAX_SCOPES, "an access token has no scope, or too many")
        require(bool(token.before) == bool(token.before_until_ms), "a replaced secret has no end")
    actions = access.trail.actions
    require(len(actions) == min(access.trail.last, MAX_ACTIONS), "the trail has a gap, or is too long")
    numbers = range(access.trail.last - len(actions) + 1, access.trail.last + 1)
    require([each.number for each in actions] == list(numbers), "the trail is out of order")
    require(all(each.revision <= revision for each in actions), "the trail is ahead of the log")
