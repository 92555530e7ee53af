"""Which data directory a node runs on, and which one its peers knew it by.

A node that lost its directory has forgotten its votes and what it acknowledged; under its old id it could elect a
leader that lacks committed writes. Each directory therefore has a random store id, told first on every link, and
each node keeps the store ids it has met. One that comes back with another is ignored until an operator replaces it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import msgpack

from cluster.ports import Disk, Member, Random

_NAME = "identity"
_NEVER = 1 << 63


class IdentityCorrupt(Exception):
    """The file of store ids is damaged. The message says what to do."""


class Identity:
    def __init__(self, disk: Disk, directory: str, random: Random) -> None:
        self._disk = disk
        self._directory = directory
        # A peer's store id, and how far this node had applied when it learned it.
        self._known: dict[str, tuple[int, int]] = {}
        if _NAME in disk.names(directory):
            self.store_id, self._known = self._read()
        else:
            self.store_id = random.getrandbits(62)
            self._write()

    def admits(self, peer: str, store_id: int, applied: int) -> bool:
        """Whether `peer` still has the directory it had; the first one it shows is remembered."""
        known = self._known.get(peer)
        if known is None:
            self._known[peer] = (store_id, applied)
            self._write()
            return True
        return known[0] == store_id

    def follow(self, members: Iterable[Member]) -> None:
        """Forget those who left, and what was known of an id before it was added again: it may have a new directory."""
        since = {member.id: member.since for member in members}
        kept = {peer: held for peer, held in self._known.items() if held[1] >= since.get(peer, _NEVER)}
        if kept != self._known:
            self._known = kept
            self._write()

    def _read(self) -> tuple[int, dict[str, tuple[int, int]]]:
        path = f"{self._directory}/{_NAME}"
        file = self._disk.open(path)
        try:
            content = file.pread(file.size(), 0)
        finally:
            file.close()
        if len(content) < 4 or zlib.crc32(content[4:]) != int.from_bytes(content[:4], "big"):
            raise IdentityCorrupt(
                f"{path} is damaged: this node cannot prove which directory it had. Remove the member from the "
                "cluster, empty its data directory, and add it again under a new id"
            )
        store_id, known = msgpack.unpackb(content[4:])
        return store_id, {peer: (store, applied) for peer, store, applied in known}

    def _write(self) -> None:
        row: list[Any] = [self.store_id, sorted([peer, *known] for peer, known in self._known.items())]
        body = msgpack.packb(row)
        path = f"{self._directory}/{_NAME}"
        file = self._disk.create(path + ".tmp")
        file.pwrite(zlib.crc32(body).to_bytes(4, "big") + body, 0)
        file.fdatasync()
        file.close()
        self._disk.rename(path + ".tmp", path)
        self._disk.sync_directory(self._directory)
