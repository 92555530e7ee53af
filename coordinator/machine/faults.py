"""A broken invariant is a bug: it stops the node loudly instead of letting two nodes diverge (DESIGN §5)."""

from __future__ import annotations


class InvariantBroken(Exception):
    """Something that cannot happen did. Never an answer to a client."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise InvariantBroken(what)
