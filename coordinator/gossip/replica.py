"""The protocol: what one node holds, and what it does with a message. Pure: no clock, no chance, no input or output.

Three rules make a purge safe, and each is one line of code below (docs/TOMBSTONES.md has the proof):

- the giver counts the receiver as a holder before the copy leaves (`_give`);
- a node joins `buried` only in the step in which it drops its copy and adds all holders it knows (`_bury`);
- a tombstone goes only when `buried` covers `holders`, unchanged for a number of rounds, and a keeper with a lower id
  that knows at least as much said in this message that it stays (`_steps_down`).

Every method that changes anything leaves the ids it changed in `changed`, for the node to store before it sends.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from coordinator.gossip.limits import (
    ASKED_ROUNDS,
    CONTENT_BYTES,
    HOT_ROUNDS,
    ITEMS,
    PAGE_BYTES,
    PAGE_ITEMS,
    STABLE_ROUNDS,
    UNCONFIRMED,
)
from coordinator.gossip.messages import Gift, Message, Notice, Offer, Want
from coordinator.gossip.tally import STANDARD, Shape, Tally
from coordinator.machine.faults import require

_TOKEN_BITS = 31
"""A token is a number of this start and one of this want: none is ever used twice."""


class Refused(Exception):
    """What the owner of a node asked cannot be done; the text says why. Nothing changed."""


@dataclass(frozen=True, slots=True)
class Record:
    content: bytes
    holders: Tally
    unconfirmed: frozenset[str] = frozenset()
    """Given a copy by this node, and not heard of since."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    holders: Tally
    buried: Tally
    unconfirmed: frozenset[str] = frozenset()

    @property
    def complete(self) -> bool:
        return not self.unconfirmed and self.buried.covers(self.holders)


Item = Record | Tombstone


@dataclass(slots=True)
class Counters:
    """Since the start: copies dropped for a tombstone, tombstones dropped for a keeper, copies offered in vain."""

    buried: int = 0
    stepped_down: int = 0
    refused_copies: int = 0


class Replica:
    """One node's records and tombstones."""

    def __init__(
        self,
        node_id: str,
        incarnation: int = 1,
        *,
        shape: Shape = STANDARD,
        stable_rounds: int = STABLE_ROUNDS,
        items: int = ITEMS,
    ) -> None:
        self.node_id = node_id
        self.shape = shape
        self.round = 0
        self.items: dict[str, Item] = {}
        self.changed: set[str] = set()
        self.forwards: list[Notice] = []
        """Tombstones this node stepped down from: for all its peers, at once."""
        self.counters = Counters()
        self._stable_rounds = stable_rounds
        self._most_items = items
        self._since: dict[str, int] = {}
        self._hot: dict[str, int] = {}
        self._ring: deque[str] = deque()
        self._asked: dict[str, tuple[int, int]] = {}
        self._tokens = itertools.count(incarnation << _TOKEN_BITS)

    # --- the owner's side ---------------------------------------------------------------------------------------------

    def create(self, record_id: str, content: bytes) -> None:
        """A new record. Its id is used once: a deleted id never comes back."""
        held = self.items.get(record_id)
        if isinstance(held, Tombstone):
            raise Refused(f"{record_id} was deleted; choose another id")
        if held is not None:
            raise Refused(f"{record_id} is here already; records do not change")
        if len(content) > CONTENT_BYTES:
            raise Refused(f"{len(content)} bytes are more than the {CONTENT_BYTES} a record may have")
        if not self._room:
            raise Refused(f"this node holds {self._most_items} records and tombstones, and no more")
        self._put(record_id, Record(content, self._alone))

    def delete(self, record_id: str) -> None:
        held = self.items.get(record_id)
        if held is None:
            raise Refused(f"{record_id} is not here; delete it where it is")
        if isinstance(held, Record):
            self._bury(record_id, Tally(self.shape), Tally(self.shape))

    def load(self, items: Iterable[tuple[str, Item]]) -> None:
        """What was stored. Stability counts from now: a node that was away does not know what it missed."""
        for record_id, item in items:
            self._put(record_id, item)
        self.changed.clear()

    def tick(self) -> None:
        """One round has passed."""
        self.round += 1
        self._hot = {each: at for each, at in self._hot.items() if at + HOT_ROUNDS > self.round}
        self._asked = {each: (token, at) for each, (token, at) in self._asked.items() if at + ASKED_ROUNDS > self.round}

    def keeps(self, record_id: str) -> bool:
        """Whether this node is a keeper of that tombstone."""
        held = self.items.get(record_id)
        return isinstance(held, Tombstone) and held.complete and self._is_stable(record_id)

    # --- messages -----------------------------------------------------------------------------------------------------

    def greet(self, peer: str) -> Message:
        """The first message to a peer: a page of what is here."""
        return self._page(peer, self._turn(()))

    def receive(self, message: Message, *, greeting: bool = False) -> Message:
        """Take a message in; the answer to it. A greeting is answered with a page too."""
        shown: dict[str, None] = {}
        for record_id in message.kept:
            self._confirm(record_id, message.sender)
        for offer in message.offers:
            self._take_offer(offer, message.sender, shown)
        for notice in message.notices:
            self._take_notice(notice, message.sender)
        kept = tuple(each.record_id for each in message.gifts if self._take_gift(each, message.sender, shown))
        wants = tuple(self._ask_for(message.offers))
        gifts = tuple(self._give(message.wants, message.sender, shown))
        answer = self._page(message.sender, self._turn(shown) if greeting else self._tombstones(shown))
        return replace(answer, wants=wants, gifts=gifts, kept=kept)

    def forwarded(self, notice: Notice) -> Message:
        """What a node that stepped down tells each of its peers."""
        return Message(self.node_id, notices=(notice,))

    def _take_offer(self, offer: Offer, sender: str, shown: dict[str, None]) -> None:
        held = self.items.get(offer.record_id)
        if held is None:
            return
        self._confirm(offer.record_id, sender)
        held = self.items[offer.record_id]
        self._put(offer.record_id, replace(held, holders=held.holders.union(offer.holders).adding(sender)))
        if isinstance(held, Tombstone):
            self.counters.refused_copies += 1
            shown[offer.record_id] = None

    def _take_notice(self, notice: Notice, sender: str) -> None:
        held = self.items.get(notice.record_id)
        if isinstance(held, Record):
            self._bury(notice.record_id, notice.holders, notice.buried)
        elif isinstance(held, Tombstone):
            if self._steps_down(held, notice, sender):
                self._step_down(notice)
                return
            buried = held.buried.union(notice.buried)
            open_still = held.unconfirmed - (buried.ids or frozenset())
            self._put(notice.record_id, Tombstone(held.holders.union(notice.holders), buried, open_still))
        elif self._owes(notice) and self._room:
            self._put(notice.record_id, self._joined(notice.holders, notice.buried))
        else:
            return
        self._confirm(notice.record_id, sender)

    def _owes(self, notice: Notice) -> bool:
        """Whether others wait for this node, though it has no copy: one was given, and lost on the way."""
        if notice.counted:
            return True
        exact = notice.holders.ids is not None and notice.buried.ids is not None
        return exact and notice.holders.holds(self.node_id) and not notice.buried.holds(self.node_id)

    def _bury(self, record_id: str, holders: Tally, buried: Tally) -> None:
        held = self.items[record_id]
        require(isinstance(held, Record), "only a record is buried")
        self._put(record_id, replace(self._joined(holders.union(held.holders), buried), unconfirmed=held.unconfirmed))
        self.counters.buried += 1

    def _joined(self, holders: Tally, buried: Tally) -> Tombstone:
        return Tombstone(holders.union(self._alone), buried.union(self._alone))

    def _steps_down(self, held: Tombstone, notice: Notice, sender: str) -> bool:
        """Only ids decide who stays, and only for a lower one: the lowest of a component has nobody to leave to."""
        return (
            notice.keeping
            and sender < self.node_id
            and self.keeps(notice.record_id)
            and notice.holders.covers(held.holders)
            and notice.buried.covers(held.buried)
        )

    def _step_down(self, notice: Notice) -> None:
        record_id = notice.record_id
        # The winner's sets cover ours. They are told as nobody's claim: a peer leaves only to a keeper it speaks with.
        self.forwards.append(replace(notice, keeping=False, counted=False))
        del self.items[record_id]
        for table in (self._since, self._hot, self._asked):
            table.pop(record_id, None)
        self.changed.add(record_id)
        self.counters.stepped_down += 1

    # --- copies -------------------------------------------------------------------------------------------------------

    def _ask_for(self, offers: Iterable[Offer]) -> Iterator[Want]:
        for offer in offers:
            if offer.record_id in self.items or not self._room or len(self._asked) >= 2 * PAGE_ITEMS:
                continue
            token = next(self._tokens)
            self._asked[offer.record_id] = token, self.round
            yield Want(offer.record_id, token)

    def _give(self, wants: Iterable[Want], receiver: str, shown: dict[str, None]) -> Iterator[Gift]:
        given_bytes = 0
        for want in wants:
            record_id = want.record_id
            held = self.items.get(record_id)
            if isinstance(held, Tombstone):
                shown[record_id] = None
            if not isinstance(held, Record) or given_bytes > PAGE_BYTES:
                continue
            if receiver not in held.unconfirmed and len(held.unconfirmed) >= UNCONFIRMED:
                continue
            given = replace(held, holders=held.holders.adding(receiver), unconfirmed=held.unconfirmed | {receiver})
            self._put(record_id, given)
            given_bytes += len(held.content) + _wire_bytes(given.holders)
            yield Gift(record_id, want.token, held.content, given.holders)

    def _take_gift(self, gift: Gift, sender: str, shown: dict[str, None]) -> bool:
        held = self.items.get(gift.record_id)
        if held is not None:
            shown[gift.record_id] = None
            self._put(gift.record_id, replace(held, holders=held.holders.union(gift.holders).adding(sender)))
            return isinstance(held, Record)
        if self._asked.get(gift.record_id, (None, 0))[0] != gift.token or not self._room:
            # Not what was asked for last: it was on its way while a tombstone came and went, or is a second copy of a
            # message. The giver counts us until it hears otherwise; its tombstone will ask (`counted`).
            return False
        self._put(gift.record_id, Record(gift.content, gift.holders.adding(sender).union(self._alone)))
        return True

    def _confirm(self, record_id: str, peer: str) -> None:
        held = self.items.get(record_id)
        if held is not None and peer in held.unconfirmed:
            self._put(record_id, replace(held, unconfirmed=held.unconfirmed - {peer}))

    # --- pages --------------------------------------------------------------------------------------------------------

    def _page(self, peer: str, record_ids: Iterable[str]) -> Message:
        offers, notices = [], []
        page_bytes = 0
        for record_id in record_ids:
            held = self.items[record_id]
            page_bytes += len(record_id) + _wire_bytes(held.holders)
            if isinstance(held, Record):
                offers.append(Offer(record_id, held.holders))
            else:
                page_bytes += _wire_bytes(held.buried)
                notices.append(self._notice(record_id, held, peer))
            if page_bytes > PAGE_BYTES or len(offers) + len(notices) >= PAGE_ITEMS:
                break
        return Message(self.node_id, offers=tuple(offers), notices=tuple(notices))

    def _tombstones(self, shown: Iterable[str]) -> Iterator[str]:
        return (each for each in shown if isinstance(self.items.get(each), Tombstone))

    def _turn(self, shown: Iterable[str]) -> Iterator[str]:
        """What must be said, what changed lately, and then the next of everything in turn."""
        seen: set[str] = set()
        recent = list(self._hot)[: -PAGE_ITEMS // 2 : -1]
        for record_id in (*shown, *recent):
            if record_id in self.items and record_id not in seen:
                seen.add(record_id)
                yield record_id
        for _ in range(len(self._ring)):
            record_id = self._ring.popleft()
            if record_id not in self.items:
                continue
            self._ring.append(record_id)
            if record_id not in seen:
                seen.add(record_id)
                yield record_id

    def _notice(self, record_id: str, held: Tombstone, peer: str) -> Notice:
        counted = peer in held.unconfirmed
        return Notice(record_id, held.holders, held.buried, keeping=self.keeps(record_id), counted=counted)

    # --- the table ----------------------------------------------------------------------------------------------------

    @property
    def _alone(self) -> Tally:
        return Tally.of((self.node_id,), self.shape)

    @property
    def _room(self) -> bool:
        return len(self.items) < self._most_items

    def _is_stable(self, record_id: str) -> bool:
        return self.round - self._since[record_id] >= self._stable_rounds

    def _put(self, record_id: str, item: Item) -> None:
        before = self.items.get(record_id)
        if before is not None and _same(before, item):
            return
        if before is None:
            self._ring.append(record_id)
        self.items[record_id] = item
        self.changed.add(record_id)
        self._since[record_id] = self.round
        self._hot.pop(record_id, None)
        self._hot[record_id] = self.round
        self._asked.pop(record_id, None)


def _same(before: Item, after: Item) -> bool:
    """Sets only grow and `union` gives back what did not: identity is enough."""
    if before.holders is not after.holders or before.unconfirmed != after.unconfirmed:
        return False
    if isinstance(before, Tombstone) and isinstance(after, Tombstone):
        return before.buried is after.buried
    return isinstance(before, Record) and isinstance(after, Record)


def _wire_bytes(tally: Tally) -> int:
    """About what a set takes on the wire."""
    if tally.ids is not None:
        return sum(map(len, tally.ids)) + 2 * len(tally.ids)
    return sum(len(sketch.to_bytes()) for sketch in tally.sketches)
