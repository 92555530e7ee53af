"""Where the wardens of many commands come from, one after the other.

A process with threads or an event loop must not fork what goes on as Python. So a small process is forked before either
is there; it is handed the ends of sockets and files that a command is to have, and forks a warden with them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Sequence

from coordinator.cli import warden
from coordinator.cli.guarding import Guarded

_GO = b"1"
_FILES = 4
"""A warden's link, where it reports, and its command's standard input and error."""


class Origin:
    """That process. It outlives whoever asks it by as long as its wardens take to end their commands."""

    def __init__(self, link: socket.socket, command: Sequence[str]) -> None:
        self._link, self._command = link, command
        self._wardens: dict[int, int] = {}
        """Their pids, and descriptors that tell when they have ended."""

    def run(self) -> None:
        asked = True
        while asked or self._wardens:
            watched = [*self._wardens.values(), *([self._link.fileno()] if asked else [])]
            ready = select.select(watched, [], [])[0]
            if self._link.fileno() in ready:
                asked = self._begin()
            self._reap()

    def _begin(self) -> bool:
        """False: whoever asks is gone. The wardens know it by links of their own."""
        try:
            said, files, _, _ = socket.recv_fds(self._link, len(_GO), _FILES, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        if not said:
            return False
        pid = os.fork()
        if pid == 0:
            try:
                self._link.close()
                for file in self._wardens.values():
                    os.close(file)
                warden.adopt_orphans()
                link, answer = socket.socket(fileno=files[0]), socket.socket(fileno=files[1])
                for each in (link, answer):
                    each.settimeout(None)
                warden.Warden(link, answer, self._command, stdin=files[2], stderr=files[3]).run()
            finally:
                os._exit(0)
        for file in files:
            os.close(file)
        self._wardens[pid] = os.pidfd_open(pid)
        return True

    def _reap(self) -> None:
        ended = warden.reap()
        killed = False
        for pid, code in ended.items():
            if pid in self._wardens:
                os.close(self._wardens.pop(pid))
                killed = killed or code != 0
        if killed:
            self._end_strays()

    def _end_strays(self) -> None:
        """A warden was killed: its command died with it, and what that had started is our own child now."""
        end = warden.now() + warden.STUBBORN_S
        while (strays := self._strays()) and warden.now() < end:
            warden.signal_all(strays, signal.SIGKILL)
            select.select([], [], [], 0.002)

    def _strays(self) -> list[int]:
        """All that is below, without what is below a warden, which is looked for last: commands go on starting."""
        below = warden.descendants(os.getpid())
        kept = {*self._wardens, *(each for pid in self._wardens for each in warden.descendants(pid))}
        return [pid for pid in below if pid not in kept]


class Wardens:
    """The way to that process."""

    def __init__(self, command: Sequence[str]) -> None:
        """To be called while this process has one thread."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid, self._link = os.fork(), ours
        if self._pid:
            theirs.close()
            return
        try:
            ours.close()
            warden.stand_aside()
            Origin(theirs, command).run()
        finally:
            os._exit(0)

    def new(self, stdin: int, stderr: int) -> Guarded:
        """Takes both descriptors. OSError: the process is gone, and no command can be started any more."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        heard, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._link, [_GO], [theirs.fileno(), told.fileno(), stdin, stderr])
        except OSError:
            ours.close()
            heard.close()
            raise
        finally:
            theirs.close()
            told.close()
            os.close(stdin)
            os.close(stderr)
        return Guarded(ours, heard)

    def close(self) -> None:
        """Returns when every command has ended."""
        self._link.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
