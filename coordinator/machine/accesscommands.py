"""What the machine can be told about access tokens, and about what was done beside it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from coordinator.machine.values import value

Right = Literal["read", "write", "admin"]
"""Each has those before it."""


class Scope(NamedTuple):
    """What a token allows: `right` in a namespace, on keys that begin with `prefix`. Namespace "*": everywhere."""

    namespace: str
    right: Right
    prefix: str = ""


@value(frozen=True, slots=True)
class CreateToken:
    """`digest`: of the whole token. The token itself is never in the log.

    `bound`: client ids that come with it must be `identity`, or begin with it and a slash.
    """

    token_id: str
    digest: bytes
    identity: str
    scopes: tuple[Scope, ...]
    bound: bool = False
    ttl_ms: int | None = None


@value(frozen=True, slots=True)
class RotateToken:
    """Another secret for a token. The one before is taken for `overlap_ms` more."""

    token_id: str
    digest: bytes
    overlap_ms: int = 0


@value(frozen=True, slots=True)
class RevokeToken:
    token_id: str


@value(frozen=True, slots=True)
class NoteAction:
    """For the audit trail: something that an administrator does and that is no command of the machine."""

    action: str
    subject: str
    outcome: str


AccessCommand = CreateToken | RotateToken | RevokeToken | NoteAction
