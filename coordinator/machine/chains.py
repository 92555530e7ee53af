"""Lists of rows, linked in the rows themselves: to the end, out of the middle, in order, each at a constant cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Chain:
    """By slots plus one."""

    first: int = 0
    last: int = 0
    count: int = 0


class Linked(Protocol):
    """A table whose rows can be in one list at a time."""

    previous: memoryview
    next: memoryview

    def touch(self, slot: int) -> None: ...


def push(table: Linked, chain: Chain, slot: int) -> None:
    """To the end."""
    table.touch(slot)
    table.previous[slot], table.next[slot] = chain.last, 0
    if chain.last:
        table.touch(chain.last - 1)
        table.next[chain.last - 1] = slot + 1
    else:
        chain.first = slot + 1
    chain.last = slot + 1
    chain.count += 1


def take_out(table: Linked, chain: Chain, slot: int) -> None:
    before, after = table.previous[slot], table.next[slot]
    if before:
        table.touch(before - 1)
        table.next[before - 1] = after
    else:
        chain.first = after
    if after:
        table.touch(after - 1)
        table.previous[after - 1] = before
    else:
        chain.last = before
    table.touch(slot)
    table.next[slot] = table.previous[slot] = 0
    chain.count -= 1


def cut_head(table: Linked, chain: Chain, slots: list[int]) -> None:
    """Takes out `slots`, which are its first ones in order. Their own links are the caller's to clear."""
    after = table.next[slots[-1]]
    chain.first = after
    if after:
        table.touch(after - 1)
        table.previous[after - 1] = 0
    else:
        chain.last = 0
    chain.count -= len(slots)


def members(table: Linked, chain: Chain) -> Iterator[int]:
    at = chain.first
    while at:
        yield at - 1
        at = table.next[at - 1]
