"""What stands when something stands that should go on all the time: told while it does, as later nothing is to be seen.

It fails no test: whoever waits for it says what is missing. This says where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import math
from collections.abc import AsyncIterator, Callable

from tests.client.nodes import Nodes
from tests.waiting import until

STILL_S = 9.0
"""Fifty clients renew several times a second: longer than any election on a machine that is busy."""
FRAMES = 6


@contextlib.asynccontextmanager
async def told_of(
    count: Callable[[], int], what: str, cluster: Nodes, still_s: float = STILL_S, stderr: int = 2
) -> AsyncIterator[None]:
    """Prints the nodes and all tasks when `count` has not grown for so long, each time; and what the event loop does
    when it is that which stands, and nobody in it could tell."""
    loop = asyncio.get_running_loop()

    def turns() -> None:
        nonlocal turning
        faulthandler.dump_traceback_later(still_s, file=stderr)
        turning = loop.call_later(still_s / 4, turns)

    turning = loop.call_soon(turns)
    watching = asyncio.create_task(_watch(count, what, cluster, still_s), name="standstill")
    try:
        yield
    finally:
        turning.cancel()
        faulthandler.cancel_dump_traceback_later()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(count: Callable[[], int], what: str, cluster: Nodes, still_s: float) -> None:
    before = count()

    def grew() -> bool:
        return count() > before

    while True:
        try:
            await until(grew, what, still_s)
        except AssertionError:
            print(f"\nno {what} for {still_s:g} s, after {before} of them")
            for name in cluster.names:
                print(await asyncio.to_thread(cluster.described, name))
            print(_tasks())
            await until(grew, what, math.inf)
            print(f"{what} goes on")
        before = count()


def _tasks() -> str:
    written = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(limit=FRAMES, file=written)
    return written.getvalue()
