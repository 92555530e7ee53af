"""Who is inside of an object that several tasks, or threads, may enter at once, and with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from coordinator.client.errors import Invalid

T = TypeVar("T")


class Entries(Generic[T]):
    """What each entered last it leaves first. `who`: the task or thread that asks.

    Each changes only what is its own, so threads need no lock. Ctrl-C may come after any call, also of a list's method:
    so each change is one step, and nobody is ever inside with nothing.
    """

    def __init__(self, who: Callable[[], object]) -> None:
        self._who = who
        self._inside: dict[object, list[T]] = {}

    def put(self, entry: T) -> None:
        who = self._who()
        self._inside[who] = [*self._inside.get(who, ()), entry]

    def last(self) -> T:
        """What is to be left next."""
        return self._inside[self._whose()][-1]

    def take(self) -> T:
        who = self._whose()
        entries = self._inside[who]
        entry = entries[-1]
        if len(entries) == 1:
            del self._inside[who]
        else:
            entries.pop()
        return entry

    def _whose(self) -> object:
        who = self._who()
        if who not in self._inside:
            # Entered by one and left by another, as an exit stack may do: no doubt which, if there is only one.
            others = list(self._inside)
            if len(others) != 1:
                raise Invalid("this block was not entered by whoever leaves it: enter and leave it in one task")
            (who,) = others
        return who
