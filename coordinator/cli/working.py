"""`holdfast queue work QUEUE -- command`: runs a command for every task, and tells the cluster how it ended."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

from coordinator.cli import warden
from coordinator.cli.arguments import Commands, add_remote, count, not_negative
from coordinator.cli.asking import run_with_client
from coordinator.cli.guarding import Guarded, Terms
from coordinator.cli.output import complain, plain
from coordinator.cli.warden import NOT_FOUND, NOT_RUNNABLE
from coordinator.cli.wardens import Wardens

if TYPE_CHECKING:
    from coordinator.client import Client, Task

KILL_AT = 3 / 4
"""SIGKILL comes so far into the time between SIGTERM and when the task may be another's."""
END_S = 3.0
"""Between SIGTERM and SIGKILL for a command whose worker stops."""
LAST_S = 1.0
PIECE_BYTES = 1 << 16
LAST_BYTES = 4_096
SAID_CHARACTERS = 500

_ABOUT = """\
Runs the command once for every task of QUEUE, with the payload as JSON on its standard input, and in its environment
$HOLDFAST_TOKEN (the fencing token: what the task writes to should refuse a lower one), $HOLDFAST_TASK_ID,
$HOLDFAST_QUEUE and $HOLDFAST_ATTEMPT. Several queues are served in turn.

Exit code 0 completes the task. Any other fails it, with the last line of its standard error as the reason; it is tried
again after the queue's back-off, and is a dead letter after the last attempt.

When the task is lost, the command and all its descendants get SIGTERM, and SIGKILL before another worker may have it:
also when `holdfast queue work` itself is stopped or killed. What a command leaves in the background is ended before the
task is reported. SIGTERM and SIGINT to `holdfast queue work` let what is running end, and take no more; a second one
ends it at once.
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
    """The commands of one `queue work`. `broken`: why no more can be started."""

    def __init__(self, options: argparse.Namespace, wardens: Wardens) -> None:
        self._options, self._wardens = options, wardens
        self.begun = 0
        self.full = asyncio.Event()
        self.broken = ""

    async def run(self, task: Task) -> None:
        """One command for one task. Raises why it failed."""
        self.begun += 1
        if self._options.max is not None and self.begun >= self._options.max:
            self.full.set()
        said, theirs = os.pipe()
        stderr = StandardError(said)
        try:
            guarded = self._wardens.new(_file_of(task.payload), theirs)
        except OSError as error:
            self.broken = f"the process that starts the commands is gone ({error.strerror}): start it again"
            self.full.set()
            stderr.close()
            raise Ended(self.broken) from error
        try:
            await self._guard(task, guarded, stderr)
        finally:
            guarded.close()
        if guarded.report is None:
            raise Ended("the process that watches over the command was killed, and the command with it")
        code = guarded.report["code"]
        self._tell(task, code)
        if code:
            raise Ended(f"exit code {code}", stderr.last_line())

    async def _guard(self, task: Task, guarded: Guarded, stderr: StandardError) -> None:
        told = {
            "HOLDFAST_TOKEN": str(task.token),
            "HOLDFAST_TASK_ID": task.task_id,
            "HOLDFAST_QUEUE": task.queue,
            "HOLDFAST_ATTEMPT": str(task.attempt),
        }

        def terms() -> Terms:
            return {"doubt_at": task.stop_at, "kill_at": task.stop_at + KILL_AT * (task.valid_until - task.stop_at)}

        def last() -> dict[str, Any]:
            if task.state == "LOST":
                return {"kill": True} if task.lost_because else dict(terms())
            # It is only not wanted here any more: it may end in order, while somebody still waits for it.
            soon = warden.now() + min(END_S, self._options.timeout / 2)
            return {"doubt_at": 0.0, "kill_at": min(soon, terms()["kill_at"])}

        passing = asyncio.ensure_future(stderr.pass_on())
        try:
            await guarded.see_through(told, terms, last)
        finally:
            # Everything that had it open was ended; what the warden could not end is not waited for.
            await asyncio.wait({passing}, timeout=LAST_S)
            passing.cancel()

    def _tell(self, task: Task, code: int) -> None:
        if self._options.json:
            document = {"task_id": task.task_id, "queue": task.queue, "attempt": task.attempt, "exit_code": code}
            print(json.dumps(document), file=sys.stderr, flush=True)
        elif code:
            told = f"task {task.task_id} of {plain(task.queue)} failed with exit code {code}, attempt {task.attempt}"
            print(f"holdfast: {told}", file=sys.stderr, flush=True)


def _file_of(payload: Any) -> int:
    """A command that does not read all of it keeps nobody waiting."""
    file = os.memfd_create("payload")
    with open(file, "wb", closefd=False) as written:
        written.write(json.dumps(payload, ensure_ascii=False).encode() + b"\n")
    os.lseek(file, 0, os.SEEK_SET)
    return file


class StandardError:
    """A command's standard error, passed on as it comes, whole lines at a time; only its end is remembered."""

    def __init__(self, file: int) -> None:
        self._file = os.fdopen(file, "rb", buffering=0)
        self._end = b""

    async def pass_on(self) -> None:
        reader = asyncio.StreamReader(limit=PIECE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._file
        )
        begun = b""
        try:
            while piece := await reader.read(PIECE_BYTES):
                self._end = (self._end + piece)[-LAST_BYTES:]
                whole, newline, begun = (begun + piece).rpartition(b"\n")
                if len(begun) > LAST_BYTES:
                    whole, newline, begun = whole + newline + begun, b"", b""
                await asyncio.to_thread(_print, whole + newline)
            if begun:
                await asyncio.to_thread(_print, begun + b"\n")
        finally:
            transport.close()

    def close(self) -> None:
        self._file.close()

    def last_line(self) -> str:
        lines = [line for line in self._end.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:SAID_CHARACTERS] if lines else ""


def _print(said: bytes) -> None:
    """In a thread: whoever reads our standard error slowly must not keep the heartbeats waiting."""
    sys.stderr.buffer.write(said)
    sys.stderr.buffer.flush()


class Ended(Exception):
    """The command said that it failed."""

    def __init__(self, how: str, said: str = "") -> None:
        super().__init__(f"{how}: {said}" if said else how)


async def _work(client: Client, options: argparse.Namespace, wardens: Wardens) -> int:
    runner = Runner(options, wardens)
    worker = client.worker(
        options.queues, runner.run, concurrency=options.concurrency, worker_id=options.client, grace=options.grace
    )
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    signalled: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        signalled.append(number)
        if len(signalled) > 1 and task is not None:
            task.cancel()
            return
        worker.drain()
        if worker.busy and not options.json:
            told = f"taking no more tasks; {worker.busy} may end within {options.grace:g} s, a second signal ends it"
            print(f"holdfast: {told}", file=sys.stderr, flush=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    enough = asyncio.ensure_future(_drain_when_full(runner, worker))
    try:
        await worker.run()
    except asyncio.CancelledError:
        return 128 + (signalled[-1] if signalled else signal.SIGTERM)
    finally:
        enough.cancel()
    return complain(options, runner.broken, 1, code="failed", outcome="unknown") if runner.broken else 0


async def _drain_when_full(runner: Runner, worker: Any) -> None:
    await runner.full.wait()
    worker.drain()


def _run(options: argparse.Namespace) -> int:
    if not options.to_run:
        message = f"say what to run after --, for example: holdfast queue work {options.queues[0]} -- ./job"
        return complain(options, message, 2, code="usage")
    if shutil.which(options.to_run[0]) is None:
        # Now, and not as the failure of every task in turn until all are dead letters.
        there = "/" in options.to_run[0] and os.path.exists(options.to_run[0])
        why = "it is not executable" if there else "No such file or directory"
        message = f"{options.to_run[0]} cannot be run: {why}"
        return complain(options, message, NOT_RUNNABLE if there else NOT_FOUND, code="usage")
    if options.max is not None:
        options.concurrency = min(options.concurrency, options.max)
    sys.stdout.flush()
    sys.stderr.flush()
    wardens = Wardens(options.to_run)
    try:
        return run_with_client(options, lambda client, given: _work(client, given, wardens))
    finally:
        wardens.close()


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
