"""Who may do what: access tokens in the replicated state, each with an identity and scopes, known by a digest only.

Asking whether a token allows something is pure and quick: it is done for every request, before anything else of it is
looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.machine.accesscommands import Right, Scope
from coordinator.machine.limits import MAX_ACCESS_TOKENS
from coordinator.machine.trail import Trail

EVERYWHERE = "*"
RIGHTS: tuple[Right, ...] = ("read", "write", "admin")
_RANK = {right: rank for rank, right in enumerate(RIGHTS)}


@dataclass(frozen=True, slots=True)
class AccessToken:
    """`digest`: SHA-256 of the token. `before`: that of the one it replaced, taken until `before_until_ms`."""

    token_id: str
    digest: bytes
    identity: str
    scopes: tuple[Scope, ...]
    bound: bool
    created_ms: int
    expires_ms: int | None = None
    rotated_ms: int | None = None
    before: bytes = b""
    before_until_ms: int = 0

    def alive(self, now_ms: int) -> bool:
        return self.expires_ms is None or now_ms < self.expires_ms

    def digests(self, now_ms: int) -> tuple[bytes, ...]:
        """Any of which proves it."""
        return (self.digest, self.before) if now_ms < self.before_until_ms else (self.digest,)

    # --- what it allows -------------------------------------------------------------------------------------------

    def prefixes(self, right: Right, namespace: str) -> list[str]:
        """What the keys begin with that it has the right on; "" is all of them."""
        rank = _RANK[right]
        return [
            scope.prefix
            for scope in self.scopes
            if scope.namespace in (namespace, EVERYWHERE) and _RANK[scope.right] >= rank
        ]

    def reaches(self, right: Right, namespace: str) -> bool:
        """Whether it has the right there at all, on whatever keys."""
        return bool(self.prefixes(right, namespace))

    def covers(self, right: Right, namespace: str, key: str) -> bool:
        return any(map(key.startswith, self.prefixes(right, namespace)))

    def whole(self, right: Right, namespace: str) -> bool:
        """Whether it has the right there on every key."""
        return "" in self.prefixes(right, namespace)

    def owns(self, client_id: str) -> bool:
        """Whether it may act as that client."""
        return not self.bound or self.names(client_id)

    def names(self, client_id: str) -> bool:
        return client_id == self.identity or client_id.startswith(self.identity + "/")


class Access:
    def __init__(self) -> None:
        self.tokens: dict[str, AccessToken] = {}
        """In the order they were created."""
        self.trail = Trail()
        # Of this node alone: no part of the replicated state.
        self.changed = 0
        """The last revision that changed a token: whoever is being served by one looks again."""

    def put(self, token: AccessToken, revision: int) -> None:
        self.tokens[token.token_id] = token
        self.changed = revision

    def revoke(self, token_id: str, revision: int) -> None:
        del self.tokens[token_id]
        self.changed = revision

    def make_room(self, now_ms: int) -> bool:
        """Whether there is room for one more; tokens that have expired make it."""
        if len(self.tokens) >= MAX_ACCESS_TOKENS:
            self.tokens = {name: token for name, token in self.tokens.items() if token.alive(now_ms)}
        return len(self.tokens) < MAX_ACCESS_TOKENS


def rotated(token: AccessToken, digest: bytes, overlap_ms: int, now_ms: int) -> AccessToken:
    kept = (token.digest, now_ms + overlap_ms) if overlap_ms else (b"", 0)
    return replace(token, digest=digest, rotated_ms=now_ms, before=kept[0], before_until_ms=kept[1])
