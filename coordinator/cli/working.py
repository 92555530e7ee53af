"""`holdfast queue work QUEUE -- command`: runs a command for every task, and tells the cluster how it ended."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_remote, count, not_negative
from coordinator.cli.asking import run_with_client
from coordinator.cli.output import complain
from coordinator.cli.warden import NOT_FOUND, NOT_RUNNABLE

if TYPE_CHECKING:
    from coordinator.client import Client, Task

KILL_BEFORE_S = 0.05
SAID_CHARACTERS = 500

_ABOUT = """\
Runs the command once for every task of QUEUE, with the payload as JSON on its standard input, and in its environment
$HOLDFAST_TOKEN (the fencing token: what the task writes to should refuse a lower one), $HOLDFAST_TASK_ID,
$HOLDFAST_QUEUE and $HOLDFAST_ATTEMPT. Several queues are served in turn.

Exit code 0 completes the task. Any other fails it, with the last line of its standard error as the reason; it is tried
again after the queue's back-off, and is a dead letter after the last attempt.

When the task is lost, its process group gets SIGTERM, and SIGKILL before another worker may have it. SIGTERM and SIGINT
to `holdfast queue work` let what is running end, and take no more; a second one ends it at once.
"""
_CODES = """\
exit codes:
  0    stopped by a signal or --max, and everything was reported
  1    refused; there is no such queue, for example
  2    the command line is wrong
  75   no node could be asked
  126  the command cannot be run
  127  the command is not found

example:
  holdfast queue work thumbnails --concurrency 4 -- ./make-thumbnail
"""


class Runner:
    """The commands of one `queue work`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.begun = 0
        self.full = asyncio.Event()

    async def run(self, task: Task) -> None:
        """One command for one task. Raises why it failed."""
        self.begun += 1
        if self._options.max is not None and self.begun >= self._options.max:
            self.full.set()
        told = {
            "HOLDFAST_TOKEN": str(task.token),
            "HOLDFAST_TASK_ID": task.task_id,
            "HOLDFAST_QUEUE": task.queue,
            "HOLDFAST_ATTEMPT": str(task.attempt),
        }
        process = await asyncio.create_subprocess_exec(
            *self._options.to_run,
            env={**os.environ, **told},
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, said = await process.communicate(json.dumps(task.payload, ensure_ascii=False).encode() + b"\n")
        except asyncio.CancelledError:
            await _end(process, task)
            raise
        sys.stderr.buffer.write(said)
        sys.stderr.buffer.flush()
        self._report(task, process.returncode or 0)
        if process.returncode:
            raise Ended(process.returncode, said.decode(errors="replace"))

    def _report(self, task: Task, code: int) -> None:
        if self._options.json:
            document = {"task_id": task.task_id, "queue": task.queue, "attempt": task.attempt, "exit_code": code}
            print(json.dumps(document), file=sys.stderr, flush=True)


class Ended(Exception):
    """The command said that it failed."""

    def __init__(self, code: int, said: str) -> None:
        lines = [line for line in said.strip().splitlines() if line.strip()]
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        super().__init__(f"{how}: {lines[-1][:SAID_CHARACTERS]}" if lines else how)


async def _end(process: asyncio.subprocess.Process, task: Task) -> None:
    """SIGTERM, and SIGKILL before the task can be another's."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(max(0.0, task.valid_for - KILL_BEFORE_S)):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)


async def _work(client: Client, options: argparse.Namespace) -> int:
    runner = Runner(options)
    worker = client.worker(
        options.queues, runner.run, concurrency=options.concurrency, worker_id=options.client, grace=options.grace
    )
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def stop(number: signal.Signals) -> None:
        worker.drain()
        if task is not None:
            loop.add_signal_handler(number, task.cancel)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    enough = asyncio.ensure_future(_drain_when_full(runner, worker))
    try:
        await worker.run()
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    finally:
        enough.cancel()
    return 0


async def _drain_when_full(runner: Runner, worker: Any) -> None:
    await runner.full.wait()
    worker.drain()


def _run(options: argparse.Namespace) -> int:
    if not options.to_run:
        message = f"say what to run after --, for example: holdfast queue work {options.queues[0]} -- ./job"
        return complain(options, message, 2, code="usage")
    if shutil.which(options.to_run[0]) is None:
        # Now, and not as the failure of every task in turn until all are dead letters.
        there = os.path.exists(options.to_run[0])
        why = "it is not executable" if there else "No such file or directory"
        message = f"{options.to_run[0]} cannot be run: {why}"
        return complain(options, message, NOT_RUNNABLE if there else NOT_FOUND, code="usage")
    if options.max is not None:
        options.concurrency = min(options.concurrency, options.max)
    return run_with_client(options, _work)


def add(actions: Commands) -> None:
    added = add_remote(
        actions, "work", "run a command for every task", _run, description=_ABOUT, epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="holdfast queue work QUEUE [QUEUE …] [--concurrency N] [options] -- COMMAND [ARGUMENT …]",
    )  # fmt: skip
    added.add_argument("queues", metavar="QUEUE", nargs="+")
    added.add_argument("--concurrency", type=count, default=1, metavar="N", help="so many at a time (default: 1)")
    added.add_argument("--max", type=count, metavar="N", help="end after about so many tasks (default: never)")
    added.add_argument(
        "--grace", type=not_negative, default=30.0, metavar="S", help="for what runs when it stops (default: 30)"
    )
    added.add_argument("--client", metavar="ID", help="who does it (default: new for every run)")
