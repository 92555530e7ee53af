"""The keys of all known locks in their order, for whoever lists them: a page costs its own length, not all locks.

Not part of the state: it follows from the locks, and is made anew with a state that is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedList


class LockKeys:
    def __init__(self) -> None:
        self._of: dict[int, SortedList] = {}
        """By namespace, of those that have some."""

    def add(self, namespace: int, key: str) -> None:
        self._of.setdefault(namespace, SortedList()).add(key)

    def remove(self, namespace: int, key: str) -> None:
        keys = self._of[namespace]
        keys.remove(key)
        if not keys:
            del self._of[namespace]

    def fill(self, keys: Iterable[tuple[int, str]]) -> None:
        """Many at once, into an empty one."""
        found: dict[int, list[str]] = {}
        for namespace, key in keys:
            found.setdefault(namespace, []).append(key)
        self._of = {namespace: SortedList(texts) for namespace, texts in found.items()}

    def following(self, namespace: int, prefix: str, after: str) -> Iterator[str]:
        """Those that begin with `prefix` and come after `after`."""
        keys = self._of.get(namespace, ())
        if not keys:
            return
        start = keys.bisect_left(prefix) if prefix > after else keys.bisect_right(after)
        for key in keys.islice(start):
            if not key.startswith(prefix):
                return
            yield key

    def items(self) -> list[tuple[int, str]]:
        return [(namespace, key) for namespace in sorted(self._of) for key in self._of[namespace]]
