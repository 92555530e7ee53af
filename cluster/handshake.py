"""How two nodes convince each other, before any frame, that they belong to one cluster. No I/O here.

    dialer   -> acceptor   hello      version, cluster, who I am, whom I mean, incarnation, Δ, drift, nonce
    acceptor -> dialer     challenge  nonce, incarnation
    dialer   -> acceptor   proof      HMAC(secret, "dialer" + transcript)
    acceptor -> dialer     accepted   HMAC(secret, "acceptor" + transcript), or a refusal

The transcript is the hash of hello and challenge as sent. Both proofs and the three link keys come from it, so
nothing in either message (the version included) can be changed on the way, neither side's proof can be sent back to
it (the labels differ), and nothing recorded is of use later (both nonces are fresh). The acceptor's own version, id,
cluster and timing are in the transcript too: it refuses a hello in which they differ.

Whoever has not proved the secret learns nothing: whatever is wrong with a hello, the challenge comes, and without a
good proof the refusal names no reason. The reason is in the exception, for the local log. With a good proof the
refusal is typed and carries its own MAC.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import msgpack

from cluster.credentials import Credentials
from cluster.frames import LinkGuards, LinkSession
from cluster.messages import Check, incarnation, natural, text

PROTOCOL_VERSION = 1
MESSAGE_BYTES = 1024
BUFFER_BYTES = 4096
"""What either side holds of the other's bytes before the link is established."""
NONCE_BYTES = 32

CODES = frozenset(
    {
        "wrong_cluster",
        "wrong_node",
        "wrong_version",
        "timing_mismatch",
        "bad_proof",
        "unknown_peer",
        "removed",
        "malformed",
        "tls_mismatch",
        "tls_certificate",
    }
)

_MAGIC = "holdfast-peer"
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""How an alert and a hand-shake of TLS begin. As a length either is too long, so no message of ours does."""
_TOLD_BYTES = 512
_LENGTH = struct.Struct(">H")


class HandshakeRefused(Exception):
    """No link. `code` is one of CODES, the text says the fix, `reply` is what may be told to the other side."""

    def __init__(self, code: str, message: str, reply: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Established:
    """What a finished hand-shake yields: the peer, proven, and the keys of this one link."""

    peer: str
    incarnation: int
    send_key: bytes = field(repr=False)
    receive_key: bytes = field(repr=False)
    link_id: bytes

    def session(self, guards: LinkGuards | None = None) -> LinkSession:
        return LinkSession(self.send_key, self.receive_key, self.link_id, guards=guards or LinkGuards())


def _mac(secret: bytes, label: str, transcript: bytes, extra: bytes = b"") -> bytes:
    return hmac.digest(secret, f"holdfast {label}".encode() + b"\0" + transcript + extra, "sha256")


def _transcript(hello: bytes, challenge: bytes) -> bytes:
    return sha256(b"holdfast transcript\0" + _LENGTH.pack(len(hello)) + hello + challenge).digest()


def _pack(*fields: object) -> bytes:
    raw: bytes = msgpack.packb(fields)
    return raw


def _framed(raw: bytes) -> bytes:
    return _LENGTH.pack(len(raw)) + raw


def _unpack(raw: bytes) -> tuple[object, ...]:
    try:
        fields = msgpack.unpackb(
            raw, use_list=False, max_map_len=0, max_ext_len=0, max_array_len=16, max_str_len=_TOLD_BYTES, max_bin_len=64
        )
    except ValueError as error:
        raise _malformed() from error
    if type(fields) is not tuple:
        raise _malformed()
    return fields


def _malformed() -> HandshakeRefused:
    return HandshakeRefused(
        "malformed",
        "what arrived is no Holdfast hand-shake: something else uses this port, or one side has TLS and the other not",
        _GENERIC_REFUSAL,
    )


def _tls_arrived() -> HandshakeRefused:
    return HandshakeRefused(
        "tls_mismatch",
        "the other side speaks TLS and this node does not: give both [tls], or neither",
        _GENERIC_REFUSAL,
    )


def _fits(fields: Sequence[object], checks: Sequence[Check]) -> bool:
    return len(fields) == len(checks) and all(check(value) for check, value in zip(checks, fields, strict=True))


def _bytes_of(size: int) -> Check:
    return lambda value: type(value) is bytes and len(value) == size


_name = text(64)
_nonce = _bytes_of(NONCE_BYTES)
_proof = _bytes_of(32)
_HELLO = (_name, natural, _name, _name, _name, incarnation, natural, natural, _nonce)
_CHALLENGE = (_nonce, incarnation)
_GENERIC_REFUSAL = _framed(_pack("refused"))


class Handshake:
    """One side, fed with what arrives. Ends with `established` set, or with HandshakeRefused, and only once."""

    def __init__(self, credentials: Credentials, nonce: bytes | None = None) -> None:
        self.credentials = credentials
        self.established: Established | None = None
        self._nonce = nonce or os.urandom(NONCE_BYTES)
        self._secret = credentials.secret
        """The one both sides know, as far as can be told yet."""
        self._buffer = bytearray()
        self._over = False

    def opening(self) -> bytes:
        """What to send as soon as there is a connection."""
        return b""

    def feed(self, chunk: bytes) -> bytes:
        """What to send back. After `established` the rest of the bytes is in `leftover`."""
        if self._over:
            raise _malformed()
        self._buffer += chunk
        replies = []
        try:
            while self.established is None and (raw := self._take()) is not None:
                replies.append(self._receive(raw))
            if self.established is None and len(self._buffer) > BUFFER_BYTES:
                raise _malformed()
        except HandshakeRefused:
            # A second guess at the proof would need a second connection, with a new challenge.
            self._over = True
            self._buffer.clear()
            raise
        return b"".join(replies)

    def leftover(self) -> bytes:
        """Bytes that arrived behind the last hand-shake message: the first frames."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._over = True
        return rest

    def _take(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 < length <= MESSAGE_BYTES:
            raise _tls_arrived() if self._buffer.startswith(_TLS_RECORDS) else _malformed()
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        raw = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return raw

    def _receive(self, raw: bytes) -> bytes:
        raise NotImplementedError

    def _establish(self, peer: str, number: int, transcript: bytes, sending: str, receiving: str) -> None:
        secret = self._secret
        self.established = Established(
            peer,
            number,
            _mac(secret, f"key of {sending}", transcript),
            _mac(secret, f"key of {receiving}", transcript),
            _mac(secret, "link", transcript)[:16],
        )


class Dialer(Handshake):
    """The side that opened the connection and means to reach `target`.

    `attempt` counts those that failed before: each takes the next of the secrets, as the other side may know only one.
    """

    def __init__(self, credentials: Credentials, target: str, nonce: bytes | None = None, *, attempt: int = 0) -> None:
        super().__init__(credentials, nonce)
        self.target = target
        self._secret = credentials.secrets[attempt % len(credentials.secrets)]
        self._hello = _pack(
            _MAGIC,
            PROTOCOL_VERSION,
            credentials.cluster_id,
            credentials.node_id,
            target,
            credentials.incarnation,
            *credentials.pace,
            self._nonce,
        )
        self._transcript: bytes | None = None
        self._peer_incarnation = 0

    def opening(self) -> bytes:
        return _framed(self._hello)

    def _receive(self, raw: bytes) -> bytes:
        fields = _unpack(raw)
        if fields == ("refused",):
            raise HandshakeRefused(
                "bad_proof",
                f"{self.target} refused this node and does not trust it enough to say why; its log says. Compare the "
                "cluster secret and the software version of the two nodes",
            )
        if self._transcript is None:
            return self._prove(raw, fields)
        self._conclude(fields, self._transcript)
        return b""

    def _prove(self, raw: bytes, fields: tuple[object, ...]) -> bytes:
        if not _fits(fields, _CHALLENGE):
            raise _silent(_malformed())
        number = fields[1]
        self._peer_incarnation = number if isinstance(number, int) else 0
        self._transcript = _transcript(self._hello, raw)
        return _framed(_pack(_mac(self._secret, "dialer", self._transcript)))

    def _conclude(self, fields: tuple[object, ...], transcript: bytes) -> None:
        secret = self._secret
        match fields:
            case ("accepted", bytes(proof)) if hmac.compare_digest(proof, _mac(secret, "acceptor", transcript)):
                if not self.credentials.peer_allowed(self.target):  # membership moved on meanwhile
                    raise HandshakeRefused("removed", f"{self.target} is no longer a member of this cluster")
                self._establish(self.target, self._peer_incarnation, transcript, "dialer", "acceptor")
            case ("refused", str(code), str(message), bytes(proof)) if code in CODES and hmac.compare_digest(
                proof, _mac(secret, "refusal", transcript, _pack(code, message))
            ):
                raise HandshakeRefused(code, f"{self.target} refuses this node: {message}")
            case _:
                raise HandshakeRefused(
                    "bad_proof",
                    f"whoever answers at the address of {self.target} does not know the cluster secret: "
                    "correct the address, or the secret of that node",
                )


class Acceptor(Handshake):
    """The side that was dialed."""

    def __init__(self, credentials: Credentials, nonce: bytes | None = None) -> None:
        super().__init__(credentials, nonce)
        self.claimed: str | None = None
        """The id the dialer gives. A claim only, until `established`."""
        self._peer_incarnation = 0
        self._transcript: bytes | None = None
        self._verdict: tuple[str, str] | None = None

    def _receive(self, raw: bytes) -> bytes:
        fields = _unpack(raw)
        if self._transcript is None:
            return self._challenge(raw, fields)
        return self._answer(fields, self._transcript)

    def _challenge(self, raw: bytes, fields: tuple[object, ...]) -> bytes:
        match fields:
            case (magic, int(version), *_) if magic == _MAGIC and version != PROTOCOL_VERSION:
                raise HandshakeRefused(
                    "wrong_version",
                    f"the dialer speaks version {version} of the peer protocol and this node {PROTOCOL_VERSION}: "
                    "bring both to one release",
                    _GENERIC_REFUSAL,
                )
            case (magic, _, str(cluster), str(dialer), str(target), int(number), int(delta), int(drift), bytes()) if (
                magic == _MAGIC and _fits(fields, _HELLO)
            ):
                self.claimed = dialer
                self._peer_incarnation = number
                self._verdict = self._judge(cluster, dialer, target, (delta, drift))
            case _:
                raise _malformed()
        challenge = _pack(self._nonce, self.credentials.incarnation)
        self._transcript = _transcript(raw, challenge)
        return _framed(challenge)

    def _judge(self, cluster: str, dialer: str, target: str, pace: tuple[int, int]) -> tuple[str, str] | None:
        own = self.credentials
        if cluster != own.cluster_id:
            return "wrong_cluster", (
                f"{dialer!r} is of cluster {cluster!r} and {own.node_id!r} of {own.cluster_id!r}: correct the address "
                "in one of them, or its cluster_id"
            )
        if target != own.node_id or dialer == own.node_id:
            return "wrong_node", (
                f"{dialer!r} means to reach {target!r} but this is {own.node_id!r}: correct the address of {target!r} "
                "in the members, or the node_id of one of the two"
            )
        if not own.peer_allowed(dialer):
            if own.peer_removed(dialer):
                return "removed", f"{dialer!r} was removed from the cluster: stop it, or add it again as a new member"
            return "unknown_peer", f"{dialer!r} is no member of the cluster: add it with `holdfast member add`"
        if pace != own.pace:
            return "timing_mismatch", (
                f"{dialer!r} has election_min {pace[0]} µs and drift {pace[1]} ppm, {own.node_id!r} has {own.pace[0]} "
                f"and {own.pace[1]}: the leader lease needs the same timing on every node"
            )
        return None

    def _answer(self, fields: tuple[object, ...], transcript: bytes) -> bytes:
        match fields:
            case (bytes(proof),) if self._proven(proof, transcript):
                secret = self._secret
            case _:
                more = f" (besides: {self._verdict[1]})" if self._verdict else ""
                raise HandshakeRefused(
                    "bad_proof",
                    f"who calls itself {self.claimed!r} does not know the cluster secret: give that node the secret "
                    f"of this cluster, or find out who is calling{more}",
                    _GENERIC_REFUSAL,
                )
        if self._verdict is not None:
            code, message = self._verdict
            told = message.encode()[:_TOLD_BYTES].decode(errors="ignore")  # 64 letters may be 256 bytes
            proof = _mac(secret, "refusal", transcript, _pack(code, told))
            raise HandshakeRefused(code, message, _framed(_pack("refused", code, told, proof)))
        self._establish(self.claimed or "", self._peer_incarnation, transcript, "acceptor", "dialer")
        return _framed(_pack("accepted", _mac(secret, "acceptor", transcript)))

    def _proven(self, proof: bytes, transcript: bytes) -> bool:
        """By which secret, is remembered: the rest of the link is of it."""
        for secret in self.credentials.secrets:
            if hmac.compare_digest(proof, _mac(secret, "dialer", transcript)):
                self._secret = secret
                return True
        return False


def _silent(refusal: HandshakeRefused) -> HandshakeRefused:
    refusal.reply = b""
    return refusal
