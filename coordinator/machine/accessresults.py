"""What the machine answers about access tokens."""

from __future__ import annotations

from coordinator.machine.values import value


@value(frozen=True, slots=True)
class TokenPut:
    """`expires_ms`: on the cluster clock; None: never."""

    token_id: str
    expires_ms: int | None


@value(frozen=True, slots=True)
class TokenRevoked:
    token_id: str


@value(frozen=True, slots=True)
class ActionNoted:
    number: int


AccessResult = TokenPut | TokenRevoked | ActionNoted
