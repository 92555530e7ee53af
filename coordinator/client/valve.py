"""When the cluster cannot be asked and the disk fills up: room, at the price of what can be missed best.

Only then: a provider that hears the cluster cleans up as the cluster says. Cut off from it and over its budget, it
frees its oldest files: never one that a pattern protects or that is pinned, never one that was leased when the cluster
was last heard (its holder may have renewed since), never one that changed a moment ago. What it frees is in a journal
before it is gone, and room for the journal is kept while there is some. When the cluster is heard again it is told:
`DELETE /resources/{id}` has the resource reclaimed there too. One that is in use there is not forced: the report says
so, and the provider knows what its holders get.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from coordinator.client.errors import Conflict, Denied, Gone, NotFound, OutcomeUnknown, Unavailable
from coordinator.client.watch import revision

if TYPE_CHECKING:
    from coordinator.client.client import Client
    from coordinator.client.verifier import LeaseVerifier

MAX_FILES = 1_000
MIN_AGE_S = 60.0
ROOM_BYTES = 1 << 20
"""Kept for the journal beside it, for a disk that is full: the lines of some thousand files."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
Told = Literal["reclaiming", "unknown", "in_use", "refused", "there"]
"""`there`: the file is, so there is nothing to tell; it was written anew, or could not be freed after all."""

_log = logging.getLogger("holdfast.client")


@dataclass(frozen=True, slots=True)
class Freed:
    """One file. `told`: what the cluster made of it; None until it was asked."""

    path: str
    resource_id: str
    size_bytes: int
    at_epoch: float
    told: Told | None = None


@dataclass(frozen=True, slots=True)
class Relief:
    """What one run did. `short_bytes`: how much it is over its budget still, with nothing left that may go."""

    freed: tuple[Freed, ...]
    freed_bytes: int
    short_bytes: int


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    name: str
    size_bytes: int
    changed: float
    inode: int


class SafetyValve:
    """`max_files`: of one run. `dry_run`: says what it would free, and neither frees nor journals it.

    `resource_id` tells the id of a file by its path within the directory; that path itself unless given.
    """

    def __init__(
        self,
        directory: str | Path,
        budget_bytes: int,
        journal: str | Path,
        *,
        protected: Sequence[str] = (),
        pinned: Callable[[str], bool] | None = None,
        verifier: LeaseVerifier | None = None,
        resource_id: Callable[[str], str] = str,
        min_age: float = MIN_AGE_S,
        max_files: int = MAX_FILES,
        dry_run: bool = False,
    ) -> None:
        self._directory, self._budget_bytes = Path(directory), budget_bytes
        self._journal = Path(journal).absolute()
        self._room = self._journal.with_name(self._journal.name + ".room")
        self._protected, self._pinned, self._verifier = tuple(protected), pinned, verifier
        self._resource_id, self._min_age_s, self._max_files, self._dry_run = resource_id, min_age, max_files, dry_run

    # --- relief -------------------------------------------------------------------------------------------------------

    def relieve(self) -> Relief:
        """Frees until the directory is within its budget. For when the cluster cannot be asked; `run` sees to that."""
        self._keep_room()
        files = sorted(self._files(), key=lambda file: file.changed)
        over = sum(file.size_bytes for file in files) - self._budget_bytes
        freed: list[Freed] = []
        for file in files if over > 0 else ():
            if over <= 0 or len(freed) >= self._max_files:
                break
            if self._may_go(file) and (one := self._free(file)) is not None:
                freed.append(one)
                over -= one.size_bytes
        return Relief(tuple(freed), sum(one.size_bytes for one in freed), max(0, over))

    def _files(self) -> Iterator[_File]:
        for place, _, names in os.walk(self._directory):
            for name in names:
                path = Path(place, name)
                try:
                    found = path.lstat()
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(found.st_mode) and path.absolute() not in (self._journal, self._room):
                    relative = path.relative_to(self._directory).as_posix()
                    yield _File(path, relative, found.st_size, found.st_mtime, found.st_ino)

    def _may_go(self, file: _File) -> bool:
        name = file.name
        if time.time() - file.changed < self._min_age_s:
            return False
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._protected):
            return False
        if self._pinned is not None and self._pinned(name):
            return False
        return self._verifier is None or not self._verifier.last_seen_leased(self._resource_id(name))

    def _free(self, file: _File) -> Freed | None:
        if not self._is_there(file):
            return None
        freed = Freed(file.name, self._resource_id(file.name), file.size_bytes, time.time())
        if self._dry_run:
            return freed
        self._write([{"freed": asdict(freed)}])
        # Until the journal was on disk, somebody may have put another file there.
        if self._is_there(file):
            with contextlib.suppress(OSError):
                file.path.unlink(missing_ok=True)
                return freed
        elif not os.path.lexists(file.path):
            return freed  # by somebody else
        self._write([{"reported": {**asdict(freed), "told": "there"}}])
        return None

    def _is_there(self, file: _File) -> bool:
        """Still, and as it was found."""
        try:
            now = file.path.lstat()
        except FileNotFoundError:
            return False
        return (now.st_ino, now.st_size, now.st_mtime) == (file.inode, file.size_bytes, file.changed)

    # --- the journal --------------------------------------------------------------------------------------------------

    def _keep_room(self) -> None:
        if self._dry_run or self._room.exists():
            return
        try:
            with open(self._room, "xb") as file:
                os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        except OSError as error:
            self._room.unlink(missing_ok=True)
            _log.warning("no room can be kept for %s: %s", self._journal, error)

    def _write(self, records: Sequence[dict[str, Any]]) -> None:
        """On disk when this returns."""
        try:
            self._append(records)
        except OSError as error:
            if error.errno not in _FULL or not self._room.exists():
                raise
            self._room.unlink()
            self._append(records)

    def _append(self, records: Sequence[dict[str, Any]]) -> None:
        """A last line that was left half, by a crash or a full disk, is ended, not continued."""
        is_new = not self._journal.exists()
        with open(self._journal, "a+b") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write("".join(json.dumps(record) + "\n" for record in records).encode())
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            directory = os.open(self._journal.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)

    def unreported(self) -> list[Freed]:
        """What was freed and not told to the cluster yet, by this process or an earlier one."""
        open_: dict[tuple[str, float], Freed] = {}
        for line in self._journal.read_bytes().splitlines() if self._journal.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # half a line: its file was not freed
            freed = Freed(**(record.get("freed") or record["reported"]))
            if "freed" in record:
                open_[freed.path, freed.at_epoch] = freed
            else:
                open_.pop((freed.path, freed.at_epoch), None)
        return list(open_.values())

    # --- the cluster --------------------------------------------------------------------------------------------------

    async def report(self, client: Client) -> list[Freed]:
        """Tells the cluster of what was freed. Raises Unavailable when it is not there after all, and Denied when
        something else answers for it; then do it again."""
        reported = []
        for freed in self.unreported():
            if (self._directory / freed.path).exists():
                told: Told = "there"
            else:
                told = await self._told(client, freed.resource_id)
            reported.append(Freed(freed.path, freed.resource_id, freed.size_bytes, freed.at_epoch, told))
            await asyncio.to_thread(self._write, [{"reported": asdict(reported[-1])}])
        return reported

    async def _told(self, client: Client, resource_id: str) -> Told:
        try:
            await client.call("DELETE", f"/resources/{quote(resource_id, safe='')}")
        except Denied as refusal:
            if not refusal.code:
                raise  # the page of a proxy, say: the cluster was not told
            if isinstance(refusal, NotFound | Gone):
                return "unknown"
            return "in_use" if isinstance(refusal, Conflict) else "refused"
        return "reclaiming"

    async def run(
        self,
        client: Client,
        *,
        every: float = 5.0,
        patience: float = 30.0,
        on_relief: Callable[[Relief], None] | None = None,
        on_report: Callable[[list[Freed]], None] | None = None,
    ) -> None:
        """Until cancelled, or the client is closed, which is raised. `patience`: how long the cluster must have been
        silent before anything is freed; who refuses is not silent."""
        heard = time.monotonic()
        await asyncio.to_thread(self._keep_room)
        while True:
            reported, relief = [], Relief((), 0, 0)
            try:
                try:
                    await revision(client)
                    heard = time.monotonic()
                    reported = await self.report(client)
                except (Unavailable, OutcomeUnknown):
                    if client.calls.closed:
                        raise
                    if time.monotonic() - heard >= patience:
                        relief = await asyncio.to_thread(self.relieve)
                except Denied as error:
                    heard = time.monotonic()
                    _log.error("the safety valve of %s is refused: %s; it is tried again", self._directory, error)
            except OSError as error:
                _log.error("the safety valve of %s: %s; it is tried again", self._directory, error)
            if reported and on_report is not None:
                on_report(reported)
            if on_relief is not None and (relief.freed or relief.short_bytes):
                on_relief(relief)
            await asyncio.sleep(every)
