"""The warden: the process between `holdfast lock` or `holdfast queue work` and a command that it runs.

It is forked before anything else and has no event loop, no network and no threads. It is told until when the lock or
the task is surely held, and ends everything that descends from it before that: also when the process that renews it is
stopped, stuck or killed. Orphans of the command become its own children (a subreaper), so a grandchild that left the
process group or began a session of its own is found as well.

What it cannot end: what another process started on the command's behalf (a container engine, at, systemd-run), a
process of another user, and one that the kernel does not let go of (state D).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
)  # fmt: skip
GRACE_S = 5.0
"""Between SIGTERM and SIGKILL for what is left when the command has ended; never longer than the lock is held."""
STUBBORN_S = 10.0
NOT_RUNNABLE, NOT_FOUND = 126, 127
_LOOK_S = 0.2
"""The clock that counts goes on while the host sleeps, a wait does not: it is looked at this often."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def now() -> float:
    """The same clock as the SDK's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def adopt_orphans() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Everything below `root` that runs, whatever its process group or session."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry))
                if state in "ZX":
                    zombies.add(int(entry))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return [pid for pid in found if pid not in zombies]


def signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_below(root: int) -> list[int]:
    """SIGKILL until two looks in a row find nothing: one look can miss a process that moves meanwhile. What is left."""
    end, clean = now() + STUBBORN_S, 0
    while now() < end:
        found = descendants(root)
        signal_all(found, signal.SIGKILL)
        reap()
        clean = 0 if found else clean + 1
        if clean == 2:
            return []
        time.sleep(0.002)
    return descendants(root)


def reap() -> dict[int, int]:
    """Children that have ended, and their exit codes as a shell has them."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            ended[found[0]] = code if code >= 0 else 128 - code
    return ended


class Warden:
    """Told by messages over `link`: {start, doubt_at, kill_at}, {doubt_at, kill_at}, {signal}, {kill}.

    Its one report, at the end, goes over `answer`: on `link` a message that it has not read would reset the connection.
    `stdin` and `stderr` are the command's, if they are others than the warden's own.
    """

    def __init__(
        self,
        link: socket.socket,
        answer: socket.socket,
        command: Sequence[str],
        *,
        stdin: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self._link, self._answer, self._command = link, answer, command
        self._stdin, self._stderr = stdin, stderr
        self._doubt_at = self._kill_at = math.inf
        self._child = 0
        self._code: int | None = None
        self._ending = ""
        self._grace_ends = math.inf

    def run(self) -> None:
        told = self._next_message()
        if told is None:
            return
        self._hear(told)
        self._code = self._start(told["start"])
        left: list[int] = []
        while self._code is None or descendants(os.getpid()):
            self._wait()
            self._code = reap().get(self._child, self._code)
            if self._code is not None and not self._ending:
                self._end("", now() + GRACE_S)
            elif now() >= self._doubt_at and not self._ending:
                self._end("doubt", math.inf)
            if now() >= min(self._kill_at, self._grace_ends):
                self._ending = self._ending or "lost"
                left = self._kill()
                break
        report = {"code": self._code, "why": self._ending, "left": left}
        with contextlib.suppress(OSError):
            self._answer.send(json.dumps(report).encode())

    def _start(self, environment: Mapping[str, str]) -> int | None:
        """Its exit code, if it could not be started."""
        try:
            child = subprocess.Popen(
                self._command,
                env={**os.environ, **environment},
                stdin=self._stdin,
                stderr=self._stderr,
                start_new_session=True,
                preexec_fn=_die_with_the_warden,  # noqa: PLW1509 - there is one thread
            )
        except OSError as error:
            told = f"holdfast: {self._command[0]} cannot be run: {error.strerror}\n"
            os.write(2 if self._stderr is None else self._stderr, told.encode())
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
        finally:
            for file in (self._stdin, self._stderr):
                if file is not None:
                    os.close(file)  # whoever reads the other end waits for the command's end, not for ours
        self._child = child.pid
        child.returncode = 0  # It is reaped with the orphans.
        return None

    def _wait(self) -> None:
        soon = _LOOK_S if not self._ending and self._code is None else 0.05
        left = min(self._kill_at, self._grace_ends, self._doubt_at if not self._ending else math.inf) - now()
        watched: list[Any] = [self._link] if self._ending != "gone" else []
        with contextlib.ExitStack() as stack:
            if self._code is None:
                child = os.pidfd_open(self._child)
                stack.callback(os.close, child)
                watched.append(child)
            ready = select.select(watched, [], [], max(0.0, min(soon, left)))[0]
        if self._link in ready:
            told = self._next_message()
            if told is None:
                self._end("gone", now() + GRACE_S)
            else:
                self._hear(told)

    def _next_message(self) -> dict[str, Any] | None:
        """None: the process that renews the lock is gone."""
        try:
            raw = self._link.recv(4096)
        except OSError:
            return None
        told: dict[str, Any] | None = json.loads(raw) if raw else None
        return told

    def _hear(self, told: Mapping[str, Any]) -> None:
        self._doubt_at = told.get("doubt_at", self._doubt_at)
        self._kill_at = told.get("kill_at", self._kill_at)
        if told.get("kill"):
            self._ending, self._kill_at = self._ending or "lost", 0.0
        if "signal" in told and self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child, told["signal"])

    def _end(self, why: str, grace_ends: float) -> None:
        self._ending = self._ending or why or "ended"
        self._grace_ends = min(self._grace_ends, grace_ends)
        signal_all(descendants(os.getpid()), signal.SIGTERM)

    def _kill(self) -> list[int]:
        child = os.pidfd_open(self._child) if self._code is None else None
        signal_all(descendants(os.getpid()), signal.SIGKILL)
        if child is not None:
            select.select([child], [], [], STUBBORN_S)
            os.close(child)
            self._code = reap().get(self._child, 128 + signal.SIGKILL)
        return kill_below(os.getpid())


def _die_with_the_warden() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def fork_warden(command: Sequence[str]) -> tuple[int, socket.socket, socket.socket]:
    """Its pid, the link to it, and where it reports. To be called while this process has one thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    heard, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        told.close()
        return pid, ours, heard
    try:
        ours.close()
        heard.close()
        stand_aside()
        Warden(theirs, told, command).run()
    finally:
        os._exit(0)


def stand_aside() -> None:
    """What the terminal sends is for the command, by way of the process that forwards it."""
    os.setsid()
    for number in (*FORWARDED, signal.SIGTSTP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _hold_out)  # A handler, unlike SIG_IGN, is not inherited by the command.
    adopt_orphans()


def _hold_out(*_: object) -> None:
    """The warden goes when its work is done."""
