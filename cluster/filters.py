"""What stands between the wire and the library: each message is checked, mended or dropped on its way.

Every rule here closes a hazard of the library from outside; the numbers are those of docs/DIVERGENCE.md.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.clusterclock import ClusterClock
from cluster.compaction import Compaction
from cluster.elections import Elections
from cluster.engine import Engine
from cluster.guards import Guards
from cluster.leadership import Leadership
from cluster.ports import Clock, Message


class Filters:
    """`incoming` before the library sees a message, `delivered` after it did, `outgoing` on what it sends."""

    def __init__(
        self,
        engine: Engine,
        elections: Elections,
        leadership: Leadership,
        compaction: Compaction,
        cluster_clock: ClusterClock,
        *,
        clock: Clock,
        guards: Guards,
        send: Callable[[str, Message], bool],
    ) -> None:
        self._engine = engine
        self._elections = elections
        self._leadership = leadership
        self._compaction = compaction
        self._cluster_clock = cluster_clock
        self._clock = clock
        self._guards = guards
        self._send = send
        self._append: Message | None = None
        self._hint: int | None = None
        self._hint_term = -1
        self._next_before = 0
        self._rewound_at: dict[str, float] = {}

    # --- to the library --------------------------------------------------------------------------------------

    def incoming(self, peer: str, message: Message) -> Message | None:
        kind = message["type"]
        if kind == "append_entries":
            return self._incoming_append(peer, message)
        if kind == "next_node_idx":
            return self._incoming_ack(peer, message)
        if kind == "request_vote":
            return message if self._elections.may_vote(message) else None
        if kind == "response_vote":
            return message if self._elections.counts_vote(peer, message["term"]) else None
        return None

    def _incoming_append(self, peer: str, message: Message) -> Message | None:
        if "transmission" in message and self._guards.whole_entries:
            return None
        if message["term"] < self._engine.term:
            if self._guards.stale_term_answer:
                self._send(peer, {"type": "stale_term", "current_term": self._engine.term})
            return None
        self._append = message
        if self._hint_term != message["term"]:
            self._hint, self._hint_term = None, message["term"]
        self._elections.heard_leader(peer, message["term"])
        self._cluster_clock.hear(message["now_ms"], message["term"])
        if "prevLogIdx" in message:
            return message
        return self._incoming_snapshot(peer, message)

    def _incoming_snapshot(self, peer: str, message: Message) -> Message:
        """No log matching happens on this path, so it may not move the commit index (H1)."""
        message = dict(message)
        if self._guards.snapshot_commit:
            message["commit_index"] = 0
        if message.get("serialized") is not None:
            wanted = message["snap_index"] > self._engine.applied_index or not self._guards.snapshot_contiguous
            if wanted:
                self._compaction.expect(peer, message["snap_index"], message["snap_offset"])
            else:
                message["serialized"] = None
        # The library answers a snapshot only at its end; the leader must hear of us before.
        self._send(peer, {"type": "echo", "term": message["term"], "echo": message["sent"]})
        return message

    def _incoming_ack(self, peer: str, message: Message) -> Message | None:
        engine = self._engine
        if not engine.is_leader or not engine.knows(peer):
            return None
        if message["term"] != engine.term and self._guards.ack_term:
            return None
        self._leadership.on_echo(peer, message["term"], message["echo"])
        if message["next_node_idx"] - 1 > engine.journal.last_index:
            return None
        self._next_before = engine.next_index(peer)
        if not message["reset"]:
            return message
        if message["echo"] <= self._rewound_at.get(peer, -1.0) and self._guards.reset_hint:
            # An answer to something sent before the last rewind: it would only send the same again.
            engine.heard(peer)
            return None
        if self._guards.reset_clamp:
            floor = engine.match_index(peer) + 1
            message = dict(message, next_node_idx=max(message["next_node_idx"], floor))
        return message

    def delivered(self, peer: str, message: Message) -> None:
        if message["type"] != "next_node_idx":
            self._append = None
            return
        if message["reset"]:
            self._rewound_at[peer] = self._clock.now()
            self._engine.hurry()
        elif self._engine.next_index(peer) < self._next_before and self._guards.reset_clamp:
            # A late acknowledgement must not rewind what is already on its way (library line 1082).
            self._engine.set_next_index(peer, self._next_before)

    # --- from the library ------------------------------------------------------------------------------------

    def outgoing(self, peer: str, message: Message) -> Message | None:
        kind = message["type"]
        if kind == "append_entries":
            message["sent"] = self._clock.now()
            message["now_ms"] = self._cluster_clock.said(message["sent"], self._leadership.lease_valid())
            if "serialized" in message:
                message["snap_index"], message["snap_offset"] = self._compaction.position(peer)
        elif kind == "next_node_idx":
            self._outgoing_ack(message)
        elif kind == "request_vote":
            mark = self._elections.transfer_mark(message["term"])
            if mark is not None:
                message["transfer"] = mark
        elif kind != "response_vote":
            return None
        return message

    def _outgoing_ack(self, message: Message) -> None:
        append = self._append or {}
        message["term"] = self._engine.term
        message["echo"] = append.get("sent", 0.0)
        message["applied"] = self._engine.applied_index
        if message["success"]:
            self._hint = None
        elif message["reset"] and self._guards.reset_hint:
            message["next_node_idx"] = self._restart_from(append.get("prevLogIdx"))

    def _restart_from(self, prev_index: int | None) -> int:
        """Where the leader should go on: everything committed here matches already (H10)."""
        last = self._engine.journal.last_index
        committed = max(self._engine.commit_index, self._engine.applied_index)
        hint = last + 1 if prev_index is None or prev_index > last else committed + 1
        self._hint = hint if self._hint is None else min(hint, self._hint)
        return self._hint
