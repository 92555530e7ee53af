"""Overload is refused before its deadline (I18): who asks a node that runs is answered, with a result or a refusal.

A node has a request for as long as the request allows and no longer. A client that hears nothing by then, though its
connection stands and nothing was done to the process, was neither served nor refused: it waits in some queue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tests.checkers.violation import Violation

Node = TypeVar("Node", bound=Hashable)


class RefusedInTime(Generic[Node]):
    def __init__(
        self,
        allowed_s: float,
        disturbed: Callable[[Node, float], bool],
        grace_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`disturbed`: whether the process was killed, started or stopped since that moment: then it owes nothing.
        `grace_s`: what the machine may add now, because of all that it has to do."""
        self._allowed_s, self._disturbed, self._grace_s = allowed_s, disturbed, grace_s
        self.slowest_s = 0.0
        """Of a node that was left alone. A figure: what was once forgiven is not forgiven for that."""

    def ended(self, node: Node, sent_s: float, ended_s: float) -> None:
        """A request came to an end, whichever: an answer, or the end of the client's patience."""
        took_s = ended_s - sent_s
        if self._disturbed(node, sent_s):
            return
        self.slowest_s = max(self.slowest_s, took_s)
        if took_s >= self._allowed_s + self._grace_s():
            raise Violation(
                "refused_in_time", f"{node} neither answered nor refused for {took_s:.1f} s what was sent to it (I18)"
            )
