"""A guarded resource accepts tokens in non-decreasing order, and no token has two holders (I1).

What the guards of the SDK let in is told to `accepted`. What may never happen, whatever clocks and pauses do, is that
it is under a token older than one before, or under one token by two clients; and while clocks keep their bound, that
two clients believe at one time to hold a key.
"""

from __future__ import annotations

from collections import defaultdict

from tests.checkers.violation import Violation


class Fencing:
    def __init__(self) -> None:
        self._newest: dict[str, int] = defaultdict(int)
        self._holders: dict[tuple[str, int], str] = {}
        self._believes: dict[str, dict[str, float]] = defaultdict(dict)

    def accepted(self, key: str, token: int, client: str) -> None:
        holder = self._holders.setdefault((key, token), client)
        if holder != client:
            raise Violation("fencing", f"{holder} and {client} both write to {key} under token {token} (I1)")
        if token < self._newest[key]:
            raise Violation(
                "fencing", f"{client} wrote to {key} under {token}, after one under {self._newest[key]} (I1)"
            )
        self._newest[key] = token

    def believe(self, key: str, client: str, now_s: float, until_s: float) -> None:
        """By its own clock the client holds the key until then. Told too late, it believes nothing new."""
        if until_s <= now_s:
            return
        for other, end_s in self._believes[key].items():
            if other != client and end_s > now_s:
                raise Violation("fencing", f"{client} got {key} at {now_s:.3f} s; {other} has it until {end_s:.3f} s")
        self._believes[key][client] = until_s

    def let_go(self, key: str, client: str) -> None:
        self._believes[key].pop(client, None)
