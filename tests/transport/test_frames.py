"""The codec refuses whatever is not in the table; a frame is good once, on its link, unaltered."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import messages
from cluster.frames import HEADER_BYTES, FrameError, FrameReader, LinkGuards, LinkSession, decode, encode
from cluster.messages import MAX_INT, TABLE

from .nodes import append, note

KEYS = (b"a" * 32, b"b" * 32, b"l" * 16)
NATURAL = st.integers(0, MAX_INT)
ENTRY = st.tuples(st.binary(max_size=50), NATURAL, NATURAL)
COMMANDS = st.lists(st.binary(max_size=20), min_size=1, max_size=5).map(tuple)
PART = st.tuples(st.text(max_size=64), st.booleans(), st.integers(1, 1 << 16), COMMANDS)

# How to draw a good value for each check of the table, and which values each must refuse.
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "natural": NATURAL,
    "natural_or_none": st.none() | NATURAL,
    "incarnation": st.integers(0, 2**64 - 1),
    "flag": st.booleans(),
    "seconds": st.floats(allow_nan=False, allow_infinity=False),
    "entries": st.lists(ENTRY, max_size=5).map(tuple),
    "snapshot_piece": st.none() | st.tuples(st.binary(max_size=50), st.booleans(), st.booleans()),
    "transfer": st.tuples(st.text(max_size=64), NATURAL),
    "forwarded": st.lists(PART, min_size=1, max_size=3).map(tuple),
    "text": st.text(max_size=64),
    "blob": st.binary(max_size=64),
}
BAD_NUMBERS = [-1, 2**64 - 1, 1.0, True, "1", b"1", (1,), {}]
BAD: dict[str, list[Any]] = {
    "natural": [*BAD_NUMBERS, MAX_INT + 1, None],
    "natural_or_none": [*BAD_NUMBERS, MAX_INT + 1],
    "incarnation": [-1, 1.0, True, None, "1"],
    "flag": [0, 1, None, "true", 1.0],
    "seconds": [1, None, float("nan"), float("inf"), -float("inf"), "1", True],
    "entries": [
        None,
        5,
        b"abc",
        {},
        ((b"x", 1),),
        ((b"x", 1, 2, 3),),
        (("x", 1, 2),),
        ((b"x", -1, 2),),
        ((b"x", 1, True),),
        ((b"x", 1.0, 2),),
        ((b"x", 1, MAX_INT + 1),),
        (b"abc",),
        ("abc",),
        (None,),
        ((b"x", 1, 2), 7),
    ],
    "snapshot_piece": [b"x", (), (b"x",), (b"x", 1, 0), ("x", True, True), (b"x", True, True, True), 0],
    "transfer": [None, (), ("n1",), (1, 1), ("n1", -1), ("n" * 65, 1), "n1", ("n1", 1, 1)],
    "forwarded": [
        None,
        b"x",
        {},
        (b"x",),
        (("n", False, 1),),
        (("n", False, 1, (b"x",), 1),),
        ((b"n", False, 1, (b"x",)),),
        (("n" * 1025, False, 1, (b"x",)),),
        (("n", 0, 1, (b"x",)),),
        (("n", False, -1, (b"x",)),),
        (("n", False, 1.0, (b"x",)),),
        (("n", False, True, (b"x",)),),
        (("n", False, 1, b"x"),),
        (("n", False, 1, ("x",)),),
        (("n", False, 1, (b"x",)), 7),
    ],
    "text": [None, b"x", 1],
    "blob": [None, "x", 1],
}


def kind_of(check: Any) -> str:
    return str(check.__qualname__).split(".", maxsplit=1)[0]


def one_too_long(check: Any) -> list[Any]:
    """For text(limit) and blob(limit): a value just over the limit of that very field."""
    unit = {"text": "x", "blob": b"x"}.get(kind_of(check))
    return [] if unit is None else [unit * (check.__closure__[0].cell_contents + 1)]


@st.composite
def good_messages(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(TABLE)))
    row = draw(st.sampled_from(TABLE[name]))
    optional = [field for field in row.optional if draw(st.booleans())]
    fields = row.required | {field: row.optional[field] for field in optional}
    return {"type": name} | {field: draw(GOOD[kind_of(check)]) for field, check in fields.items()}


def example(name: str, row: messages.Row) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "natural": 1,
        "natural_or_none": None,
        "incarnation": 1,
        "flag": True,
        "seconds": 1.0,
        "entries": (),
        "snapshot_piece": None,
        "transfer": ("n1", 1),
        "forwarded": (("n", False, 1, (b"x",)),),
        "text": "x",
        "blob": b"x",
    }
    fields = row.required | row.optional
    return {"type": name} | {field: plain[kind_of(check)] for field, check in fields.items()}


ROWS = [(name, row) for name, rows in TABLE.items() for row in rows]


@settings(max_examples=300, deadline=None)
@given(good_messages())
def test_every_message_of_the_table_survives_the_wire(message: dict[str, Any]) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_every_field_out_of_type_or_range_is_refused(name: str, row: messages.Row) -> None:
    good = example(name, row)
    assert decode(msgpack.packb(good)) == good
    for field, check in (row.required | row.optional).items():
        for value in BAD[kind_of(check)] + one_too_long(check):
            wrong = good | {field: value}
            with pytest.raises(FrameError):
                decode(msgpack.packb(wrong))
            with pytest.raises(FrameError):
                encode(wrong)


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_missing_and_foreign_fields_are_refused(name: str, row: messages.Row) -> None:
    good = example(name, row)
    for field in row.required:
        with pytest.raises(FrameError):
            decode(msgpack.packb({key: value for key, value in good.items() if key != field}))
    with pytest.raises(FrameError):
        decode(msgpack.packb(good | {"transmission": b""}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb(5),
        msgpack.packb({}),
        msgpack.packb({"type": "apply_command", "command": b"x"}),
        msgpack.packb({"type": ["append_entries"]}),
        msgpack.packb({"type": b"echo", "term": 1, "echo": 1.0}),
        msgpack.packb({1: 2, "type": "echo"}),
        msgpack.packb(note(1)) + b"\x00",
        msgpack.packb(append() | {"transmission": "start"}),
        msgpack.packb({"type": "echo", "term": msgpack.ExtType(5, b"x"), "echo": 1.0}),
        msgpack.packb({"type": "echo", "term": msgpack.Timestamp(1), "echo": 1.0}),
        b"\x91" * 5000 + b"\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa4type\xa2\xff\xff",
    ],
)
def test_malformed_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode(body)


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=200) | st.integers(0, 10**6).map(lambda n: bytes([0x81 + n % 8]) + str(n).encode()))
def test_random_bodies_raise_nothing_else(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode(body)


@settings(max_examples=300, deadline=None)
@given(good_messages(), st.data())
def test_altered_bodies_are_refused_or_well_formed(message: dict[str, Any], data: st.DataObject) -> None:
    body = bytearray(encode(message))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(FrameError):
        messages.check(decode(bytes(body)))


def test_a_thousand_entries_are_checked_in_a_fraction_of_a_millisecond() -> None:
    message = append(tuple((b"x" * 60, index, 3) for index in range(1000)))
    best = min(_timed(lambda: messages.check(message)) for _ in range(50))
    assert best < 0.001  # about 0.1 ms here; the bound only catches a change of order


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# --- sealed frames --------------------------------------------------------------------------------------------------


def ends(guards: LinkGuards | None = None) -> tuple[LinkSession, LinkSession]:
    send, receive, link = KEYS
    return LinkSession(send, receive, link), LinkSession(receive, send, link, guards=guards or LinkGuards())


def parts(frame: bytes) -> tuple[int, bytes, bytes]:
    [only] = FrameReader(1 << 25).feed(frame)
    return only


def test_frames_open_in_order_and_a_gap_is_allowed() -> None:
    here, there = ends()
    first, _, third = (parts(here.seal(body)) for body in (b"one", b"two", b"three"))
    assert there.open(*first) == b"one"
    assert there.open(*third) == b"three"


def test_repeated_and_overtaken_frames_are_dropped() -> None:
    here, there = ends()
    first, second = parts(here.seal(b"one")), parts(here.seal(b"two"))
    assert there.open(*second) == b"two"
    assert there.open(*second) is None
    assert there.open(*first) is None


def test_without_the_sequence_guard_a_replayed_frame_counts_again() -> None:
    here, there = ends(LinkGuards(frame_sequence=False))
    vote = parts(here.seal(b"vote"))
    assert [there.open(*vote), there.open(*vote)] == [b"vote", b"vote"]


def test_without_the_mac_guard_an_altered_frame_is_believed() -> None:
    here, there = ends(LinkGuards(frame_mac=False))
    sequence, mac, _ = parts(here.seal(b"vote for n1"))
    assert there.open(sequence, mac, b"vote for n2") == b"vote for n2"


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=100), st.data())
def test_any_flipped_bit_behind_the_length_is_noticed(body: bytes, data: st.DataObject) -> None:
    here, there = ends()
    frame = bytearray(here.seal(body))
    bit = data.draw(st.integers(32, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError) as caught:
        there.open(*parts(bytes(frame)))
    assert caught.value.kind == "mac"


def test_a_frame_is_good_only_on_its_link_and_in_its_direction() -> None:
    here, there = ends()
    frame = parts(here.seal(b"x"))
    with pytest.raises(FrameError):
        here.open(*frame)  # reflected
    send, receive, _ = KEYS
    with pytest.raises(FrameError):
        LinkSession(receive, send, b"m" * 16).open(*frame)  # another link
    sequence, mac, _ = frame
    with pytest.raises(FrameError):
        there.open(sequence + 1, mac, b"x")  # renumbered


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=10), st.integers(1, 50))
def test_frames_are_found_however_the_stream_is_cut(bodies: list[bytes], piece: int) -> None:
    here, there = ends()
    stream = b"".join(here.seal(body) for body in bodies)
    reader = FrameReader(80)
    cut = [frame for at in range(0, len(stream), piece) for frame in reader.feed(stream[at : at + piece])]
    assert [there.open(*frame) for frame in cut] == bodies


def test_a_truncated_frame_yields_nothing() -> None:
    here, _ = ends()
    assert list(FrameReader(100).feed(here.seal(b"x" * 50)[:-1])) == []


def test_an_oversized_length_is_refused_before_the_body_comes() -> None:
    here, _ = ends()
    reader = FrameReader(100)
    frame = here.seal(b"x" * 101)
    assert list(reader.feed(frame[: HEADER_BYTES - 1])) == []
    with pytest.raises(FrameError) as caught:
        list(reader.feed(frame[HEADER_BYTES - 1 : HEADER_BYTES]))
    assert caught.value.kind == "oversize"


def test_good_frames_before_a_bad_one_are_still_delivered() -> None:
    here, _ = ends()
    got = []
    with pytest.raises(FrameError):
        for _, _, body in FrameReader(10).feed(here.seal(b"good") + here.seal(b"x" * 11)):
            got.append(body)
    assert got == [b"good"]


def test_a_large_frame_in_small_pieces_takes_linear_time() -> None:
    frame = ends()[0].seal(bytes(16 << 20))
    reader = FrameReader(1 << 25)

    def read() -> None:
        found = sum(1 for at in range(0, len(frame), 4096) for _ in reader.feed(frame[at : at + 4096]))
        assert found == 1

    # 16 MiB copied a few times is 25 ms; copied again for each of the 4,096 pieces it would be 32 GiB.
    assert min(_timed(read) for _ in range(3)) < 1.0
