"""A file system of a few MiB of its own, that can be filled to the last byte. Only root can make one."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PIECE_BYTES = 1 << 12
IS_ROOT = os.geteuid() == 0


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """A file that takes all the room there is; with it goes the fullness."""
    filler = directory / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * PIECE_BYTES)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return filler
