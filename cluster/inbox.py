"""Messages from peers, held until the next step, then each to the part it is for.

Nothing is heard from a peer before it has shown the data directory it is known by (`cluster.identity`), and that this
is no older copy of it (`cluster.lives`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.levels import heard, unfit
from cluster.membership import decode
from cluster.ports import Message
from cluster.status import PeerReport

if TYPE_CHECKING:
    from cluster.node import ClusterNode

Handler = Callable[[str, Message], None]

_OF_READS = ("read_index", "read_index_reply")


class Inbox:
    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._messages: list[tuple[str, Message]] = []
        self._admitted: set[str] = set()
        self._refused: set[str] = set()
        self._handlers: dict[str, Handler] = {
            "status": self._on_status,
            "echo": self._on_echo,
            "pre_vote": node.elections.on_pre_vote,
            "pre_vote_reply": node.elections.on_pre_vote_reply,
            "stale_term": lambda _peer, message: node.elections.on_stale_term(message),
            "timeout_now": node.elections.on_timeout_now,
            "read_index": node.reads.on_read_index,
            "read_index_reply": lambda _peer, message: node.reads.on_read_index_reply(message),
            "forward": node.proposer.on_forward,
            "forward_reply": node.proposer.on_forward_reply,
        }

    def add(self, peer: str, message: Message) -> None:
        self._messages.append((peer, message))

    def answer_at_once(self, peer: str, message: Message) -> bool:
        """What reads ask and are told needs no step: nothing of it enters the log. False: it must wait for one."""
        node = self._node
        if message["type"] not in _OF_READS or peer not in self._admitted or node.closed or node.dead is not None:
            return False
        self._handlers[message["type"]](peer, message)
        node.reads.pump()
        if not node.outbox.send_between() or node.notice.hasten() or node.reads.confirming:
            node.kick()
        return True

    def is_awaited(self, message: Message) -> bool:
        """Not an acknowledgement of what is committed anyway: half of all that a leader hears. The next step, which is
        a part of a heartbeat away at most, is early enough for what else it says."""
        node = self._node
        if message["type"] != "next_node_idx" or message["reset"] or not node.engine.is_leader:
            return True
        news = message["next_node_idx"] > node.engine.commit_index + 1
        return news or node.reads.pending or bool(node.engine.paced) or node.changes.handing_over

    def unlinked(self, peer: str) -> None:
        """What it said on a link that is gone is not heard any more; on the next one it shows itself again."""
        self._admitted.discard(peer)
        self._messages = [held for held in self._messages if held[0] != peer]

    def take(self) -> None:
        messages, self._messages = self._messages, []
        for peer, message in messages:
            if peer in self._admitted or message["type"] == "status":
                self._handlers.get(message["type"], self._to_library)(peer, message)

    def _to_library(self, peer: str, message: Message) -> None:
        node = self._node
        filtered = node.filters.incoming(peer, message)
        if filtered is not None:
            node.engine.deliver(peer, filtered)
            node.filters.delivered(peer, filtered)
            node.follow_log()

    def _on_status(self, peer: str, message: Message) -> None:
        node = self._node
        if node.guards.store_identity and not self._is_whole(peer, message):
            return
        node.board.on_report(peer, PeerReport.of(message, node.clock.now()))
        if not self._levels_fit(peer, message):
            return
        if peer not in self._admitted:
            self._admitted.add(peer)
            self._refused.discard(peer)
            node.engine.linked(peer)
            node.engine.hurry()
        if message["blank"]:
            node.elections.heard_blank(peer)
        node.board.on_config(message["config_index"], message["config"])
        if message["config_index"] <= message["applied"]:
            node.identity.introduce(decode(message["config"]))

    def _is_whole(self, peer: str, message: Message) -> bool:
        """Whether the peer has the directory that it had, and all that was in it."""
        node, engine = self._node, self._node.engine
        if not node.identity.admits(peer, message["store_id"], engine.applied_index):
            self._refuse(peer, "peer_lost_its_directory")
            return False
        if peer in self._admitted:
            node.lives.follow(peer, message["applied"])
            return True
        acknowledged = min(engine.match_index(peer), engine.commit_index) if engine.is_leader else 0
        if not node.lives.believes(peer, message, acknowledged):
            self._refuse(peer, "peer_went_back")
            return False
        return True

    def _refuse(self, peer: str, kind: str) -> None:
        if peer not in self._refused:
            self._refused.add(peer)
            remedy = (
                f"holdfast member replace {peer} NEW --peer ... --http ...; if {peer} was replaced already, while this "
                "node was away, start the other members: they tell this node so"
            )
            self._node.on_event(kind, {"level": "warning", "peer": peer, "do": remedy})

    def _levels_fit(self, peer: str, message: Message) -> bool:
        """Whether this node and the peer apply entries alike: else one of the two has no part in this cluster."""
        node = self._node
        reason = unfit(node.levels, node.engine.applied_index, peer, message)
        if reason is not None:
            node.fatal(reason)
            return False
        known, level = heard(message)[0], node.levels.level
        if known >= level:
            return True
        if peer in self._admitted:
            self._admitted.discard(peer)
            node.engine.unlinked(peer)
        if peer not in self._refused:
            self._refused.add(peer)
            told = {"peer": peer, "knows": known, "in_force": level}
            node.on_event("peer_too_old", {"level": "warning", **told, "do": "start it with a newer release"})
        return False

    def _on_echo(self, peer: str, message: Message) -> None:
        node = self._node
        if message["term"] == node.engine.term and node.engine.is_leader and node.engine.knows(peer):
            node.leadership.on_echo(peer, message["term"], message["echo"])
            node.engine.heard(peer)
