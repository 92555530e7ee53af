"""Who is in the cluster, as the log says it.

A configuration is an entry of the log and counts from the moment it is in the log (Raft thesis §4.1), so a
truncated entry takes its configuration with it and a restart finds the latest one in the journal. Changes go one
at a time, each by one voter at most: any majority before meets any majority after.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgpack

from cluster.ports import Disk, Member
from cluster.recordfile import RecordFile

PAYLOAD_KIND = b"m"
_BASE_NAME = "members"


class Membership:
    """The configurations in the log, oldest first; the last one is in force."""

    def __init__(self, node_id: str, base: tuple[Member, ...]) -> None:
        self._node_id = node_id
        self._configs: list[tuple[int, tuple[Member, ...]]] = [(0, base)]
        self.version = 0
        """Grows with every change of the configuration in force."""
        self._voters: tuple[int, frozenset[str]] = (0, _voters(base))
        """Those of the configuration in force, and the version they are of: every step asks."""

    # --- fed by the journal ----------------------------------------------------------------------------------

    def on_add(self, index: int, command: bytes) -> None:
        if command[:2] == b"\0" + PAYLOAD_KIND and index > self.index:
            self._configs.append((index, decode(command[2:])))
            self.version += 1

    def on_truncate(self, index: int) -> None:
        kept = self._configs[:1] + [held for held in self._configs[1:] if held[0] < index]
        if len(kept) != len(self._configs):
            self._configs = kept
            self.version += 1

    def restore(self, index: int, config: bytes) -> None:
        """A snapshot replaces all that was known up to its index."""
        later = [held for held in self._configs if held[0] > index]
        self._configs = [(index, decode(config)), *later]
        self.version += 1

    # --- what it knows ---------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[Member, ...]:
        return self._configs[-1][1]

    @property
    def index(self) -> int:
        return self._configs[-1][0]

    def member(self, node_id: str) -> Member | None:
        return next((member for member in self.members if member.id == node_id), None)

    @property
    def voters(self) -> frozenset[str]:
        if self._voters[0] != self.version:
            self._voters = (self.version, _voters(self.members))
        return self._voters[1]

    @property
    def learners(self) -> frozenset[str]:
        return frozenset(member.id for member in self.members if not member.voter)

    @property
    def votes(self) -> bool:
        """Whether this node's own vote counts."""
        return self._node_id in self.voters

    def pending(self, commit_index: int) -> bool:
        """A change is in the log and not committed yet."""
        return self.index > commit_index

    def voter_sets(self, commit_index: int) -> list[frozenset[str]]:
        """The voters that must agree: those in force and, until a change commits, those before it."""
        if self.index <= commit_index:
            return [self.voters]
        sets = [_voters(members) for index, members in self._configs if index > commit_index]
        committed = [_voters(members) for index, members in self._configs if index <= commit_index]
        return committed[-1:] + sets

    def reachable(self, commit_index: int) -> tuple[Member, ...]:
        """Everybody in a configuration that may yet turn out to be the one that counts.

        A change in the log that is not committed may be undone, and by one of those whom it removes.
        """
        first = self.committed_index(commit_index)
        return tuple(member for index, members in self._configs if index >= first for member in members)

    def committed_index(self, commit_index: int) -> int:
        """Where the newest configuration stands that cannot be undone any more."""
        return max((index for index, _ in self._configs if index <= commit_index), default=self._configs[0][0])

    def encoded_at(self, index: int) -> bytes:
        """The configuration that was in force at `index`, for a snapshot taken there."""
        return encode(self.at(index))

    def at(self, index: int) -> tuple[Member, ...]:
        """The configuration that was in force at `index`."""
        return [members for held, members in self._configs if held <= index][-1]


def _voters(members: Iterable[Member]) -> frozenset[str]:
    return frozenset(member.id for member in members if member.voter)


def encode(members: Iterable[Member]) -> bytes:
    rows = [[member.id, member.peer, member.http, member.voter, member.since] for member in members]
    return bytes(msgpack.packb(rows))


def decode(body: bytes) -> tuple[Member, ...]:
    return tuple(Member(*row) for row in msgpack.unpackb(body))


def first_members(disk: Disk, directory: str, members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The configuration this data directory began with. Settings that change later do not rewrite history."""
    file = RecordFile(disk, directory, _BASE_NAME)
    body = file.read()
    if body is not None:
        return decode(body)
    file.write(encode(members))
    return members
