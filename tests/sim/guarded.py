"""What locks protect in the simulation: objects of a store, behind the SDK's own guard; what got in is checked (I1)."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from coordinator.client.errors import StaleToken
from coordinator.client.guards import ObjectGuard
from tests.checkers.fencing import Fencing


class Guarded:
    def __init__(self, fencing: Fencing | None = None) -> None:
        self._fencing = fencing or Fencing()
        self._stored: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        """Of each key the token it was written under, and its version."""

    def write(self, key: str, token: int, client: str) -> bool:
        """Whether the guard let it in."""
        try:
            ObjectGuard(key, lambda: self._stored[key], partial(self._store, key)).write(b"", token)
        except StaleToken:
            return False
        self._fencing.accepted(key, token, client)
        return True

    def _store(self, key: str, content: bytes, token: int, version: int) -> bool:
        if self._stored[key][1] != version:
            return False
        self._stored[key] = token, version + 1
        return True
