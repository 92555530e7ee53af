"""A disk in memory that forgets what was not synced, tears writes, fails and flips bits: `ports.Disk` for tests.

What survives a power cut: the content at a file's last fdatasync, plus any part of the writes since, sector by sector;
the names at the last `sync_directory`, plus a prefix of the operations on names since. A sector that did not survive
keeps its old bytes; where there were none it reads as zeros or lies behind the end of the file.
"""

from __future__ import annotations

import errno
import posixpath
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECTOR = 512


class SimCrash(BaseException):
    """The power went out: nothing of the program runs on. Not an Exception, so that nobody handles it."""


class _Inode:
    def __init__(self) -> None:
        self.durable = bytearray()
        self.current = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []
        """(offset, bytes) of a write, (size, None) of a truncation."""

    def sync(self) -> None:
        """What was done since the last time is done to what is durable: cheaper than a copy of all of it."""
        for offset, data in self.unsynced:
            if data is None:
                _resize(self.durable, offset)
            else:
                _put(self.durable, offset, data)
        self.unsynced.clear()

    def crash(self, rng: random.Random) -> None:
        content = bytearray(self.durable)
        for offset, data in self.unsynced:
            fate = rng.random()
            if fate < 0.3:
                continue
            if data is None:
                _resize(content, offset)
            elif fate < 0.6:
                _put(content, offset, data)
            else:
                _put_torn(content, offset, data, rng)
        self.durable = content
        self.current = bytearray(content)
        self.unsynced.clear()


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset + len(data):
        _resize(content, offset + len(data))
    content[offset : offset + len(data)] = data


def _put_torn(content: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    """Any subset of the sectors arrives; the size is that of the whole write, or ends with the last sector kept."""
    end = offset + len(data)
    if rng.random() < 0.5:
        _resize(content, max(len(content), end))
    keep = rng.random()
    start = offset
    while start < end:
        stop = min(end, start - start % SECTOR + SECTOR)
        if rng.random() < keep:
            _put(content, start, data[start - offset : stop - offset])
        start = stop


class SimFile:
    def __init__(self, disk: SimDisk, inode: _Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._life = disk.life
        self._closed = False

    def _enter(self, operation: str) -> None:
        if self._life != self._disk.life:
            raise SimCrash(f"{operation} on a file that was open before the crash")
        if self._closed:
            raise OSError(errno.EBADF, "closed", self._path)
        self._disk.enter(operation, self._path)

    def pread(self, size: int, offset: int) -> bytes:
        self._enter("pread")
        return bytes(self._inode.current[offset : offset + size])

    def pwrite(self, data: bytes, offset: int) -> None:
        self._enter("pwrite")
        room, grows = self._disk.room, max(0, offset + len(data) - len(self._inode.current))
        if room is not None and grows > room:
            # The disk fills up in the middle of a write: what fitted is there. What was reserved before fits.
            self._write(data[: max(0, len(data) - grows + room)], offset)
            self._disk.room = 0
            raise self._disk.no_space(self._path)
        if room is not None:
            self._disk.room = room - grows
        self._write(data, offset)

    def _write(self, data: bytes, offset: int) -> None:
        if data:
            _put(self._inode.current, offset, data)
            self._inode.unsynced.append((offset, bytes(data)))

    def fdatasync(self) -> None:
        self._enter("fdatasync")
        self._inode.sync()

    def reserve(self, size: int) -> None:
        self._enter("reserve")
        held = len(self._inode.current)
        if size <= held:
            return
        if self._disk.room is not None:
            if size - held > self._disk.room:
                raise self._disk.no_space(self._path)
            self._disk.room -= size - held
        _resize(self._inode.current, size)
        self._inode.unsynced.append((size, None))

    def size(self) -> int:
        self._enter("size")
        return len(self._inode.current)

    def truncate(self, size: int) -> None:
        self._enter("truncate")
        _resize(self._inode.current, size)
        self._inode.unsynced.append((size, None))

    def close(self) -> None:
        self._closed = True


class SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimDisk:
    """Deterministic: the only chance is the generator handed to `crash`."""

    def __init__(self) -> None:
        self.life = 0
        self.locks: set[str] = set()
        self.room: int | None = None
        """Bytes that still fit; None is endless."""
        self.on_operation: Callable[[str, str], None] | None = None
        """Called before every operation with its name and path; raise SimCrash there to stop between two."""
        self._directories: set[str] = set()
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._unsynced_names: list[tuple[str, str, str, _Inode | None]] = []
        self._failures: dict[str, list[OSError]] = {}
        self.met: Counter[str] = Counter()
        """What somebody really ran into."""

    # --- faults -----------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self.room == 0

    @full.setter
    def full(self, value: bool) -> None:
        self.room = 0 if value else None

    def fail_next(self, operation: str, error: OSError) -> None:
        """The next `operation` raises `error` and does nothing; several queue up."""
        self._failures.setdefault(operation, []).append(error)

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Decay: one bit of the stored content changes."""
        inode = self._names.get(path)
        for content in (inode.durable, inode.current) if inode is not None else ():
            if offset < len(content):
                content[offset] ^= 1 << bit

    def paths(self) -> list[str]:
        return sorted(self._names)

    def byte(self, path: str, offset: int) -> bytes:
        inode = self._names.get(path)
        return b"" if inode is None else bytes(inode.current[offset : offset + 1])

    def inode(self, path: str) -> object | None:
        """What is under this name now: another one if it was replaced, None if it was deleted."""
        return self._names.get(path)

    def is_synced(self, path: str, offset: int) -> bool:
        """Whether nothing was done to this byte since the file was synced."""
        changes = self._names[path].unsynced
        return not any(at <= offset and (data is None or offset < at + len(data)) for at, data in changes)

    def content(self, path: str) -> bytes:
        return bytes(self._names[path].current)

    def overwrite(self, path: str, content: bytes) -> None:
        """Put `content` there, durably, as if it had always been so."""
        inode = self._names.setdefault(path, _Inode())
        self._durable_names[path] = inode
        inode.durable, inode.current = bytearray(content), bytearray(content)
        inode.unsynced.clear()

    def kill(self) -> None:
        """The process dies, the machine lives on: everything written stays in the page cache."""
        self.life += 1
        self.locks.clear()

    def crash(self, rng: random.Random) -> None:
        """Power cut: what was not synced survives by chance. Open files are dead, locks are released."""
        self.kill()
        keep = rng.randint(0, len(self._unsynced_names))
        for operation in self._unsynced_names[:keep]:
            _apply_name(self._durable_names, operation)
        self._unsynced_names.clear()
        self._names = dict(self._durable_names)
        for path in sorted(self._names):
            self._names[path].crash(rng)

    def copy(self) -> SimDisk:
        """The same files on another disk; what is unsynced here is settled there as after `kill`."""
        other = SimDisk()
        other._directories = set(self._directories)
        for path, inode in self._names.items():
            other.overwrite(path, bytes(inode.current))
        return other

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """For whoever looks on from outside: meanwhile no operation counts, and none fails."""
        watcher, self.on_operation = self.on_operation, None
        failures, self._failures = self._failures, {}
        try:
            yield
        finally:
            self.on_operation, self._failures = watcher, failures

    def enter(self, operation: str, path: str) -> None:
        if self.on_operation is not None:
            self.on_operation(operation, path)
        failures = self._failures.get(operation)
        if failures:
            self.met["disk errors that were met"] += 1
            raise failures.pop(0)

    def no_space(self, path: str) -> OSError:
        self.met["full disks that were met"] += 1
        return OSError(errno.ENOSPC, "no space left", path)

    # --- ports.Disk -------------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        self.enter("make_directory", path)
        self._directories.add(path)

    def names(self, directory: str) -> list[str]:
        self.enter("names", directory)
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        return sorted(posixpath.basename(path) for path in self._names if posixpath.dirname(path) == directory)

    def create(self, path: str) -> SimFile:
        self.enter("create", path)
        if self.full:
            raise self.no_space(path)
        self._change(("link", path, "", _Inode()))
        return SimFile(self, self._names[path], path)

    def open(self, path: str) -> SimFile:
        self.enter("open", path)
        return SimFile(self, self._find(path), path)

    def rename(self, source: str, target: str) -> None:
        self.enter("rename", source)
        self._find(source)
        self._change(("rename", source, target, None))

    def unlink(self, path: str) -> None:
        self.enter("unlink", path)
        self._find(path)
        self._change(("unlink", path, "", None))

    def sync_directory(self, path: str) -> None:
        self.enter("sync_directory", path)
        later = []
        for operation in self._unsynced_names:
            if posixpath.dirname(operation[1]) == path:
                _apply_name(self._durable_names, operation)
            else:
                later.append(operation)
        self._unsynced_names = later

    def lock(self, path: str) -> SimLock:
        self.enter("lock", path)
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.locks.add(path)
        return SimLock(self, path)

    def free_bytes(self, path: str) -> int:
        self.enter("free_bytes", path)
        return 1 << 40 if self.room is None else self.room

    def _find(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _change(self, operation: tuple[str, str, str, _Inode | None]) -> None:
        _apply_name(self._names, operation)
        self._unsynced_names.append(operation)


def _apply_name(names: dict[str, _Inode], operation: tuple[str, str, str, _Inode | None]) -> None:
    kind, path, target, inode = operation
    if kind == "link" and inode is not None:
        names[path] = inode
    elif kind == "rename":
        moved = names.pop(path, None)
        if moved is not None:
            names[target] = moved
    elif kind == "unlink":
        names.pop(path, None)
