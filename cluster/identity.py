"""Which data directory a node runs on, and which one its peers knew it by.

A node that lost its directory has forgotten its votes and what it acknowledged; under its old id it could elect a
leader that lacks committed writes. Each directory therefore has a random store id, told first on every link, and
each node keeps the store ids it has met. One that comes back with another is ignored until an operator replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgpack

from cluster.ports import Disk, Member, Random
from cluster.recordfile import RecordFile

_NAME = "identity"
_NEVER = 1 << 63


class Identity:
    def __init__(self, disk: Disk, directory: str, random: Random) -> None:
        self._file = RecordFile(disk, directory, _NAME)
        # A peer's store id, and how far this node had applied when it learned it.
        self._known: dict[str, tuple[int, int]] = {}
        body = self._file.read()
        if body is None:
            self.store_id = random.getrandbits(62)
            self._write()
        else:
            self.store_id, known = msgpack.unpackb(body)
            self._known = {peer: (store, applied) for peer, store, applied in known}

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

    def _write(self) -> None:
        row: list[Any] = [self.store_id, sorted([peer, *known] for peer, known in self._known.items())]
        self._file.write(msgpack.packb(row))
