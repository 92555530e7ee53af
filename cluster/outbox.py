"""Messages of one step, held until they may leave: promises only after what they promise is durable."""

from __future__ import annotations

from cluster.journal import Journal
from cluster.ports import Message, Transport

FULL_BYTES = 4 * 1024 * 1024
"""Unsent bytes of one link beyond which nothing more is prepared for it."""

_PROMISES = frozenset({"next_node_idx", "response_vote", "request_vote", "pre_vote_reply", "echo", "stale_term"})
"""Messages that vouch for this node's disk. The rest, appends above all, may overtake the fdatasync: a leader's
own copy counts only once the step that sent it has also synced it."""


class Outbox:
    def __init__(self, transport: Transport, journal: Journal) -> None:
        self._transport = transport
        self._journal = journal
        self._messages: list[tuple[str, Message]] = []
        self._bytes: dict[str, int] = {}

    def add(self, peer: str, message: Message) -> bool:
        self._messages.append((peer, message))
        entries = message.get("entries")
        if entries:
            self._bytes[peer] = self._bytes.get(peer, 0) + sum(len(entry[0]) for entry in entries)
        elif message.get("serialized"):
            self._bytes[peer] = self._bytes.get(peer, 0) + len(message["serialized"][0])
        return True

    def is_full(self, peer: str) -> bool:
        return self._bytes.get(peer, 0) + self._transport.buffered_bytes(peer) > FULL_BYTES

    @property
    def pending(self) -> bool:
        return bool(self._messages)

    def clear(self) -> None:
        self._messages.clear()
        self._bytes.clear()

    def send_ahead(self) -> None:
        """Write what may leave at once."""
        messages, self._messages = self._messages, []
        self._bytes.clear()
        if self._journal.hard_dirty:
            self._journal.sync()
        for peer, message in messages:
            if message["type"] in _PROMISES:
                self._messages.append((peer, message))
            else:
                self._transport.send(peer, message)

    def send_between(self) -> bool:
        """The same between two steps; False if it must wait for the next one, as a new term is not durable yet."""
        if self._journal.hard_dirty:
            return False
        self.send_ahead()
        return True

    def flush(self) -> None:
        """The same, then make the journal durable and write the rest."""
        self.send_ahead()
        promises, self._messages = self._messages, []
        self._journal.sync()
        for peer, message in promises:
            self._transport.send(peer, message)


def ends_sending(message: Message) -> bool:
    """Where the library's loop must stop: with no snapshot to send yet, or after a snapshot's last chunk, when it
    would go on from a place that only the snapshot's index can tell."""
    return "serialized" in message and (message["serialized"] is None or bool(message["serialized"][2]))
