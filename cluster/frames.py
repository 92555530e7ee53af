"""Peer messages as bytes: the codec, the sealed frame, and the reader that cuts a stream into frames.

No sockets and no clock live here: the simulator seals and opens the same frames as production does.

On the wire a frame is ``[u32 body length][u64 sequence][16-byte MAC][body]``. The MAC is keyed BLAKE2b over link id,
sequence and body, with one key a direction, so a frame is good on one link, in one direction, once (H13, and the
"frames carry (incarnation, sequence)" rule of the lease: the link id is derived from both incarnations).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from typing import cast

import msgpack

from cluster.messages import MAX_ITEMS, FrameError, check
from cluster.ports import Message

__all__ = ["HEADER_BYTES", "MAC_BYTES", "FrameError", "FrameReader", "LinkGuards", "LinkSession", "decode", "encode"]

MAC_BYTES = 16
_HEADER = struct.Struct(">IQ16s")
_SEQUENCE = struct.Struct(">Q")
HEADER_BYTES = _HEADER.size

_MAX_FIELDS = 32
_MAX_TEXT_BYTES = 1024


def encode(message: Message) -> bytes:
    """The body for `message`. Checked here too: a bad message is a bug of this node, not the peer's to find."""
    check(message)
    try:
        return cast(bytes, msgpack.packb(message))
    except ValueError as error:  # a lone surrogate in a str
        raise FrameError("schema", f"{message['type']} cannot be encoded: {error}") from error


def decode(body: bytes) -> Message:
    """The message in `body`, its sequences as tuples. FrameError unless it is in the table of `cluster.messages`."""
    try:
        message = msgpack.unpackb(
            body,
            use_list=False,
            raw=False,
            strict_map_key=True,
            max_str_len=_MAX_TEXT_BYTES,
            max_bin_len=len(body),
            max_array_len=MAX_ITEMS,
            max_map_len=_MAX_FIELDS,
            max_ext_len=0,
        )
    except ValueError as error:
        raise FrameError("malformed", f"not a message: {str(error)[:200]}") from error
    check(message)
    return cast(Message, message)


@dataclass(frozen=True, slots=True)
class LinkGuards:
    """Switches for tests, which must notice when one is off. Production never passes any."""

    frame_sequence: bool = True
    frame_mac: bool = True


_ALL_GUARDS = LinkGuards()


class LinkSession:
    """The two directions of one authenticated link. The other end has the keys the other way round."""

    def __init__(
        self, send_key: bytes, receive_key: bytes, link_id: bytes, *, guards: LinkGuards = _ALL_GUARDS
    ) -> None:
        # Copying a keyed state costs half of building one; link_id has one length, so the parts cannot run together.
        self._sealing = blake2b(link_id, digest_size=MAC_BYTES, key=send_key)
        self._opening = blake2b(link_id, digest_size=MAC_BYTES, key=receive_key)
        self._guards = guards
        self._sent = 0
        self._received = 0

    def seal(self, body: bytes) -> bytes:
        """The whole frame for `body`, under the next sequence number."""
        self._sent += 1
        state = self._sealing.copy()
        state.update(_SEQUENCE.pack(self._sent))
        state.update(body)
        return _HEADER.pack(len(body), self._sent, state.digest()) + body

    def open(self, sequence: int, mac: bytes, body: bytes) -> bytes | None:
        """The body, if it is from the other end and new. None for a repeated or overtaken frame.

        A gap is allowed, as Raft allows loss; going back is not, as an old echo or vote could count again.
        """
        if self._guards.frame_mac:
            state = self._opening.copy()
            state.update(_SEQUENCE.pack(sequence))
            state.update(body)
            if not compare_digest(state.digest(), mac):
                raise FrameError("mac", "a frame was altered on the way or is from another link")
        if self._guards.frame_sequence and sequence <= self._received:
            return None
        self._received = sequence
        return body


class FrameReader:
    """Cuts a byte stream into frames. A body over `limit` is refused at its length prefix, before it is gathered."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._needed = HEADER_BYTES

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """(sequence, mac, body) of each frame complete by now. Exhaust it before the next call."""
        self._buffer += chunk
        # Until the frame is whole nothing is looked at again: a large one in small pieces stays linear.
        return self._cut() if len(self._buffer) >= self._needed else iter(())

    def _cut(self) -> Iterator[tuple[int, bytes, bytes]]:
        buffer = self._buffer
        start = 0
        try:
            while True:
                self._needed = HEADER_BYTES
                available = len(buffer) - start
                if available < HEADER_BYTES:
                    return
                length, sequence, mac = _HEADER.unpack_from(buffer, start)
                if length > self._limit:
                    raise FrameError("oversize", f"a frame of {length} bytes is over the limit of {self._limit}")
                self._needed = HEADER_BYTES + length
                if available < self._needed:
                    return
                body = bytes(memoryview(buffer)[start + HEADER_BYTES : start + self._needed])
                start += self._needed
                yield sequence, mac, body
        finally:
            del buffer[:start]
