"""Debian's packages for what is missing. Several processes may find so at once: one `apt-get` runs after the other."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

LOCK = Path(tempfile.gettempdir(), "holdfast-apt.lock")
WAIT_S = 600
"""For somebody else's `apt-get`, and for one of our own."""


def install(packages: Iterable[str], there: Callable[[], bool]) -> bool:
    """Whether it is there in the end. Only root can, and whoever waited for another looks again before."""
    if there() or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return there()
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install_all = ("install", "--no-install-recommends", *sorted(packages))
        for words in (install_all, ("update",), install_all):
            if there():
                break
            _apt_get(*words)
    return there()


def _apt_get(*words: str) -> None:
    # The services of the packages must not run: a peer runs only while it is measured.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = ["apt-get", "-y", "-qq", "-o", f"DPkg::Lock::Timeout={WAIT_S}", *words]
    nothing = subprocess.DEVNULL
    subprocess.run(command, env=environment, check=False, stdout=nothing, stderr=nothing, timeout=2 * WAIT_S)
