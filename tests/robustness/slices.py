"""What is done in some seconds, under keys that nobody uses before or after: one slice of a run, checked by itself.

An operation whose outcome nobody was told stays open in its key's history for ever: it may take effect at any later
moment. Each one that is open doubles, at worst, what the search has to look at, so a key with OPEN_MOST of them is
retired: its history is judged as far as it goes, and the slice goes on with a fresh key in its place.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.checkers.linearizable import FOREVER, UNKNOWN, Operation
from tests.robustness.asking import Answer

OPEN_MOST = 2
RESOURCES = 12
"""That each owner of leases has."""
REMEMBERED = 3
"""Lease numbers of one key, the newest: those before the last are over and must stay so."""


class Slice:
    def __init__(self, number: int, locks: int, owners: int) -> None:
        self.number = number
        self._names = itertools.count()
        self._open: Counter[str] = Counter()
        self.prefix = f"{number}/"
        self.locks = [self._fresh() for _ in range(locks)]
        self.owners = [Owner(f"{number}.{place}", self) for place in range(owners)]
        self.histories: dict[str, list[Operation]] = {"locks": [], "leases": []}
        self.counts: Counter[str] = Counter()
        self._users = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def _fresh(self) -> str:
        return f"{self.prefix}{next(self._names)}"

    @contextmanager
    def used(self) -> Iterator[Slice]:
        """Somebody does something with its keys; without users its histories are complete."""
        self._users += 1
        self.idle.clear()
        try:
            yield self
        finally:
            self._users -= 1
            if not self._users:
                self.idle.set()

    # --- what was done ----------------------------------------------------------------------------------------------

    def told(self, kind: str, operation: tuple[str, str, str, tuple[Any, ...]], answer: Answer, result: Any) -> None:
        """`operation`: who, the key, the verb and its arguments. What was read may be as old as the answer says."""
        called_s = answer.sent_s
        if answer.bounded:
            called_s -= answer.staleness_ms / 1000
            self.counts["bounded reads"] += 1
        self.histories[kind].append(Operation(*operation, called_s, answer.ended_s, result))
        self.counts[f"{kind}: {operation[2]} {result[0]}"] += 1

    def left_open(self, kind: str, operation: tuple[str, str, str, tuple[Any, ...]], called_s: float) -> None:
        self.histories[kind].append(Operation(*operation, called_s, FOREVER, UNKNOWN))
        self.counts["left open"] += 1
        key = operation[1]
        self._open[key] += 1
        if self._open[key] == OPEN_MOST:
            self.counts["keys retired"] += 1
            self._retire(key)

    def _retire(self, key: str) -> None:
        if key in self.locks:
            self.locks[self.locks.index(key)] = self._fresh()
        for owner in self.owners:
            owner.retire(key)


class Owner:
    """A client of leases, whom several may act for at the same time, and the resources that it has leases on."""

    def __init__(self, name: str, of: Slice) -> None:
        self.name = name
        self._of = of
        self.resources = [of._fresh() for _ in range(RESOURCES)]
        self.numbers: dict[str, deque[int]] = {}
        """By key, those that were told."""

    def key(self, resource: str) -> str:
        return f"{resource} of {self.name}"

    def retire(self, key: str) -> None:
        for place, resource in enumerate(self.resources):
            if self.key(resource) == key:
                self.resources[place] = self._of._fresh()

    def leased(self, key: str, number: int) -> None:
        known = self.numbers.setdefault(key, deque(maxlen=REMEMBERED))
        if number not in known:
            known.append(number)

    def some_numbers(self, rng: random.Random, most: int) -> list[tuple[str, int]]:
        """Keys, and of each one of its numbers, mostly the newest."""
        keys = rng.sample(sorted(self.numbers), min(most, len(self.numbers)))
        return [(key, self.numbers[key][-1] if rng.random() < 0.8 else rng.choice(self.numbers[key])) for key in keys]
