"""A terminal with a person before it: a command runs in it, and what it draws is read as it comes."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import ioctl

from tests.cli.processes import REPOSITORY

CLEAR = "\x1b[H\x1b[2J"
ERASE = "\r\x1b[K"


class Terminal:
    """`drawn` is everything so far, escape sequences and all."""

    def __init__(self, words: list[str], environment: Mapping[str, str], columns: int) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # What the environment says of the size would count for more than the terminal itself.
        around = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, *words], cwd=REPOSITORY, env=around, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.drawn = ""

    def until(self, pattern: str, timeout_s: float = 90) -> re.Match[str]:
        """The first place where `pattern` is drawn."""
        end = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.drawn, re.DOTALL)) is None:
            left_s = end - time.monotonic()
            assert left_s > 0 and self._read(left_s), f"no {pattern!r} in {self.drawn!r}"
        return found

    def ended(self) -> int:
        """The exit code, when all that was drawn is here."""
        while self._read(90):
            pass
        return self.process.wait(timeout=90)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=90)
        os.close(self._master)

    def _read(self, timeout_s: float) -> bool:
        """False when nobody draws any more."""
        if not select.select([self._master], [], [], timeout_s)[0]:
            return False
        try:
            piece = os.read(self._master, 1 << 16)
        except OSError:
            return False  # how Linux says that the last who had it open is gone
        self.drawn += piece.decode()
        return bool(piece)


@contextmanager
def terminal(words: list[str], environment: Mapping[str, str], columns: int = 100) -> Iterator[Terminal]:
    shown = Terminal(words, environment, columns)
    try:
        yield shown
    finally:
        shown.close()


def holdfast(*words: str) -> list[str]:
    return ["-m", "coordinator.cli", *words]
