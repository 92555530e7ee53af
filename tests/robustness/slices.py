"""What is done in some seconds, under keys that nobody uses before or after: one slice of a run, checked by itself.

An operation whose outcome nobody was told stays open in its key's history for ever: it may take effect at any later
moment. Each one that is open doubles, at worst, what the search has to look at, so a key with OPEN_MOST of them is
retired: its history is judged as far as it goes, and the slice goes on with a fresh key in its place.

Nobody is told when something ends by itself. So a history has an end of each short lock and lease that may come at any
moment from the one on at which its holder could no longer count on it (I4), and need not come at all.
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
READS = ("read", "check")
SHORT_LOOKED_AT = 48
RESOURCES = 12
"""That each owner of leases has."""
REMEMBERED = 3
"""Lease numbers of one key, the newest: those before the last are over and must stay so."""


End = tuple[str, str, str, int | None]
"""Kind, key, holder, and the number or token."""


class Slice:
    def __init__(self, number: int, locks: int, owners: int, fleeting: int = 0) -> None:
        self.number = number
        self._names = itertools.count()
        self._open: Counter[str] = Counter()
        self.prefix = f"{number}/"
        self.locks = [self.fresh() for _ in range(locks)]
        self.fleeting = [self.fresh() for _ in range(fleeting)]
        """Locks with short times, that some wait for."""
        self.short: deque[tuple[str, int]] = deque(maxlen=SHORT_LOOKED_AT)
        """Keys of short leases and their numbers, the newest."""
        self._ends: dict[End, float] = {}
        """Until when each cannot end."""
        self._given_back: set[End] = set()
        self._counted: Answer | None = None
        self.owners = [Owner(f"{number}.{place}", self) for place in range(owners)]
        self.histories: dict[str, list[Operation]] = {"locks": [], "leases": []}
        self.counts: Counter[str] = Counter()
        self._users = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def fresh(self) -> str:
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
        if answer is not self._counted:
            # What one answer tells of several keys is written down in one go.
            self._counted = answer
            self.counts["reads checked" if operation[2] in READS else "changes checked"] += 1
        self.counts[f"{kind}: {operation[2]} {result[0]}"] += 1

    def left_open(self, kind: str, operation: tuple[str, str, str, tuple[Any, ...]], called_s: float) -> None:
        self.histories[kind].append(Operation(*operation, called_s, FOREVER, UNKNOWN))
        self.counts["left open"] += 1
        key = operation[1]
        self._open[key] += 1
        if self._open[key] == OPEN_MOST:
            self.counts["keys retired"] += 1
            self._retire(key)

    # --- what ends by itself ----------------------------------------------------------------------------------------

    def may_end(self, kind: str, key: str, client: str, number: int | None, from_s: float) -> None:
        """Not before then. `number`: or token; None if it was not told."""
        end = (kind, key, client, number)
        self._ends[end] = max(from_s, self._ends.get(end, 0.0))

    def may_end_early(self, kind: str, key: str, client: str, number: int | None, from_s: float) -> None:
        """From then on, though it was promised for longer: somebody may have ended it."""
        end = (kind, key, client, number)
        self._ends[end] = min(from_s, self._ends.get(end, FOREVER))

    def given_back(self, kind: str, key: str, client: str, number: int) -> None:
        """Then it did not end by itself."""
        self._given_back.add((kind, key, client, number))

    def complete(self) -> dict[str, list[Operation]]:
        """The histories, with all ends that may have come."""
        for end in self._ends.keys() - self._given_back:
            kind, key, client, number = end
            self.histories[kind].append(Operation(client, key, "end", (number,), self._ends[end], FOREVER, UNKNOWN))
        self.counts["short locks and leases"] += len(self._ends)
        return self.histories

    def short_ones(self) -> Iterator[tuple[End, bool]]:
        """All that must be over some time after its last renewal, and whether it was left to end by itself: told to
        have been granted, and not told to be given back."""
        for end in self._ends:
            yield end, end[3] is not None and end not in self._given_back

    def _retire(self, key: str) -> None:
        for keys in (self.locks, self.fleeting):
            if key in keys:
                keys[keys.index(key)] = self.fresh()
        for owner in self.owners:
            owner.retire(key)


class Owner:
    """A client of leases, whom several may act for at the same time, and the resources that it has leases on."""

    def __init__(self, name: str, of: Slice) -> None:
        self.name = name
        self._of = of
        self.resources = [of.fresh() for _ in range(RESOURCES)]
        self.numbers: dict[str, deque[int]] = {}
        """By key, those that were told."""

    def key(self, resource: str) -> str:
        return f"{resource} of {self.name}"

    def retire(self, key: str) -> None:
        for place, resource in enumerate(self.resources):
            if self.key(resource) == key:
                self.resources[place] = self._of.fresh()

    def leased(self, key: str, number: int) -> None:
        known = self.numbers.setdefault(key, deque(maxlen=REMEMBERED))
        if number not in known:
            known.append(number)

    def some_numbers(self, rng: random.Random, most: int) -> list[tuple[str, int]]:
        """Keys, and of each one of its numbers, mostly the newest."""
        keys = rng.sample(sorted(self.numbers), min(most, len(self.numbers)))
        return [(key, self.numbers[key][-1] if rng.random() < 0.8 else rng.choice(self.numbers[key])) for key in keys]
