"""Who may speak: every request and every answer carries a MAC under the group's secret, and none is good twice.

    asker    -> answerer   challenge   who asks
    answerer -> asker      nonce       good for one request of this asker, for NONCE_ROUNDS of the answerer's rounds
    asker    -> answerer   request     MAC(secret, method, path, asker, answerer, nonce, body)
    answerer -> asker      answer      MAC(secret, "answer", the request's MAC, status, body)

A nonce needs no memory until it is used: it carries the round it was made in and a tag under a key that lives as long
as the process. Only requests with a good MAC are remembered, so a stranger cannot fill the memory; what is older than
the rounds is refused by its round, so the memory is bounded. No clocks are compared.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from hashlib import sha256

from coordinator.gossip.limits import NONCE_ROUNDS, USED_NONCES

SECRET_MIN_BYTES = 16
_ROUND = struct.Struct(">Q")
_DRAWN_BYTES = 16
_TAG_BYTES = 16
NONCE_BYTES = _ROUND.size + _DRAWN_BYTES + _TAG_BYTES


class NotAuthentic(Exception):
    """A request or answer that is refused. The text is for the local log; a stranger is told nothing."""


class Busy(Exception):
    """So many requests in so few rounds that no more can be remembered."""


class Nonces:
    """Makes nonces and takes each back once."""

    def __init__(self, draw: Callable[[int], bytes], rounds: int = NONCE_ROUNDS, most_used: int = USED_NONCES) -> None:
        self._draw = draw
        self._key = draw(32)
        self._rounds = rounds
        self._most_used = most_used
        self._used: dict[bytes, int] = {}

    def make(self, asker: str, now_round: int) -> bytes:
        head = _ROUND.pack(now_round) + self._draw(_DRAWN_BYTES)
        return head + self._tag(head, asker)

    def check(self, nonce: bytes, asker: str, now_round: int) -> None:
        head, tag = nonce[:-_TAG_BYTES], nonce[-_TAG_BYTES:]
        if len(nonce) != NONCE_BYTES or not hmac.compare_digest(tag, self._tag(head, asker)):
            raise NotAuthentic("a nonce that this process did not make for this asker")
        if _ROUND.unpack_from(head)[0] + self._rounds <= now_round:
            raise NotAuthentic("a nonce that is too old")
        if nonce in self._used:
            raise NotAuthentic("a nonce that was used before")

    def spend(self, nonce: bytes, now_round: int) -> None:
        """After the MAC was found good."""
        if len(self._used) >= self._most_used:
            self._used = {each: made for each, made in self._used.items() if made + self._rounds > now_round}
        if len(self._used) >= self._most_used:
            raise Busy(f"{self._most_used} requests in {self._rounds} rounds")
        self._used[nonce] = _ROUND.unpack_from(nonce)[0]

    def _tag(self, head: bytes, asker: str) -> bytes:
        return hmac.digest(self._key, head + asker.encode(), "sha256")[:_TAG_BYTES]


class Seal:
    """MACs under one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def request(self, method: str, path: str, asker: str, answerer: str, nonce: bytes, body: bytes) -> bytes:
        return self._mac(b"request", method.encode(), path.encode(), asker.encode(), answerer.encode(), nonce, body)

    def answer(self, request_mac: bytes, status: int, body: bytes) -> bytes:
        return self._mac(b"answer", request_mac, str(status).encode(), body)

    def _mac(self, *parts: bytes) -> bytes:
        told = sha256(b"holdfast-gossip-1")
        for part in parts:
            # Each with its length, so that no two lists of parts are the same bytes.
            told.update(_ROUND.pack(len(part)) + part)
        return hmac.digest(self._secret, told.digest(), "sha256")


def same(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)
