"""Turns of those who want the same lock in the name of one client's sessions.

A session's locks are held by its client's own name, under which the cluster lets it enter again. So whoever of this
client comes second waits here, first in, first out, and asks the cluster when it is its turn. Readers go together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

Waiting = tuple[asyncio.Future[None], bool]


@dataclass(slots=True)
class _Key:
    inside: int = 0
    shared: bool = False
    waiting: deque[Waiting] = field(default_factory=deque)


class Turn:
    """One's turn, until it is ended."""

    def __init__(self, turns: Turns, key: str) -> None:
        self._turns: Turns | None = turns
        self._key = key

    def end(self) -> None:
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.leave(self._key)


class Turns:
    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}

    def waiting(self, key: str) -> int:
        return len(self._keys[key].waiting) if key in self._keys else 0

    async def take(self, key: str, *, shared: bool, wait_s: float | None) -> Turn:
        """TimeoutError: it was not its turn within `wait_s`."""
        at = self._keys.setdefault(key, _Key())
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (called, shared)
        at.waiting.append(waiting)
        self._call_next(key, at)
        try:
            if not called.done():
                async with asyncio.timeout(wait_s):
                    await called
        except BaseException:
            if called.done() and not called.cancelled():
                at.inside -= 1
            elif waiting in at.waiting:
                at.waiting.remove(waiting)
            self._call_next(key, at)
            raise
        return Turn(self, key)

    def leave(self, key: str) -> None:
        at = self._keys[key]
        at.inside -= 1
        self._call_next(key, at)

    def _call_next(self, key: str, at: _Key) -> None:
        while at.waiting:
            called, shared = at.waiting[0]
            if called.cancelled():
                at.waiting.popleft()
                continue
            if at.inside and not (shared and at.shared):
                break
            at.waiting.popleft()
            at.inside, at.shared = at.inside + 1, shared
            called.set_result(None)
        # One that gave up comes here late: the key was empty before it ran, and others may have begun it anew.
        if not at.inside and not at.waiting and self._keys.get(key) is at:
            del self._keys[key]
