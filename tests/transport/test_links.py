"""Real transports on loopback: order, size, reconnection, replacement, membership, back-pressure."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest

from cluster.credentials import Credentials
from cluster.frames import FrameError, encode
from cluster.handshake import Acceptor, Dialer
from cluster.listener import TransportError
from cluster.options import MIB, Limits, Timing

from .nodes import CLUSTER, DEADLINE, SECRET, Node, acquaint, append, linked, note, run, started

pytestmark = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def test_ten_thousand_messages_each_way_arrive_in_order(loop: str) -> None:
    async def scenario() -> None:
        first, second = Node("n1"), Node("n2")
        async with started(first, second):
            await linked(first, second)
            for number in range(10_000):
                assert first.transport.send("n2", note(number))
                assert second.transport.send_encoded("n1", encode(note(number)))
            for node in (first, second):
                await node.seen.until_count(10_000)
                assert [message["nonce"] for message in node.seen.messages] == list(range(10_000))
                assert 1 <= node.seen.batches < 10_000  # one step a read, not one a message

    run(loop, scenario())


def test_a_frame_of_sixteen_mebibytes(loop: str) -> None:
    async def scenario() -> None:
        first, second = Node("n1"), Node("n2")
        async with started(first, second):
            await linked(first, second)
            message = append(((b"x" * (16 * MIB), 9, 3),))
            assert first.transport.send("n2", message)
            assert first.transport.send("n2", note(1))
            await second.seen.until_count(2)
            assert second.seen.messages == [message, note(1)]
            assert first.transport.buffered_bytes("n2") == 0
            with pytest.raises(FrameError):
                first.transport.send("n2", append(((b"x" * (24 * MIB), 9, 3),)))

    run(loop, scenario())


def test_nothing_is_sent_without_a_link(loop: str) -> None:
    async def scenario() -> None:
        node = Node("n1")
        assert not node.transport.send("n2", note(1))
        async with started(node):
            assert not node.transport.send("n2", note(1))
            assert node.transport.buffered_bytes("n2") == 0
            assert node.transport.incarnation("n2") is None

    run(loop, scenario())


@pytest.mark.parametrize("restarted", ["n1", "n2"])
def test_a_restarted_node_is_linked_again(loop: str, restarted: str) -> None:
    """Whichever of dialer and acceptor it was."""

    async def scenario() -> None:
        nodes = {name: Node(name) for name in ("n1", "n2")}
        async with started(*nodes.values()):
            await linked(*nodes.values())
            [other] = [node for name, node in nodes.items() if name != restarted]
            address = nodes[restarted].transport.bound
            await nodes[restarted].stop()
            await other.seen.until(lambda: ("down", restarted) in other.seen.events)
            again = Node(restarted, listen=address, incarnation=12345)
            async with started(again):
                again.transport.set_peers({other.id: other.transport.bound})
                await other.seen.until_up(2)
                assert other.seen.events == [("up", restarted), ("down", restarted), ("up", restarted)]
                assert other.transport.incarnation(restarted) == 12345
                assert other.transport.send(restarted, note(5))
                await again.seen.until_count(1)

    run(loop, scenario())


def test_the_lesser_id_dials_when_the_other_cannot(loop: str) -> None:
    """A node that joins knows nobody: the leader, whichever id it has, must reach it."""

    async def scenario() -> None:
        leader, joiner = Node("n1"), Node("n2", joining=True)
        async with started(leader, joiner):
            leader.transport.set_peers({"n2": joiner.transport.bound})
            await leader.seen.until_up()
            await joiner.seen.until_up()
            assert leader.transport.send("n2", note(1))
            await joiner.seen.until_count(1)
            joiner.transport.set_peers({"n1": leader.transport.bound, "n2": joiner.transport.bound})
            assert joiner.transport.send("n1", note(2))
            await leader.seen.until_count(1)

    run(loop, scenario())


async def authentic(node: Node, identity: Credentials) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Dialer]:
    """A bare connection to `node` that proved itself as `identity`."""
    reader, writer = await asyncio.open_connection(*node.address)
    dialer = Dialer(identity, node.id)
    writer.write(dialer.opening())
    while dialer.established is None:
        chunk = await reader.read(4096)
        if not chunk:
            raise ConnectionResetError
        writer.write(dialer.feed(chunk))
    return reader, writer, dialer


def as_peer(node_id: str, **changes: Any) -> Credentials:
    return replace(Credentials(node_id, CLUSTER, SECRET, 1, Timing(), lambda peer: True), **changes)


def test_a_newer_link_replaces_the_older_one(loop: str) -> None:
    async def scenario() -> None:
        node = Node("n1")
        node.transport.set_peers({"n2": "127.0.0.1:1"})
        async with started(node):
            old_reader, old_writer, _ = await authentic(node, as_peer("n2", incarnation=1))
            await node.seen.until_up(1)
            _, new_writer, dialer = await authentic(node, as_peer("n2", incarnation=2))
            await node.seen.until_up(2)
            assert node.seen.events == [("up", "n2"), ("down", "n2"), ("up", "n2")]
            assert node.transport.incarnation("n2") == 2
            async with asyncio.timeout(DEADLINE):
                with pytest.raises(ConnectionError):
                    if await old_reader.read() == b"":
                        raise ConnectionResetError
            assert dialer.established is not None
            new_writer.write(dialer.established.session().seal(encode(note(3))))
            await node.seen.until_count(1)
            assert ("down", "n2") not in node.seen.events[2:]  # the old one's end is not the new one's
            for writer in (old_writer, new_writer):
                writer.close()

    run(loop, scenario())


def test_a_removed_peer_is_cut_off_and_told_so(loop: str) -> None:
    async def scenario() -> None:
        first, second = Node("n1"), Node("n2")
        async with started(first, second):
            await linked(first, second)
            events_inside_call = list(first.seen.events)
            assert first.transport.send("n2", note(1))
            first.transport.set_peers({})
            assert first.seen.events == events_inside_call  # no callback from inside set_peers
            assert not first.transport.send("n2", note(2))
            await first.seen.until(lambda: ("down", "n2") in first.seen.events)
            await second.seen.until_count(1)  # what was sent before still left
            assert "was removed" in await second.log.until("removed")
            assert len(second.seen.messages) == 1
            first.transport.set_peers({"n2": second.transport.bound})
            await first.seen.until_up(2)

    run(loop, scenario())


def test_a_receiver_may_remove_the_peer_it_is_hearing(loop: str) -> None:
    async def scenario() -> None:
        first, second = Node("n1"), Node("n2")
        second.seen.on_each = lambda peer, message: second.transport.set_peers({})
        async with started(first, second):
            await linked(first, second)
            for number in range(100):
                first.transport.send("n2", note(number))
            await second.seen.until(lambda: ("down", "n1") in second.seen.events)
            assert second.seen.messages == [note(0)]

    run(loop, scenario())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"secret": b"another secret, as long as the first"}, "bad_proof"),
        ({"cluster_id": "green"}, "wrong_cluster"),
        ({"timing": Timing(election_min=0.6)}, "timing_mismatch"),
    ],
)
def test_nodes_that_do_not_fit_never_link(loop: str, changes: dict[str, Any], code: str) -> None:
    async def scenario() -> None:
        first, second = Node("n1"), Node("n2", **changes)
        async with started(first, second):
            acquaint(first, second)
            await first.log.until(code)
            await second.log.until(code)
            assert first.seen.events == second.seen.events == []

    run(loop, scenario())


def test_a_foreign_node_behind_a_known_address_is_refused(loop: str) -> None:
    async def scenario() -> None:
        first, second = Node("n9"), Node("n2")
        async with started(first, second):
            first.transport.set_peers({"n1": second.transport.bound})
            second.transport.set_peers({"n9": first.transport.bound})
            await second.log.until("wrong_node")
            await first.log.until("wrong_node")
            assert ("up", "n1") not in first.seen.events

    run(loop, scenario())


def test_a_full_link_drops_and_goes_on_when_drained(loop: str) -> None:
    async def scenario() -> None:
        node = Node("n1", limits=Limits(link_buffer_bytes=24 * MIB))
        node.transport.set_peers({"n2": "127.0.0.1:1"})
        async with started(node):
            reader, writer, _ = await authentic(node, as_peer("n2"))
            await node.seen.until_up()
            body = encode(append(((b"x" * MIB, 9, 3),)))
            sent = 0
            while node.transport.send_encoded("n2", body):
                sent += 1
            assert 24 * MIB < node.transport.buffered_bytes("n2") <= 26 * MIB
            async with asyncio.timeout(DEADLINE):
                await reader.readexactly(sent * (len(body) + 28))
            assert node.transport.buffered_bytes("n2") == 0
            assert node.transport.send_encoded("n2", body)
            writer.close()

    run(loop, scenario())


def test_a_silent_link_is_taken_as_dead(loop: str) -> None:
    async def scenario() -> None:
        node = Node("n1", idle_seconds=0.1)
        node.transport.set_peers({"n2": "127.0.0.1:1"})
        async with started(node):
            _, writer, _ = await authentic(node, as_peer("n2"))
            await node.seen.until(lambda: node.seen.events == [("up", "n2"), ("down", "n2")])
            assert node.log.about("silent")
            writer.close()

    run(loop, scenario())


def test_a_port_in_use_is_said_with_the_fix(loop: str) -> None:
    async def scenario() -> None:
        first = Node("n1")
        async with started(first):
            second = Node("n2", listen=first.transport.bound)
            with pytest.raises(TransportError, match=f"{first.transport.bound}.*another process.*choose another"):
                await second.start()
            await second.stop()
        with pytest.raises(TransportError, match="host:port"):
            Node("n3", listen="nonsense")

    run(loop, scenario())


def test_the_port_is_free_and_nothing_calls_back_after_close(loop: str) -> None:
    async def scenario() -> None:
        first, second = Node("n1"), Node("n2")
        async with started(first, second):
            await linked(first, second)
            await first.stop()
            await second.seen.until(lambda: ("down", "n1") in second.seen.events)
            assert first.seen.events == [("up", "n2")]
            assert not first.transport.send("n2", note(1))
            with socket.create_server(first.address):
                pass

    run(loop, scenario())


def test_three_nodes_are_all_linked_with_each_other(loop: str) -> None:
    async def scenario() -> None:
        nodes = [Node(name) for name in ("n1", "n2", "n3")]
        async with started(*nodes):
            await linked(*nodes)
            assert all(node.transport.half_open == 0 for node in nodes)

    run(loop, scenario())


def test_names_are_resolved_and_ipv6_addresses_parsed(loop: str) -> None:
    async def scenario() -> None:
        first, second = Node("n1", listen="localhost:0"), Node("n2")
        async with started(first, second):
            _, _, port = first.transport.bound.rpartition(":")
            first.transport.set_peers({"n2": second.transport.bound})
            second.transport.set_peers({"n1": f"localhost:{port}"})
            await second.seen.until_up()
            with pytest.raises(TransportError):
                first.transport.set_peers({"n2": "[::1]"})
            first.transport.set_peers({"n2": "[::1]:7000"})

    run(loop, scenario())


def test_an_impostor_acceptor_gets_no_link(loop: str) -> None:
    async def scenario() -> None:
        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            acceptor = Acceptor(as_peer("n1", secret=b"i do not know the secret at all"))
            writer.write(acceptor.feed(await reader.read(4096)))
            await reader.read(4096)
            writer.write(b"\x00\x2c\x92\xa8accepted\xc4\x20" + bytes(32))
            writer.close()

        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        node = Node("n2")
        async with server, started(node):
            host, port = server.sockets[0].getsockname()
            node.transport.set_peers({"n1": f"{host}:{port}"})
            await node.log.until("does not know the cluster secret")
            assert node.seen.events == []

    run(loop, scenario())
