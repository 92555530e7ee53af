"""What the commands of access tokens are called in the log, and what their fields must be."""

from __future__ import annotations

from typing import Any

from coordinator.machine import accesscommands as a
from coordinator.machine.access import RIGHTS
from coordinator.machine.checks import Check, a_flag, integer, optional, text
from coordinator.machine.limits import (
    ACCESS_DIGEST_BYTES,
    MAX_ACTION_CHARACTERS,
    MAX_IDENTITY_CHARACTERS,
    MAX_LIFETIME_MS,
    MAX_NAME_CHARACTERS,
    MAX_OVERLAP_MS,
    MAX_SCOPES,
    MAX_TOKEN_ID_CHARACTERS,
)
from coordinator.machine.verbs import Verbs

_IDENTITY_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@:+-")


def a_token_id(value: Any) -> str | None:
    fits = type(value) is str and value.isascii() and value.isalnum() and len(value) <= MAX_TOKEN_ID_CHARACTERS
    return None if fits else f"1 to {MAX_TOKEN_ID_CHARACTERS} letters and digits"


def an_identity(value: Any) -> str | None:
    """No slash: it parts an identity from what its clients add, so none begins like another's clients."""
    fits = type(value) is str and 0 < len(value) <= MAX_IDENTITY_CHARACTERS and _IDENTITY_CHARACTERS.issuperset(value)
    return None if fits else f"1 to {MAX_IDENTITY_CHARACTERS} letters, digits and . _ @ : + -"


def _a_digest(value: Any) -> str | None:
    fits = type(value) is bytes and len(value) == ACCESS_DIGEST_BYTES
    return None if fits else f"{ACCESS_DIGEST_BYTES} bytes"


def _a_scope(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != len(a.Scope._fields):
        return False
    namespace, right, prefix = value
    named = type(namespace) is str and 0 < len(namespace) <= MAX_NAME_CHARACTERS
    return named and right in RIGHTS and type(prefix) is str and len(prefix) <= MAX_NAME_CHARACTERS


def _scopes(value: Any) -> str | None:
    fits = type(value) is tuple and 0 < len(value) <= MAX_SCOPES and all(map(_a_scope, value))
    return None if fits else f"1 to {MAX_SCOPES} of namespace, right and prefix"


_noted = text(MAX_ACTION_CHARACTERS)
_subject: Check = text(MAX_NAME_CHARACTERS)

ACCESS_VERBS: Verbs = {
    "token.create": (
        a.CreateToken,
        (a_token_id, _a_digest, an_identity, _scopes, a_flag, optional(integer(1, MAX_LIFETIME_MS))),
    ),
    "token.rotate": (a.RotateToken, (a_token_id, _a_digest, integer(0, MAX_OVERLAP_MS))),
    "token.revoke": (a.RevokeToken, (a_token_id,)),
    "action.note": (a.NoteAction, (_noted, _subject, _noted)),
}
