"""What one caller can take of the gRPC port: connections, calls that say nothing, calls that find nothing."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from coordinator.clientlimits import DESCRIPTORS_KEPT, ClientLimits
from coordinator.http.access import Gate
from coordinator.http.descriptors import affordable
from coordinator.http.ports import NodeView
from coordinator.machine.accesscommands import CreateToken, Scope
from coordinator.machine.commands import AcquireLease, PutNamespace
from coordinator.rpc.messages import CLASSES, PACKAGE
from coordinator.rpc.server import RpcServer
from coordinator.tokens import digest_of, new_id, new_token
from tests.ports import free_port
from tests.security.doorway import view_of
from tests.service.lone import LoneHost
from tests.waiting import until

LIMIT_S = 60
RENEW = f"/{PACKAGE}.DistributedGCService/RenewLease"
STREAM = f"/{PACKAGE}.LeaseRenewalService/RenewLeases"
QUOTAS = (100, 100, 100, 100, 100_000)


@asynccontextmanager
async def served(view: NodeView, port: int | None = None, **bounds: Any) -> AsyncIterator[Any]:
    listen = f"127.0.0.1:{port or free_port()}"
    server = RpcServer(view, listen, **bounds)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(listen) as channel:
            yield channel
    finally:
        await server.stop()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def begun(channel: Any, path: str, *metadata: tuple[str, str]) -> Any:
    """A call that has begun and says nothing, however many messages it has by the contract."""
    return channel.stream_stream(
        path,
        request_serializer=CLASSES["RenewLeaseRequest"].SerializeToString,
        response_deserializer=CLASSES["RenewLeaseResponse"].FromString,
    )(metadata=metadata)


async def answer_of(call: Any, lease_id: str = "0000000000000001") -> Any:
    await call.write(CLASSES["RenewLeaseRequest"](lease_id=lease_id, client_id="c", extend_duration_ms=60_000))
    return await call.read()


async def ended(reader: asyncio.StreamReader) -> None:
    """Returns when the node has closed this connection."""
    with suppress(ConnectionError):
        while await reader.read(1 << 10):
            pass


def test_connections_are_bounded() -> None:
    async def scenario() -> None:
        port = free_port()
        async with served(view_of(LoneHost()), port, limits=ClientLimits(grpc_connections=2)) as channel:
            kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, _ in kept:
                assert await reader.read(1), "both are spoken to"
            crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            for reader, _ in crowd:
                await ended(reader)
            assert await begun(channel, RENEW).code() is grpc.StatusCode.UNAVAILABLE
            for _, writer in (*kept, *crowd):
                writer.close()

            async def let_in() -> bool:
                await channel.channel_ready()
                return not (await answer_of(begun(channel, RENEW))).success

            await until(let_in, "a call on a place that was given back", LIMIT_S)

    run(scenario)


def test_connections_that_say_nothing_are_ended() -> None:
    """Before their hand-shake, or after their calls."""

    async def scenario() -> None:
        port, limits = free_port(), ClientLimits(header_seconds=0.2, idle_seconds=0.2)
        async with served(view_of(LoneHost()), port, limits=limits) as channel:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await ended(reader)
            writer.close()
            call = begun(channel, RENEW)
            assert not (await answer_of(call)).success
            await call.code()
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            assert not (await answer_of(begun(channel, RENEW))).success

    run(scenario)


def test_two_ports_share_the_descriptors_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = 4_096
    limits = {resource.RLIMIT_NOFILE: (1_024, hard)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    wanted = ClientLimits(connections=2 * hard, connections_per_address=1, grpc_connections=hard)
    both, alone = affordable(wanted, grpc=True), affordable(wanted)
    assert limits[resource.RLIMIT_NOFILE] == (hard, hard), "all that may be had"
    assert both.connections + both.grpc_connections == alone.connections == hard - DESCRIPTORS_KEPT
    assert both.grpc_connections == pytest.approx(both.connections / 2, abs=1)
    few = ClientLimits(connections=3, connections_per_address=1, grpc_connections=2)
    assert affordable(few, grpc=True) == few


def test_a_stranger_has_no_call_under_way() -> None:
    """Also one that says nothing: as many as there may be would keep everybody else out."""

    async def scenario() -> None:
        async with served(view_of(LoneHost(), Gate())) as channel:
            wrong = ("authorization", f"Bearer {new_token(new_id())}")
            for path in (RENEW, STREAM):
                assert await begun(channel, path).code() is grpc.StatusCode.UNAUTHENTICATED
                assert await begun(channel, path, wrong).code() is grpc.StatusCode.UNAUTHENTICATED

    run(scenario)


def test_calls_of_one_namespace_leave_room_for_others() -> None:
    async def scenario() -> None:
        host = LoneHost()
        host.run(PutNamespace(*QUOTAS), namespace="other")
        async with served(view_of(host), calls_of_one=2) as channel:
            kept = [begun(channel, STREAM) for _ in range(2)]
            for each in kept:
                assert not (await answer_of(each)).success
            for path in (RENEW, STREAM):
                assert await begun(channel, path).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            other = begun(channel, STREAM, ("x-holdfast-namespace", "other"))
            assert not (await answer_of(other)).success
            await kept[0].done_writing()
            assert await kept[0].code() is grpc.StatusCode.OK
            assert not (await answer_of(begun(channel, RENEW))).success

    run(scenario)


def test_a_call_whose_message_does_not_come_is_ended() -> None:
    async def scenario() -> None:
        async with served(view_of(LoneHost()), message_s=0.1) as channel:
            silent = begun(channel, RENEW)
            assert await silent.code() is grpc.StatusCode.UNAVAILABLE
            assert dict(await silent.trailing_metadata())["x-holdfast-code"] == "slow_request"
        async with served(view_of(LoneHost())) as channel:
            empty = begun(channel, RENEW)
            await empty.done_writing()
            assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(scenario)


def test_what_finds_nothing_counts_against_the_rate_as_well() -> None:
    """A lease of another prefix is as unknown as any; asking for it has a price like any other request."""

    async def scenario() -> None:
        host, token_id = LoneHost(), new_id()
        token = new_token(token_id)
        _, made, _ = host.run(
            PutNamespace(*QUOTAS, requests_per_s=1),
            AcquireLease("theirs/r", "c", 60_000, session_id=None, max_lifetime_ms=None),
            CreateToken(token_id, digest_of(token), "bob", (Scope("default", "write", "own/"),), bound=False),
        )
        async with served(view_of(host, Gate())) as channel:
            for path in (RENEW, STREAM):
                codes = set()
                for _ in range(4):
                    call = begun(channel, path, ("authorization", f"Bearer {token}"))
                    with suppress(grpc.aio.AioRpcError):
                        assert not (await answer_of(call, f"{made.lease_id:016x}")).success
                        await call.done_writing()
                    codes.add(await call.code())
                assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes

    run(scenario)
