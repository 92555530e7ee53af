"""What two gossip nodes say to each other, and the bytes of it. Wrong bytes are Implausible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from coordinator.gossip.limits import CONTENT_BYTES, MESSAGE_BYTES, PAGE_ITEMS, RECORD_ID_BYTES
from coordinator.gossip.tally import STANDARD, Implausible, Shape, Tally, check_node_id

VERSION = 1


@dataclass(frozen=True, slots=True)
class Offer:
    """The sender has this record, and knows of these holders."""

    record_id: str
    holders: Tally


@dataclass(frozen=True, slots=True)
class Notice:
    """The sender has this tombstone: of these holders, those that are in `buried` have dropped their copy."""

    record_id: str
    holders: Tally
    buried: Tally
    keeping: bool
    """The sender is a keeper: it believes that everybody has dropped it, and stays."""
    counted: bool
    """The sender once handed the receiver a copy and never heard whether it arrived."""


@dataclass(frozen=True, slots=True)
class Want:
    """The sender has neither the record nor a tombstone, and takes a copy that comes with this token."""

    record_id: str
    token: int


@dataclass(frozen=True, slots=True)
class Gift:
    """A copy. The receiver is already among the holders: the giver noted it before it gave."""

    record_id: str
    token: int
    content: bytes
    holders: Tally


@dataclass(frozen=True, slots=True)
class Message:
    sender: str
    offers: tuple[Offer, ...] = ()
    notices: tuple[Notice, ...] = ()
    wants: tuple[Want, ...] = ()
    gifts: tuple[Gift, ...] = ()
    kept: tuple[str, ...] = ()
    """Gifts of the message before that were taken."""

    @property
    def asks(self) -> bool:
        """Whether it needs an answer: somebody waits for a gift or for word of one."""
        return bool(self.wants or self.gifts)

    @property
    def empty(self) -> bool:
        return not (self.offers or self.notices or self.wants or self.gifts or self.kept)


def encode(message: Message) -> bytes:
    packed: bytes = msgpack.packb(
        [
            VERSION,
            message.sender,
            [[each.record_id, each.holders.wire()] for each in message.offers],
            [
                [each.record_id, each.holders.wire(), each.buried.wire(), each.keeping, each.counted]
                for each in message.notices
            ],
            [[each.record_id, each.token] for each in message.wants],
            [[each.record_id, each.token, each.content, each.holders.wire()] for each in message.gifts],
            list(message.kept),
        ],
        use_bin_type=True,
    )
    return packed


def decode(raw: bytes, shape: Shape = STANDARD) -> Message:
    if len(raw) > MESSAGE_BYTES:
        raise Implausible(f"a message of {len(raw)} bytes where at most {MESSAGE_BYTES} are read")
    match unpacked(raw):
        case [version, sender, list(offers), list(notices), list(wants), list(gifts), list(kept)]:
            if version != VERSION:
                raise Implausible(f"a message of version {version!r}; this node speaks {VERSION}")
            if len(offers) + len(notices) + len(wants) + len(gifts) + len(kept) > 4 * PAGE_ITEMS:
                raise Implausible("more items than a message has")
            return Message(
                check_node_id(sender),
                tuple(_offer(each, shape) for each in offers),
                tuple(_notice(each, shape) for each in notices),
                tuple(_want(each) for each in wants),
                tuple(_gift(each, shape) for each in gifts),
                tuple(check_record_id(each) for each in kept),
            )
    raise Implausible("not a gossip message")


def unpacked(raw: bytes) -> Any:
    try:
        return msgpack.unpackb(raw, raw=False, strict_map_key=True, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise Implausible(f"not msgpack: {error}") from None


def check_record_id(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.encode()) <= RECORD_ID_BYTES:
        raise Implausible(f"a record id is printable text of 1 to {RECORD_ID_BYTES} bytes")
    return value


def check_content(value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) > CONTENT_BYTES:
        raise Implausible(f"a record's content is at most {CONTENT_BYTES} bytes")
    return value


def _offer(raw: Any, shape: Shape) -> Offer:
    match raw:
        case [record_id, holders]:
            return Offer(check_record_id(record_id), Tally.from_wire(holders, shape))
    raise Implausible("a malformed offer")


def _notice(raw: Any, shape: Shape) -> Notice:
    match raw:
        case [record_id, holders, buried, bool(keeping), bool(counted)]:
            notice = Notice(
                check_record_id(record_id),
                Tally.from_wire(holders, shape),
                Tally.from_wire(buried, shape),
                keeping,
                counted,
            )
            # Whoever joins the second set joins the first in the same step, and both only grow.
            if not notice.holders.covers(notice.buried):
                raise Implausible("a tombstone that more have than ever held the record")
            if keeping and not notice.buried.covers(notice.holders):
                raise Implausible("a keeper whose tombstone has not reached all holders it knows")
            return notice
    raise Implausible("a malformed tombstone")


def _want(raw: Any) -> Want:
    match raw:
        case [record_id, int(token)]:
            return Want(check_record_id(record_id), token)
    raise Implausible("a malformed want")


def _gift(raw: Any, shape: Shape) -> Gift:
    match raw:
        case [record_id, int(token), content, holders]:
            return Gift(check_record_id(record_id), token, check_content(content), Tally.from_wire(holders, shape))
    raise Implausible("a malformed gift")
