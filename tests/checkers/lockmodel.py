"""Locks with fencing tokens, as `linearizable` asks of a model. One key, held exclusively, not entered twice.

Answers: acquire -> ("granted", token), the token None if it was not told, or ("busy",); renew and release, of a token
-> ("ok",) or ("not_holder",); read -> ("held", client, token) or ("free",); check, of a token -> ("current",) or
("not_current",). ("free", clients): or it is one of those who holds it.

`end`, of a token: the hold is over by itself at that moment, by its time or with its session. Whoever records a history
knows that from the log; or does not know when, and leaves it open from the moment on at which it may be so: then the
client is the holder, and the token None if it was never told. `over`, of a token: it does not hold, whether or not it
did before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.checkers.linearizable import IMPOSSIBLE, UNKNOWN, Operation


class Hold(NamedTuple):
    """Who holds the key, and the newest token of all. Of a grant that nobody was told of, the token is not known."""

    client: str | None = None
    token: int | None = None
    newest: int = 0


class Locks:
    def first(self) -> Hold:
        return Hold()

    def after(self, state: Hold, operation: Operation) -> object:
        if operation.verb == "acquire":
            return self._acquired(state, operation)
        if operation.verb == "read":
            return self._read(state, operation)
        if operation.verb == "end":
            return self._ended(state, operation)
        holds = state.client is not None and state.token in (None, operation.arguments[0])
        match operation.verb, operation.result:
            case "over", _:
                return self._over(state, operation)
            case _, ("not_holder",):
                return IMPOSSIBLE if holds and state.token is not None else state
            case "check", ("not_current",):
                return IMPOSSIBLE if holds and state.token is not None else state
            case "renew" | "check", _:
                return state if holds else IMPOSSIBLE
            case "release", _:
                return state._replace(client=None, token=None) if holds else IMPOSSIBLE
        raise ValueError(f"unknown operation {operation}")

    @staticmethod
    def _acquired(state: Hold, operation: Operation) -> object:
        if operation.result == ("busy",):
            return state if state.client is not None else IMPOSSIBLE
        if state.client is not None:
            return IMPOSSIBLE
        token = None if operation.result is UNKNOWN else operation.result[1]
        if token is None:
            return Hold(operation.client, None, state.newest)
        return Hold(operation.client, token, token) if token > state.newest else IMPOSSIBLE

    @staticmethod
    def _ended(state: Hold, operation: Operation) -> object:
        (token,) = operation.arguments
        known = state.client is not None and (token is None or state.token in (None, token))
        return state._replace(client=None, token=None) if known and _fits(state, operation) else IMPOSSIBLE

    @staticmethod
    def _over(state: Hold, operation: Operation) -> object:
        """Of a hold that was told: one whose token nobody was told is another's, unless it is of the same client."""
        held = state.token == operation.arguments[0] or (state.token is None and state.client == operation.client)
        return state._replace(client=None, token=None) if held else state

    @staticmethod
    def _read(state: Hold, operation: Operation) -> object:
        if operation.result[0] == "free":
            lapsed = operation.result[1:]
            return state if state.client is None or (lapsed and state.client in lapsed[0]) else IMPOSSIBLE
        _, client, token = operation.result
        if state.client != client or (state.token is None and token <= state.newest):
            return IMPOSSIBLE
        return Hold(client, token, token) if state.token in (None, token) else IMPOSSIBLE

    def only_tells(self, operation: Operation) -> bool:
        if operation.verb in ("acquire", "release"):
            return operation.result in (("busy",), ("not_holder",))
        return operation.verb not in ("end", "over")

    def relevant(self, operations: Sequence[Operation]) -> list[Operation]:
        """Reads and renewals that were not answered change nothing."""
        return [each for each in operations if each.result is not UNKNOWN or each.verb in ("acquire", "release", "end")]


def _fits(state: Hold, operation: Operation) -> bool:
    return not operation.client or operation.client == state.client
