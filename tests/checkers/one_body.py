"""Of clients that run, one at most is in the body of a lock, and none past the time that it was promised.

A client that stands still is in its body for as long as it does, and in the moment in which it goes on it may not have
seen yet how late it is: only a guard at what is written to (`fencing`) helps then. `awake` says that it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from tests.checkers.violation import Violation


class Body(NamedTuple):
    key: str
    client: str
    token: int
    awake: Callable[[], bool]


class OneBody:
    def __init__(self) -> None:
        self._inside: dict[str, dict[Body, None]] = defaultdict(dict)
        self.bodies = 0

    def entered(self, body: Body) -> None:
        self.bodies += 1
        for other in self._inside[body.key]:
            if other.awake():
                both = f"{other.client} under {other.token}, and {body.client} under {body.token}"
                raise Violation("one_body", f"two are in the body of {body.key}: {both}")
        self._inside[body.key][body] = None

    def step(self, body: Body, valid_for_s: float) -> None:
        """Something is done in it; the SDK says that nobody else can have the lock for `valid_for_s`."""
        if valid_for_s <= 0 and body.awake():
            raise Violation("one_body", f"{body.client} goes on in the body of {body.key} past its time")

    def left(self, body: Body) -> None:
        self._inside[body.key].pop(body, None)

    def died(self, client: str) -> None:
        for inside in self._inside.values():
            for body in [each for each in inside if each.client == client]:
                del inside[body]
