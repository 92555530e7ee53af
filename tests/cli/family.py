"""A command that is hard to get rid of: children, an orphan and sessions of their own, all deaf to SIGTERM.

Each writes the time over and over into a file of its own, so that it is known afterwards until when it lived.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

NAMES = ("shell", "child", "grandchild", "own-session", "orphan")


def live(directory: str, name: str) -> None:
    """The file has its name from the first time on that is in it."""
    place = os.open(f"{directory}/.{name}", os.O_CREAT | os.O_WRONLY)
    while True:
        os.pwrite(place, f"{os.getpid()} {time.clock_gettime(time.CLOCK_BOOTTIME):020.6f}".encode(), 0)
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{directory}/.{name}", f"{directory}/{name}")
        select.select([], [], [], 0.003)


def lived_until(directory: Path) -> dict[str, tuple[int, float]]:
    """Of each, its pid and the last time it wrote."""
    seen = {}
    for name in NAMES:
        pid, moment = (directory / name).read_text().split()
        seen[name] = int(pid), float(moment)
    return seen


def main(directory: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        name = "grandchild" if os.fork() == 0 else "child"
        live(directory, name)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            # Its parent goes on; the next one's does not.
            live(directory, "own-session")
        if os.fork() == 0:
            os.setsid()
            live(directory, "orphan")
        os._exit(0)
    live(directory, "shell")


if __name__ == "__main__":
    main(sys.argv[1])
