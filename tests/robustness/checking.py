"""Histories are judged in a process of their own while the run goes on: here the proxies must not wait for it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple

from tests.checkers import linearizable
from tests.checkers.leasemodel import Leases
from tests.checkers.linearizable import FOREVER, UNKNOWN, Model, Operation
from tests.checkers.lockmodel import Locks
from tests.checkers.violation import Violation
from tests.robustness.slices import Slice

MODELS: dict[str, Callable[[], Model]] = {"locks": Locks, "leases": Leases}
WAITING_MOST = 4
"""Slices that wait to be judged; then the run waits, so that memory stays bounded."""
NICENESS = 5
NOBODYS = ("end", "over")
"""What was asked by nobody, or follows from another answer: no operation of a client."""

Row = tuple[str, str, str, tuple[Any, ...], float, float | None, Any]
"""An operation as it travels between processes; None: it never returned."""


class Verdict(NamedTuple):
    decided: int
    """Operations with an answer, in histories that are linearizable."""
    open: int
    seconds: float
    longest: int
    """Operations of the key that has most."""
    violation: str | None


@dataclass
class Totals:
    decided: int = 0
    open: int = 0
    seconds: float = 0.0
    longest: int = 0
    slices: int = 0

    @property
    def microseconds_each(self) -> float:
        return 1e6 * self.seconds / max(1, self.decided)


def judge(histories: dict[str, list[Row]]) -> Verdict:
    began, decided, still_open, longest = time.process_time(), 0, 0, 0
    violation = None
    for kind, rows in histories.items():
        operations = [_operation(row) for row in rows]
        by_key: dict[str, int] = {}
        for operation in operations:
            by_key[operation.key] = by_key.get(operation.key, 0) + 1
        longest = max([longest, *by_key.values()])
        try:
            linearizable.check(operations, MODELS[kind]())
        except Violation as found:
            violation = f"{kind}: {found}"
            break
        told = [operation for operation in operations if operation.verb not in NOBODYS]
        opened = sum(operation.returned == FOREVER for operation in told)
        decided, still_open = decided + len(told) - opened, still_open + opened
    return Verdict(decided, still_open, time.process_time() - began, longest, violation)


def row(operation: Operation) -> Row:
    is_open = operation.returned == FOREVER
    ends = (None, None) if is_open else (operation.returned, operation.result)
    return (operation.client, operation.key, operation.verb, operation.arguments, operation.called, *ends)


def _operation(row: Row) -> Operation:
    client, key, verb, arguments, called, returned, result = row
    ends = (FOREVER, UNKNOWN) if returned is None else (returned, result)
    return Operation(client, key, verb, arguments, called, *ends)


class Checking:
    def __init__(self) -> None:
        # A fresh process: a forked one would keep the sockets open that are closed here.
        context = get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=os.nice, initargs=(NICENESS,))
        self._waiting: list[asyncio.Future[Verdict]] = []
        self.totals = Totals()

    async def hand_over(self, done: Slice) -> None:
        """When nobody uses it any more; returns once few enough wait. Raises what was found in earlier ones."""
        await done.idle.wait()
        histories = {kind: [row(each) for each in history] for kind, history in done.complete().items()}
        done.histories.clear()
        self._waiting.append(asyncio.wrap_future(self._pool.submit(judge, histories)))
        while len(self._waiting) > WAITING_MOST or (self._waiting and self._waiting[0].done()):
            self._count(await self._waiting.pop(0))

    async def finish(self) -> None:
        while self._waiting:
            self._count(await self._waiting.pop(0))

    def _count(self, verdict: Verdict) -> None:
        if verdict.violation is not None:
            raise Violation("linearizable", verdict.violation)
        totals = self.totals
        totals.decided += verdict.decided
        totals.open += verdict.open
        totals.seconds += verdict.seconds
        totals.longest = max(totals.longest, verdict.longest)
        totals.slices += 1

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
