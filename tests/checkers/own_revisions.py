"""Per session the revision never goes backwards and covers its own writes (I11)."""

from __future__ import annotations

from collections import defaultdict

from tests.checkers.violation import Violation


class OwnRevisions:
    def __init__(self) -> None:
        self._told: dict[str, int] = defaultdict(int)
        self.checks = 0

    def newest(self, client: str) -> int:
        return self._told[client]

    def told(self, client: str, what: str, revision: int) -> None:
        """An answer to one who asks one thing after the other: a write, or a read that is not told to be stale."""
        self.checks += 1
        if revision < self._told[client]:
            before = f"after {self._told[client]} it was told {revision} ({what})"
            raise Violation("own_revisions", f"{client} went back in time: {before} (I11)")
        self._told[client] = revision
