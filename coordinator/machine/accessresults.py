"""What the machine answers about access tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenPut:
    """`expires_ms`: on the cluster clock; None: never."""

    token_id: str
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class TokenRevoked:
    token_id: str


@dataclass(frozen=True, slots=True)
class ActionNoted:
    number: int


AccessResult = TokenPut | TokenRevoked | ActionNoted
