"""Which life of its data directory a node is in, and how far its peers have seen it come.

A log that was put back from a copy looks whole, and has forgotten votes and acknowledged writes as a lost one has. So
every start begins a life, with a number of its own. A node tells the numbers of its latest lives, and where its log
ends, first on every link; its peers remember the newest life they met and how far it had applied. One that has another
life in that place, or whose log ends before that, went back: it is ignored until an operator replaces it. Its own log
has the count of lives too, in the name of a file, so that a log that is older than its node is refused at the start.

All of it is in files that a release from before it does not look at: a cluster may still go back to that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import msgpack

from cluster.levels import FIELD
from cluster.ports import Disk, Message
from cluster.recordfile import RecordFile
from cluster.segments import ADVICE, JournalHole

Met = tuple[int, int]
"""The directory a peer is known by: another one, or one that was taken in anew, has nothing to do with what was."""

_NAME: Final = "identity.lives"
_IN_LOG: Final = re.compile(r"life-(\d{20})")
_TOLD: Final = 8
"""Lives. A peer that missed more of them cannot tell: a status has 64 bytes for this and the levels."""
_NUMBER_BYTES: Final = 4
SEEN_EVERY = 1 << 14
"""Entries. How far a peer has come is durable to within so many, for when all nodes lose power at once."""


class _Past(NamedTuple):
    """What a node tells of itself. `numbers`: of its latest lives, the newest first."""

    last_index: int
    lives: int
    numbers: bytes

    def number(self, age: int) -> bytes:
        """Of the life so many before the newest; empty if it is not told."""
        return self.numbers[_NUMBER_BYTES * age : _NUMBER_BYTES * (age + 1)]


class _Known(NamedTuple):
    """What is known of a peer: its newest life that was met, how far it had applied, and whether it went back since."""

    met: Met
    lives: int
    number: bytes
    applied: int
    went_back: bool


class Lives:
    def __init__(
        self, disk: Disk, directory: str, number: int, met: Callable[[str], Met | None], *, check_log: bool
    ) -> None:
        """Begins a life, durably. `met`: by which directory a peer is known now. JournalHole if the log is older."""
        self._file = RecordFile(disk, directory, _NAME)
        self._met = met
        body = self._file.read()
        self._count, self._numbers, rows = (0, b"", []) if body is None else msgpack.unpackb(body)
        known = {peer: _Known(tuple(met_as), *rest) for peer, met_as, *rest in rows}
        self._known = {peer: held for peer, held in known.items() if held.met == met(peer)}
        self._written: dict[str, int] = {}
        """How far the file says that each had applied."""
        self._begin(disk, f"{directory}/log", number, check_log=check_log)

    def _begin(self, disk: Disk, log: str, number: int, *, check_log: bool) -> None:
        """In the log first: after a crash between the two it is of a life whose number nobody knows, and whole."""
        lives = {name: int(found[1]) for name in disk.names(log) if (found := _IN_LOG.fullmatch(name))}
        of_log = max(lives.values(), default=0)
        if of_log < self._count and check_log:
            raise JournalHole(
                f"{log} is lost, or an older one is in its place: it is from start {of_log} of this node, which was "
                f"started {self._count} times. {ADVICE}"
            )
        own = (number % (1 << 8 * _NUMBER_BYTES)).to_bytes(_NUMBER_BYTES, "big")
        before = self._numbers if of_log <= self._count else b""
        self._numbers = (own + before)[: _NUMBER_BYTES * _TOLD]
        self._count = max(of_log, self._count) + 1
        disk.create(f"{log}/life-{self._count:020d}").close()
        disk.sync_directory(log)
        self._write()
        for name in lives:
            disk.unlink(f"{log}/{name}")

    def told(self, last_index: int) -> _Past:
        """Where this node's log ends, and its lives: for a status message, behind the levels."""
        return _Past(last_index, self._count, self._numbers)

    def believes(self, peer: str, message: Message, acknowledged: int) -> bool:
        """Whether the first status on a link shows no less than is known of `peer`, and remembers what it shows.

        `acknowledged`: what is committed and was acknowledged by it to this node, which leads.
        """
        past, met = _heard(message), self._met(peer)
        if past is None or met is None:
            return True
        known = self._known.get(peer)
        if known is None or known.met != met:
            self._learn(peer, _Known(met, past.lives, past.number(0), message["applied"], went_back=False))
            return True
        reached = max(known.applied, acknowledged)
        if not _continues(known, past) or past.last_index < reached:
            self._learn(peer, known._replace(applied=reached, went_back=True))
            return False
        reached = max(reached, message["applied"])
        self._learn(peer, _Known(met, past.lives, past.number(0), reached, went_back=False))
        return True

    def follow(self, peer: str, applied: int) -> None:
        """A later status on the same link. It is durable with the peer's next life, and now and then."""
        known = self._known.get(peer)
        if known is not None and applied > known.applied:
            self._known[peer] = known._replace(applied=applied)
            if applied - self._written[peer] >= SEEN_EVERY:
                self._write()

    def _learn(self, peer: str, now: _Known) -> None:
        before, self._known[peer] = self._known.get(peer), now
        if before is None or before._replace(applied=now.applied) != now:
            self._write()

    def _write(self) -> None:
        self._written = {peer: known.applied for peer, known in self._known.items()}
        rows = [[peer, *known] for peer, known in sorted(self._known.items())]
        self._file.write(msgpack.packb([self._count, self._numbers, rows]))


def _continues(known: _Known, past: _Past) -> bool:
    """Whether the life that is known is one of its past. One that went back must show it, however often it starts."""
    age = past.lives - known.lives
    shown = past.number(age) if age >= 0 else b""
    return shown == known.number if shown or age < 0 else not known.went_back


def _heard(message: Message) -> _Past | None:
    """None: it is of a release that counts no lives."""
    try:
        _, _, last_index, lives, numbers, *_ = msgpack.unpackb(message.get(FIELD, b""))
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    sound = type(last_index) is int and type(lives) is int and type(numbers) is bytes and len(numbers) >= _NUMBER_BYTES
    return _Past(last_index, lives, numbers) if sound else None
