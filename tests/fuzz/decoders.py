"""Everything that reads bytes from outside: good examples, the reader, and the only errors it may end with.

Where a checksum or a MAC would stop nearly every damaged input, what lies behind it is read without it as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgpack

from cluster.credentials import Credentials
from cluster.frames import FrameError, FrameReader, LinkSession, decode
from cluster.handshake import Acceptor, Dialer, HandshakeRefused
from cluster.journal import JournalError
from cluster.messages import TABLE
from cluster.options import Timing
from cluster.snapshotfile import (
    ADVICE,
    BACKUP_MAGIC,
    SnapshotCorrupt,
    SnapshotMeta,
    SnapshotParser,
    _decode_meta,
    encode_snapshot,
)
from coordinator.backups import BackupError, BackupParser
from coordinator.gossip import messages as gossip
from coordinator.gossip.tally import Implausible, Tally
from coordinator.http.app import all_operations
from coordinator.http.bodies import JSON, MSGPACK, _decode
from coordinator.http.errors import ApiError
from coordinator.machine.codec import encode_command
from coordinator.machine.levels import TooNew
from coordinator.machine.sketch import Sketch
from coordinator.machine.snapshot import FormatError
from tests.fuzz.heads import Heads, NotPlain, heads
from tests.fuzz.journals import Records, Segments, records, segments
from tests.fuzz.machines import Commands, Heartbeats, Restores, cut, state
from tests.machine.test_codec import GOOD
from tests.storage.support import CLUSTER

Read = Callable[[bytes], None]
_SECRET = b"a secret of the fuzzed cluster"


@dataclass(frozen=True)
class Decoder:
    """`seeds` and a reader are made for each run: a reader may keep a machine that must not change (`unchanged`)."""

    name: str
    seeds: Callable[[], list[bytes]]
    reader: Callable[[], Read]
    refusals: tuple[type[Exception], ...]


# --- HTTP -----------------------------------------------------------------------------------------------------------


def _bodies() -> list[dict[str, Any]]:
    lock = {"lock_key": "k", "client_id": "a", "lease_time_ms": 1_000, "block_time_ms": 5, "request_id": "é"}
    tasks = {"tasks": [{"payload": {"url": "x", "n": [1, 2.5, None, True]}, "priority": 3, "key": "k"}] * 3}
    beats = {"client_id": "a", "lease_ids": [f"{number:016x}" for number in range(1, 40)], "extend_duration_ms": 5}
    edges = {"edges": [{"source_resource_id": "r", "target_resource_id": "s"}] * 4}
    return [lock, tasks, beats, edges, {"leases": 1, "acyclic": False}, {}]


def _http(kind: str) -> Callable[[], Read]:
    def made() -> Read:
        shapes = [shape for each in all_operations() if (shape := each.asked_in_body()) is not None]

        def read(raw: bytes) -> None:
            value = _decode(kind, raw)
            if isinstance(value, dict):
                max(shapes, key=lambda shape: len(value.keys() & shape.fields.keys())).read(value)

        return read

    return made


def _json_seeds() -> list[bytes]:
    return [json.dumps(body, ensure_ascii=False).encode() for body in _bodies()]


def _msgpack_seeds() -> list[bytes]:
    return [msgpack.packb(body) for body in _bodies()]


# --- peers ------------------------------------------------------------------------------------------------------------


_VALUES: tuple[Any, ...] = (
    7, 1.5, True, "n1", b"bytes", None, ((b"command", 8, 3), (b"", 9, 3)), (b"piece", True, False), (b"c", b"d"),
    (("lane", False, 1, (b"command", b"d" * 40)),), ("n1", 3), {}, (),
)  # fmt: skip
"""For each kind of field there is one that fits."""


def _messages() -> list[bytes]:
    """One of every form in the table."""
    rows = [(name, {**row.required, **row.optional}) for name, forms in TABLE.items() for row in forms]
    filled = ({"type": name, **{field: _fitting(fits) for field, fits in form.items()}} for name, form in rows)
    return [msgpack.packb(message) for message in filled]


def _fitting(fits: Callable[[object], bool]) -> Any:
    return next((value for value in _VALUES if fits(value)), None)


def _credentials(node_id: str) -> Credentials:
    return Credentials(node_id, "blue", _SECRET, 7, Timing(), lambda peer: peer in {"n1", "n2"})


def _handshakes() -> list[bytes]:
    dialer, acceptor = Dialer(_credentials("n2"), "n1", bytes(32)), Acceptor(_credentials("n1"), bytes(32))
    hello = dialer.opening()
    challenge = acceptor.feed(hello)
    proof = dialer.feed(challenge)
    return [hello, challenge, proof, acceptor.feed(proof), hello + proof]


def _shake_hands(raw: bytes) -> None:
    try:
        Acceptor(_credentials("n1"), bytes(32)).feed(raw)
    finally:
        dialer = Dialer(_credentials("n2"), "n1", bytes(32))
        dialer.opening()
        dialer.feed(raw)


def _sealed() -> list[bytes]:
    session = LinkSession(b"k" * 32, b"k" * 32, b"l" * 32)
    return [session.seal(body) for body in _messages()] + [b"".join(session.seal(body) for body in _messages())]


def _frames(raw: bytes) -> None:
    session = LinkSession(b"k" * 32, b"k" * 32, b"l" * 32)
    for frame in FrameReader(1 << 20).feed(raw):
        body = session.open(*frame)
        if body is not None:
            decode(body)


# --- files ------------------------------------------------------------------------------------------------------------


def _meta() -> SnapshotMeta:
    place = (b"entry", 7, 3)
    return SnapshotMeta(place, (b"before", 6, 3), 1_000, msgpack.packb([["n1", "n2"], 5, "1.0"]))


def _snapshot(raw: bytes) -> Iterable[bytes]:
    parser = SnapshotParser(CLUSTER, "a file")
    blocks = parser.feed(raw)
    parser.finish()
    return blocks


def _snapshot_header(raw: bytes) -> None:
    _decode_meta(raw, "a file", ADVICE)


def _header_seeds() -> list[bytes]:
    headers: list[bytes] = []
    whole = b"".join(encode_snapshot(CLUSTER, _meta(), []))
    length = int.from_bytes(whole[16:20], "little")
    headers.append(whole[24 : 24 + length])
    return headers


def _backup(raw: bytes) -> Iterable[bytes]:
    parser = BackupParser("a file")
    blocks = parser.feed(raw)
    parser.finish()
    return blocks


def _backup_header(raw: bytes) -> None:
    """What a backup says of itself, under good checksums."""
    meta = SnapshotMeta((b"", 7, 0), (b"", 7, 0), 1_000, raw)
    parser = BackupParser("a file")
    for piece in encode_snapshot(CLUSTER, meta, [], magic=BACKUP_MAGIC):
        parser.feed(piece)
    parser.finish()


# --- gossip and sketches ----------------------------------------------------------------------------------------------


def _gossip_seeds() -> list[bytes]:
    few, many = Tally.of(["n1", "n2"]), Tally.of([f"node-{number}" for number in range(300)])
    offers = (gossip.Offer("r1", few), gossip.Offer("r2", many))
    notice = gossip.Notice("r3", many, few, keeping=False, counted=True)
    gift = gossip.Gift("r4", 9, b"content", few)
    return [
        gossip.encode(gossip.Message("n1", offers, (notice,))),
        gossip.encode(gossip.Message("n2", wants=(gossip.Want("r5", 3),), gifts=(gift,), kept=("r6",))),
    ]


def _gossip(raw: bytes) -> None:
    gossip.decode(raw)


def _sketch_seeds() -> list[bytes]:
    few, many = Sketch(), Sketch()
    for number in range(20):
        few.add(f"member-{number}")
    for number in range(5_000):
        many.add(f"member-{number}")
    return [few.to_bytes(), many.to_bytes()]


def _sketch(raw: bytes) -> None:
    sketch = Sketch.from_bytes(raw)
    if sketch.to_bytes() != raw:
        raise AssertionError("bytes were taken that are not canonical")


DECODERS = (
    Decoder("http-head", heads, Heads, (NotPlain,)),
    Decoder("http-json", _json_seeds, _http(JSON), (ApiError,)),
    Decoder("http-msgpack", _msgpack_seeds, _http(MSGPACK), (ApiError,)),
    Decoder("heartbeats", lambda: [bytes(8), bytes(range(256)) * 4], Heartbeats, (ApiError,)),
    Decoder("commands", lambda: [encode_command(each, "default", b"id") for each in GOOD], Commands, ()),
    Decoder("state", lambda: [state()], lambda: Restores(cut), (FormatError, TooNew)),
    Decoder("peer-messages", _messages, lambda: _decoded, (FrameError,)),
    Decoder("peer-frames", _sealed, lambda: _frames, (FrameError,)),
    Decoder("hand-shake", _handshakes, lambda: _shake_hands, (HandshakeRefused,)),
    Decoder("journal", segments, Segments, (JournalError,)),
    Decoder("journal-records", records, Records, (JournalError,)),
    Decoder("snapshot", lambda: [b"".join(encode_snapshot(CLUSTER, _meta(), [state()]))], lambda: Restores(_snapshot),
            (SnapshotCorrupt, FormatError, TooNew)),
    Decoder("snapshot-header", _header_seeds, lambda: _snapshot_header, (SnapshotCorrupt,)),
    Decoder("backup", lambda: [b"".join(encode_snapshot(CLUSTER, _meta(), [state()], magic=BACKUP_MAGIC))],
            lambda: Restores(_backup), (BackupError, FormatError, TooNew)),
    Decoder("backup-header", lambda: [_meta().config], lambda: _backup_header, (BackupError,)),
    Decoder("gossip", _gossip_seeds, lambda: _gossip, (Implausible,)),
    Decoder("sketch", _sketch_seeds, lambda: _sketch, (ValueError,)),
)  # fmt: skip


def _decoded(raw: bytes) -> None:
    decode(raw)
