"""The real file system behind `ports.Disk`, and the lock of a data directory. No policy: every OSError goes up."""

from __future__ import annotations

import fcntl
import os

from cluster.ports import Disk, File, Lock

LOCK_NAME = "lock"


class DataDirectoryInUse(RuntimeError):
    """Another process has this data directory open: two nodes on one log would destroy it."""


class RealFile:
    """One descriptor. Offsets are explicit, so it may be read from another thread."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0:
            piece = os.pread(self._fd, size, offset)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pwrite(self, data: bytes, offset: int) -> None:
        written = os.pwrite(self._fd, data, offset)
        # A short write is no error yet: only the next one says why (ENOSPC, EFBIG).
        while written < len(data):
            written += os.pwrite(self._fd, memoryview(data)[written:], offset + written)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def reserve(self, size: int) -> None:
        held = self.size()
        if size > held and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, held, size - held)
        elif size > held:
            os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealLock:
    """A flock: the kernel drops it when the process ends, however it ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """`ports.Disk` by system calls."""

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def names(self, directory: str) -> list[str]:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def create(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))

    def open(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return RealLock(fd)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def open_data_directory(disk: Disk, path: str) -> Lock:
    """Make the directory if it is missing and take its lock; hold the lock as long as anything inside is used."""
    disk.make_directory(path)
    try:
        return disk.lock(f"{path}/{LOCK_NAME}")
    except BlockingIOError as error:
        raise DataDirectoryInUse(
            f"{path} is in use by another process: stop that node first, or give this one its own data_dir"
        ) from error
