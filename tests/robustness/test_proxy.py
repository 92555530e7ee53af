"""The proxy between nodes does to frames what it is told, on one way of one pair, and nothing to the others."""

from __future__ import annotations

import asyncio
import struct
import time

import msgpack
import pytest

from tests.robustness.faults import bridged, unheard_in_ring
from tests.robustness.proxy import Links, NodeProxy, Way
from tests.waiting import until

HELLO, PROOF, CHALLENGE, ACCEPTED = b"hello", b"proof", b"challenge", b"accepted"


def message(body: bytes) -> bytes:
    return struct.pack(">H", len(body)) + body


def frame(number: int) -> bytes:
    body = b"frame %d" % number
    return struct.pack(">IQ16s", len(body), number, b"mac") + body


async def carried(way: Way, count: int, *, whole: bool = True) -> tuple[list[bytes], Links]:
    """What arrives of `count` frames that n2 sends to n1, and what the proxy counted."""
    links, arrived = Links(seed=3), bytearray()
    vars(links.way("n2", "n1")).update(vars(way))
    ended = asyncio.Event()

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(message(CHALLENGE) + message(ACCEPTED) + frame(99))
        while piece := await reader.read(1 << 16):
            arrived.extend(piece)
        writer.close()
        ended.set()

    server = await asyncio.start_server(node, "127.0.0.1", 0)
    proxy = NodeProxy("n1", server.sockets[0].getsockname()[:2], links)
    await proxy.listen("127.0.0.1", 0)
    address = proxy.address()
    reader, writer = await asyncio.open_connection(*address)
    hello = msgpack.packb(["magic", 1, "cluster", "n2", "n1"])
    writer.write(message(hello) + message(PROOF) + b"".join(frame(number) for number in range(count)))
    back = message(CHALLENGE) + message(ACCEPTED) + frame(99)
    assert await reader.readexactly(len(back)) == back
    await until(lambda: links.happened["frames"] == count + 1, "all frames to pass", 10)
    expected = links.happened["frames"] - 1 - links.happened["lost"] + links.happened["doubled"]
    start = message(hello) + message(PROOF)
    if whole:
        await until(lambda: len(arrived) >= len(start) + len(frame(0)) * expected, "them to arrive", 10)
    writer.close()
    await proxy.close()
    await until(ended.is_set, "the node to see the end", 10)
    server.close()
    assert arrived.startswith(start)
    rest, size = bytes(arrived[len(start) :]), len(frame(0))
    return [rest[place : place + size] for place in range(0, len(rest), size)], links


@pytest.mark.parametrize(
    ("way", "counted"),
    [
        (Way(), None),
        (Way(drop=0.3), "lost"),
        (Way(duplicate=0.3), "doubled"),
        (Way(corrupt=0.3), "corrupted"),
        (Way(delay_s=0.05), "delayed"),
        (Way(bytes_per_s=2_000), "throttled"),
    ],
)
def test_frames_are_treated_as_told(way: Way, counted: str | None) -> None:
    sent = [frame(number) for number in range(9)]
    arrived, links = asyncio.run(carried(way, 9))
    if counted is None:
        assert arrived == sent
    else:
        assert links.happened[counted] > 0
    if counted in ("delayed", "throttled"):
        assert arrived == sent
    if counted == "lost":
        assert arrived == [each for each in sent if each in arrived] and len(arrived) < len(sent)
    if counted == "doubled":
        assert sorted(set(arrived)) == sorted(sent) and len(arrived) > len(sent)
    if counted == "corrupted":
        assert len(arrived) == len(sent) and arrived != sent


def test_what_is_throttled_takes_as_long_as_its_bytes() -> None:
    began_s, rate = time.monotonic(), 1_000
    asyncio.run(carried(Way(bytes_per_s=rate), 9))
    assert time.monotonic() - began_s >= 9 * len(frame(0)) / rate


def test_the_end_of_a_frame_is_missing() -> None:
    arrived, links = asyncio.run(carried(Way(truncate=1.0), 9, whole=False))
    stream = b"".join(arrived)
    assert links.happened["truncated"] == 9 and stream
    assert len(stream) < 9 * len(frame(0)) and all(frame(number) not in stream for number in range(9))


@pytest.mark.parametrize("size", [3, 5])
def test_in_a_ring_every_node_hears_another_majority(size: int) -> None:
    names = [f"n{number}" for number in range(1, size + 1)]
    unheard = unheard_in_ring(names)
    majorities = [{sender for sender in names if (sender, name) not in unheard} for name in names]
    assert all(name in heard and len(heard) == size // 2 + 1 for name, heard in zip(names, majorities, strict=True))
    assert len({frozenset(heard) for heard in majorities}) == size


@pytest.mark.parametrize("size", [3, 5])
def test_a_bridge_has_two_halves(size: int) -> None:
    others = [f"n{number}" for number in range(2, size + 1)]
    cut = bridged(others)
    assert len(cut) == (size // 2) ** 2 and all(one != other for one, other in cut)
    assert {name for pair in cut for name in pair} == set(others)


def test_a_frame_is_overtaken() -> None:
    arrived, links = asyncio.run(carried(Way(reorder=0.5), 8))
    assert links.happened["overtaken"] > 0
    assert arrived != sorted(arrived)


def test_mending_puts_everything_right() -> None:
    links = Links(seed=1)
    links.way("a", "b").cut = True
    links.mend()
    assert links.way("a", "b") == Way()
