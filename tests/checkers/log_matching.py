"""Log matching and state machine safety: one (index, term) is one command after one prefix, one index one entry.

Every entry that is applied anywhere is recorded once for the whole cluster; every log is compared with all that was
ever seen in any log, entry by entry together with the term before it, from which equal prefixes follow by induction.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.journal import Journal
from tests.checkers.violation import Violation


class LogMatching:
    def __init__(self) -> None:
        self.committed: dict[int, tuple[int, bytes | None]] = {}
        """What was applied at each index: (term, payload), None for a no-op."""
        self.last_committed = 0
        self._seen: dict[tuple[int, int], tuple[bytes, int | None]] = {}

    def applied(self, name: str, index: int, term: int, payload: bytes | None) -> bool:
        """True if nobody applied this index before."""
        entry = (term, payload)
        known = self.committed.setdefault(index, entry)
        if known is not entry and known != entry:
            raise Violation("log_matching", f"{name} applies {entry} at {index}, another node applied {known}")
        self.last_committed = max(self.last_committed, index)
        return known is entry

    def check_log(self, name: str, journal: Journal) -> None:
        before: int | None = None
        for command, index, term in journal[0:]:
            known = self._seen.get((index, term))
            if known is None:
                self._seen[index, term] = (command, before)
            elif known[0] != command or (None not in (before, known[1]) and known[1] != before):
                raise Violation("log_matching", f"{name} has ({index}, term {term}) with another content or prefix")
            before = term

    def check_leader(self, name: str, journal: Journal) -> None:
        """A leader's log has every committed entry, or a snapshot of it."""
        if journal.last_index < self.last_committed:
            raise Violation(
                "leader_completeness",
                f"{name} leads with a log up to {journal.last_index}; {self.last_committed} is committed",
            )
        for index in range(journal.first_index, journal.last_index + 1):
            term, known = journal.term_at(index), self.committed.get(index)
            if known is not None and known[0] != term:
                raise Violation("leader_completeness", f"{name} leads with another entry at {index} than committed")

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """The committed payloads in order; every index up to the last one must be known."""
        for index in range(2, self.last_committed + 1):
            if index not in self.committed:
                raise Violation("log_matching", f"entry {index} was never applied anywhere, later ones were")
            payload = self.committed[index][1]
            if payload is not None:
                yield index, payload
