"""Leases, as `linearizable` asks of a model. One key is one client's lease on one resource.

Answers: acquire -> ("leased", number); renew, of a number -> ("ok",) or ("gone",); release -> ("ok",) or ("gone",);
read, of a number -> ("active",) or ("gone",). `end`, of a number: the lease is over by itself at that moment; open from
the moment on at which it may be so, if nobody knows when, and of None if its number was never told. `over`, of a
number: it is not active, whether or not it was before. A session is a lease of its client on itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.checkers.linearizable import IMPOSSIBLE, UNKNOWN, Operation


class Lease(NamedTuple):
    """The lease that is active, 0 if none is, None if its number was never told; and those that were."""

    number: int | None = 0
    ended: frozenset[int] = frozenset()


class Leases:
    def first(self) -> Lease:
        return Lease()

    def after(self, state: Lease, operation: Operation) -> object:
        match operation.verb, operation.result:
            case "acquire", _:
                return self._acquired(state, operation)
            case "release", ("gone",):
                return state if state.number == 0 else IMPOSSIBLE
            case "release", _:
                return self._ended(state) if state.number != 0 else IMPOSSIBLE
        (number,) = operation.arguments
        match operation.verb, operation.result:
            case "end", _ if number is None:
                return self._ended(state) if state.number is None else IMPOSSIBLE
            case "over", _:
                return self._ended(state, number) if state.number == number else state
            case "end", _:
                known = state.number == number or (state.number is None and number not in state.ended)
                return self._ended(state, number) if known else IMPOSSIBLE
            case _, ("gone",):
                return state if state.number != number else IMPOSSIBLE
            case "renew" | "read", _:
                known = state.number == number or (state.number is None and number not in state.ended)
                return state._replace(number=number) if known else IMPOSSIBLE
        raise ValueError(f"unknown operation {operation}")

    @staticmethod
    def _acquired(state: Lease, operation: Operation) -> object:
        if operation.result is UNKNOWN:
            return state if state.number != 0 else state._replace(number=None)
        number = operation.result[1]
        known = state.number == number or (state.number in (0, None) and number not in state.ended)
        return state._replace(number=number) if known else IMPOSSIBLE

    @staticmethod
    def _ended(state: Lease, number: int | None = None) -> Lease:
        over = number or state.number
        return Lease(0, state.ended | {over} if over else state.ended)

    def only_tells(self, operation: Operation) -> bool:
        """A renewal or a read of a lease whose number was not known yet makes it known, which is a change."""
        return operation.verb in ("renew", "read") or operation.result == ("gone",)

    def relevant(self, operations: Sequence[Operation]) -> list[Operation]:
        """Reads and renewals that were not answered change nothing."""
        return [each for each in operations if each.result is not UNKNOWN or each.verb in ("acquire", "release", "end")]
