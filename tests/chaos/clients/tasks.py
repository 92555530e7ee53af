"""Dispatch: numbers put into a queue, one after the other, and workers that write each of them down under its token."""

from __future__ import annotations

import asyncio
from functools import partial

from coordinator.client import Task
from tests.chaos.clients.work import Work

QUEUE = "chaos"
RULES: dict[str, int | float] = {
    "lease": 3.0, "heartbeat": 0.75, "suspect_beats": 2, "debounce_beats": 2, "hold_down": 0.25, "max_hold_down": 1.0,
    "max_attempts": 100, "back_off": 0.0, "max_back_off": 1.0,
}  # fmt: skip
"""Short, so that much is taken from its owners; and as many attempts as it takes."""
TURN_S = 0.05


async def feeder(work: Work) -> None:
    await _queue(work)
    number = 0
    while not work.settle.is_set():
        number += 1
        # Asked again under the same id it is the same task, whatever became of the first attempt.
        request_id = f"{work.name}-{number}"
        put = await work.until_done("task", partial(work.client.queues.enqueue, QUEUE, number, request_id=request_id))
        if put is not None:
            work.recorder.note("fed", number=number, task=put.task_id)
        await work.pause(TURN_S, work.settle)
    work.recorder.note("settled")
    await work.stop.wait()


async def doer(work: Work) -> None:
    """Its handler is a plain function: it cannot be cancelled, so only the guard keeps a late one from writing."""

    def handle(task: Task) -> None:
        work.store.do(task.payload, task.task_id, task.token, work.name)
        work.recorder.note("acknowledged", kind="effect")

    await _queue(work)
    worker = work.client.worker(QUEUE, handle, concurrency=4, worker_id=work.name)
    running = asyncio.ensure_future(worker.run())
    over = asyncio.ensure_future(work.stop.wait())
    await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
    worker.drain()
    over.cancel()
    await running


async def _queue(work: Work) -> None:
    """There is one from here on, whoever comes first: a worker of a queue that is not there ends."""
    await work.until_done("task", partial(work.client.queues.put, QUEUE, **RULES))
