"""What connections have in memory that no body counts: bytes that came before their turn, and answers not yet taken."""

from __future__ import annotations

from collections import Counter, deque
from typing import Protocol

from aiohttp import web

from coordinator.clientlimits import EARLY_BYTES


class Holder(Protocol):
    @property
    def place(self) -> str:
        """Where its client is (`addresses.place_of`)."""

    def cut_off(self) -> None:
        """It is too much: this connection ends now, whatever it still had to be sent."""


class Early:
    """Of all connections together. A request that waits for a lock waits for minutes, and what is sent behind it is in
    memory all that time; no body counts it, because nobody has looked at it yet."""

    def __init__(self, most: int = EARLY_BYTES) -> None:
        self._most = most
        self._of: dict[str, dict[Holder, int]] = {}
        """By place. Who was noted last is the last of its place, and that the last of all."""
        self._sums: Counter[str] = Counter()
        self.held = 0

    def note(self, connection: Holder, size: int) -> None:
        """It has so much of it now. If that makes it too much, those go that have most of the place that has most: or
        whoever fills it, with little on each of many connections, would have everybody else cut off that sends a
        request in two pieces. Among equals it is the last one."""
        own = self._of.pop(connection.place, {})
        self._count(connection.place, size - own.pop(connection, 0))
        if size:
            own[connection] = size
        if own:
            self._of[connection.place] = own
        while self.held > self._most:
            self._cut_off()

    def _count(self, place: str, more: int) -> None:
        self.held += more
        self._sums[place] += more
        if not self._sums[place]:
            del self._sums[place]

    def _cut_off(self) -> None:
        place = max(reversed(self._of), key=self._sums.__getitem__)
        own = self._of[place]
        greediest = max(reversed(own), key=own.__getitem__)
        self._count(place, -own.pop(greediest))
        if not own:
            del self._of[place]
        greediest.cut_off()


class Passed:
    """Of one connection, what came before its turn and is aiohttp's already. It stays until the last request that came
    with it is answered: where among them the bytes are, aiohttp does not tell."""

    def __init__(self) -> None:
        self._of: deque[int] = deque()
        """By request: the bytes that are done with when it is answered."""
        self._rest = 0
        """Those of a request whose head is not complete yet."""

    @property
    def size(self) -> int:
        return sum(self._of) + self._rest

    def add(self, size: int, requests: int) -> None:
        self._rest += size
        self._of.extend([0] * requests)
        if self._of:
            self._of[-1] += self._rest
            self._rest = 0

    def answered(self) -> None:
        if self._of:
            self._of.popleft()


EARLY = web.AppKey("early", Early)
UNTAKEN = web.AppKey("untaken", Early)
"""The same of answers: what a client does not take of one is in memory until it is cut off for that."""
