"""Which data directory a node runs on, and which one its peers knew it by.

A node that lost its directory has forgotten its votes and what it acknowledged; under its old id it could elect a
leader that lacks committed writes. Each directory therefore has a random store id, told first on every link, and
each node keeps the store ids it has met. One that comes back with another is ignored until an operator replaces it.
That a directory is not an older copy of itself, `cluster.lives` looks after.
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
        self._since: dict[str, int] = {}
        """Where the log added each member, by what peers have applied: this node may not have come so far."""
        body = self._file.read()
        if body is None:
            self.store_id = random.getrandbits(62)
            self._write()
        else:
            self.store_id, known = msgpack.unpackb(body)
            self._known = {peer: (store, applied) for peer, store, applied in known}

    def admits(self, peer: str, store_id: int, applied: int) -> bool:
        """Whether `peer` still has the directory it had; the first one it shows since it was added is remembered."""
        known, since = self._known.get(peer), self._since.get(peer, 0)
        if known is None or known[1] < since:
            self._known[peer] = (store_id, max(applied, since))
            self._write()
            return True
        return known[0] == store_id

    def met(self, peer: str) -> tuple[int, int] | None:
        """By which directory `peer` is known, and since when; another one, or a later time, if it was replaced."""
        return self._known.get(peer)

    def introduce(self, members: Iterable[Member]) -> None:
        """A peer that is heard has applied that these are members.

        One of them may have been replaced under its id while this node was away, and lead: to hear of it from the log,
        this node must hear the one it does not know.
        """
        for member in members:
            self._since[member.id] = max(member.since, self._since.get(member.id, 0))

    def follow(self, members: Iterable[Member]) -> None:
        """Forget those who left, and what was known of an id before it was added again: it may have a new directory.

        `members`: of the configuration that was applied and of those behind it in the log, which may yet be undone. So
        what is known of an id goes only if none of them has it from before.
        """
        since: dict[str, int] = {}
        for member in members:
            since[member.id] = min(member.since, since.get(member.id, member.since))
        kept = {peer: held for peer, held in self._known.items() if held[1] >= since.get(peer, _NEVER)}
        if kept != self._known:
            self._known = kept
            self._write()

    def _write(self) -> None:
        row: list[Any] = [self.store_id, sorted([peer, *known] for peer, known in self._known.items())]
        self._file.write(msgpack.packb(row))
