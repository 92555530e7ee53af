"""`python -m tests.chaos.clients ENDPOINTS DIRECTORY NAME KIND…`: so many SDK clients in one process, until SIGTERM.

SIGUSR1 has them begin nothing new.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from coordinator.client import Client
from tests.chaos.clients.copies import copier, undertaker
from tests.chaos.clients.facts import bookkeeper, forsaker, knocker, line
from tests.chaos.clients.graph import cleaner, owner
from tests.chaos.clients.histories import historian
from tests.chaos.clients.leases import keeper
from tests.chaos.clients.locks import sleeper, writer
from tests.chaos.clients.tasks import doer, feeder
from tests.chaos.clients.watching import watcher
from tests.chaos.clients.work import Work
from tests.chaos.records import Recorder
from tests.chaos.store import Store

KINDS: dict[str, Callable[[Work], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        writer, sleeper, keeper, owner, cleaner, feeder, doer, watcher, historian, bookkeeper, forsaker, line, knocker,
        undertaker, copier,
    )
}  # fmt: skip


class Warnings(logging.Handler):
    """What the SDK says of calls that it makes by itself, and repeats."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.WARNING)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        self._recorder.note("warned", text=record.getMessage())


async def main(endpoints: str, directory: Path, name: str, kinds: list[str]) -> None:
    settle, stop, store = asyncio.Event(), asyncio.Event(), Store(directory / "store.db")
    loop = asyncio.get_running_loop()

    def end() -> None:
        settle.set()
        stop.set()

    loop.add_signal_handler(signal.SIGUSR1, settle.set)
    loop.add_signal_handler(signal.SIGTERM, end)
    logging.getLogger("holdfast.client").addHandler(Warnings(Recorder(directory, name)))

    async def one(kind: str, who: str) -> None:
        async with Client(endpoints, client_id=who) as client:
            await KINDS[kind](Work(who, client, Recorder(directory, who), store, settle, stop, directory))

    async with asyncio.TaskGroup() as group:
        for place, kind in enumerate(kinds):
            group.create_task(one(kind, f"{name}-{kind}-{place}"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
