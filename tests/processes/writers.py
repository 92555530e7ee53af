"""Write load against a fleet: each writer appends numbered values to one register and notes what was acknowledged."""

from __future__ import annotations

import asyncio
import random

from tests.processes.fleet import Fleet, Unreachable
from tests.reference.register import command


class Writer:
    """Appends to one key, through any node, never twice the same value."""

    def __init__(self, fleet: Fleet, key: str, seed: int) -> None:
        self._fleet = fleet
        self.key = key
        self._random = random.Random(seed)
        self._value = 0
        self.ending = False
        self.acknowledged: list[int] = []
        self.denied: set[int] = set()
        """Values that the cluster said it never took."""

    async def run(self) -> None:
        while not self.ending:
            self._value += 1
            client = self._fleet.clients[self._random.choice(self._fleet.names)]
            try:
                answer = await client.call("propose", command("append", self.key, self._value), 2.0, deadline=3.0)
            except Unreachable:
                await asyncio.sleep(0.02)
                continue
            if answer[0] == "committed":
                self.acknowledged.append(self._value)
            elif answer[0] == "denied":
                self.denied.add(self._value)

    async def check(self, node: str) -> None:
        """Everything acknowledged is there, once and in order; nothing denied is."""
        # Before the read: what is acknowledged while it is on its way need not be in it.
        acknowledged = set(self.acknowledged)
        answer = await self._fleet.clients[node].call("read", self.key, 5.0)
        if answer[0] != "ok":
            raise AssertionError(f"read on {node} was refused: {answer}")
        stored = answer[1] or []
        missing = acknowledged - set(stored)
        if missing:
            raise AssertionError(f"{len(missing)} acknowledged writes of {self.key} are gone: {sorted(missing)[:5]}")
        if len(stored) != len(set(stored)):
            raise AssertionError(f"{self.key} has values twice")
        # One whose answer never came may be applied late; the acknowledged ones came one after the other.
        in_order = [value for value in stored if value in acknowledged]
        if in_order != sorted(in_order):
            raise AssertionError(f"{self.key} has acknowledged values out of order")
        if self.denied & set(stored):
            raise AssertionError(f"{self.key} has values that were denied: {sorted(self.denied & set(stored))[:5]}")


class Load:
    """A number of writers at once."""

    def __init__(self, fleet: Fleet, writers: int, seed: int) -> None:
        self.writers = [Writer(fleet, f"w{number}", seed * 1000 + number) for number in range(writers)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(writer.run()) for writer in self.writers]

    async def finish(self) -> None:
        """Each writer ends with the answer to what it has sent: nothing is on its way afterwards."""
        for writer in self.writers:
            writer.ending = True
        await asyncio.gather(*self._tasks)
        self._tasks = []

    async def stop(self) -> None:
        """At once, whatever is on its way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def acknowledged(self) -> int:
        return sum(len(writer.acknowledged) for writer in self.writers)

    async def check(self, node: str) -> None:
        for writer in self.writers:
            await writer.check(node)
