"""`holdfast lock KEY -- command`: run something while a lock is held, and not a moment longer."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coordinator.cli import warden
from coordinator.cli.arguments import Commands, add_remote, count, exit_code, lease_time, not_negative
from coordinator.cli.asking import new_client, refuse
from coordinator.cli.guarding import Guarded, Terms
from coordinator.cli.output import complain, plain

if TYPE_CHECKING:
    from coordinator.client import Held

BUSY = 1
TRY_AGAIN = 75
SHORTEST_S = 0.5
"""Half of it is what a renewal has, and SIGTERM comes then: less is no time for either."""
KILL_BEFORE = 0.1
"""SIGKILL comes so much of the lease time before the lock may be another's."""

_ABOUT = """\
Runs a command while the lock KEY is held, with $HOLDFAST_TOKEN (the fencing token: what the lock protects should refuse
a lower one) and $HOLDFAST_LOCK_KEY in its environment. The lock is renewed every third of --ttl.

When ownership could not be confirmed for half of --ttl, SIGTERM goes to the command and all its descendants, and
SIGKILL before the lock can be granted to another. What the command leaves in the background is ended, too, before the
lock is given back. Signals are passed on to the command's process group.
"""
_CODES = """\
exit codes:
  of the command, or 128 + N when signal N ended it
  1    the lock was not free within --wait (or --conflict-exit-code)
  2    the command line is wrong
  75   no node could be asked, or the lock was lost and the command was ended
  126  the command cannot be run
  127  the command is not found

example:
  holdfast lock nightly-report --wait 0 -- sh -c './report --token "$HOLDFAST_TOKEN"'
"""


def split(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of `lock` or `queue work`, and the command after --."""
    if (given[:1] != ["lock"] and list(given[:2]) != ["queue", "work"]) or "--" not in given:
        return list(given), []
    at = given.index("--")
    return list(given[:at]), list(given[at + 1 :])


def _run(options: argparse.Namespace) -> int:
    if not options.to_run:
        message = f"say what to run after --, for example: holdfast lock {options.key} -- ./job"
        return complain(options, message, 2, code="usage")
    sys.stdout.flush()
    sys.stderr.flush()
    pid, link, report = warden.fork_warden(options.to_run)
    warden.adopt_orphans()
    guarded = Guarded(link, report)
    holding = Holding(options, guarded)
    try:
        return asyncio.run(holding.run())
    except asyncio.CancelledError:
        return 128 + holding.stopped_by
    finally:
        guarded.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


class Holding:
    """One run of a command under a lock. `stopped_by`: the signal that came while it waited for the lock."""

    def __init__(self, options: argparse.Namespace, guarded: Guarded) -> None:
        self._options, self._guarded = options, guarded
        self._running = False
        self._token: int | None = None
        self.stopped_by = 0

    async def run(self) -> int:
        from coordinator.client import HoldfastError, LockBusy, LockLost  # noqa: PLC0415 - not before the fork

        self._forward_signals()
        options = self._options
        try:
            async with new_client(options) as client:
                lock = client.lock(
                    options.key, options.ttl, wait=options.wait, mode="shared" if options.shared else "exclusive",
                    permits=options.permits,
                )  # fmt: skip
                async with lock as held:
                    await self._guard(held)
        except LockBusy as error:
            return complain(options, str(error), options.conflict_exit_code, code=error.code)
        except LockLost as error:
            if self._report is None or self._report["why"] in ("", "ended"):
                return self._told()
            return self._lost(str(error))
        except HoldfastError as error:
            return refuse(options, error)
        return self._told()

    def _forward_signals(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def forward(number: int) -> None:
            if self._running:
                self._guarded.send({"signal": number})
            elif task is not None and number not in (signal.SIGWINCH, signal.SIGUSR1, signal.SIGUSR2):
                self.stopped_by = number
                task.cancel()

        for number in warden.FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, forward, number)
        # Stopped, it could not renew: the command would be ended. Ctrl-Z does nothing instead.
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)

    # --- while it runs ------------------------------------------------------------------------------------------------

    async def _guard(self, held: Held) -> None:
        self._token = held.token
        environment = {"HOLDFAST_TOKEN": str(held.token), "HOLDFAST_LOCK_KEY": held.key}

        def terms() -> Terms:
            valid_until = warden.now() + held.valid_for
            return {"doubt_at": held.in_doubt_at, "kill_at": valid_until - KILL_BEFORE * self._options.ttl}

        def last() -> dict[str, bool] | None:
            # In doubt, the warden knows the time by itself; known to be another's, there is none left.
            return {"kill": True} if held.state == "LOST" else None

        self._running = True
        try:
            await self._guarded.see_through(environment, terms, last)
        finally:
            self._running = False
            if self._guarded.killed:
                warden.kill_below(os.getpid())  # the command's orphans are ours now

    @property
    def _report(self) -> dict[str, Any] | None:
        return self._guarded.report

    # --- how it ended -------------------------------------------------------------------------------------------------

    def _told(self) -> int:
        if self._report is None:
            return self._lost("the process that watches over the command was killed")
        if self._report["why"] in ("doubt", "lost", "gone"):
            return self._lost("ownership could not be confirmed in time")
        if self._options.json:
            document = {
                "lock_key": self._options.key, "fencing_token": self._token, "exit_code": self._report["code"],
            }  # fmt: skip
            print(json.dumps(document), file=sys.stderr)
        code: int = self._report["code"]
        return code

    def _lost(self, why: str) -> int:
        left = (self._report or {}).get("left")
        could_not = f"; these could not be ended: {', '.join(map(str, left))}" if left else ""
        message = f"the lock {plain(self._options.key)} was lost, and the command was ended: {why}{could_not}"
        return complain(self._options, message, TRY_AGAIN, code="lock_lost", outcome="unknown")


def add(commands: Commands) -> None:
    added = add_remote(
        commands, "lock", "run a command while a lock is held", _run, description=_ABOUT, epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="holdfast lock KEY [--ttl S] [--wait S] [--shared | --permits N] [options] -- COMMAND [ARGUMENT …]",
    )  # fmt: skip
    added.add_argument("key", metavar="KEY")
    added.add_argument(
        "--ttl", type=lease_time(SHORTEST_S), default=10.0, metavar="S",
        help=f"the lease time, from {SHORTEST_S:g} (default: 10)",
    )  # fmt: skip
    added.add_argument(
        "-w", "--wait", type=not_negative, metavar="S", help="0: do not wait (default: as long as it takes)"
    )
    added.add_argument("-n", "--nonblock", dest="wait", action="store_const", const=0.0, help="the same as --wait 0")
    mode = added.add_mutually_exclusive_group()
    mode.add_argument("--shared", action="store_true", help="together with other shared holders")
    mode.add_argument("--permits", type=count, default=1, metavar="N", help="up to N holders at once: a semaphore")
    added.add_argument(
        "-E",
        "--conflict-exit-code",
        type=exit_code,
        default=BUSY,
        metavar="N",
        help="when it was not free (default: 1)",
    )
    added.add_argument("--client", metavar="ID", help="who holds it (default: new for every run)")
