"""What one caller can take of the gRPC port: calls that say nothing, calls that find nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from coordinator.http.access import Gate
from coordinator.http.ports import NodeView
from coordinator.machine.accesscommands import CreateToken, Scope
from coordinator.machine.commands import AcquireLease, PutNamespace
from coordinator.rpc.messages import CLASSES, PACKAGE
from coordinator.rpc.server import RpcServer
from coordinator.tokens import digest_of, new_id, new_token
from tests.ports import free_port
from tests.security.doorway import view_of
from tests.service.lone import LoneHost

LIMIT_S = 60
RENEW = f"/{PACKAGE}.DistributedGCService/RenewLease"
STREAM = f"/{PACKAGE}.LeaseRenewalService/RenewLeases"
QUOTAS = (100, 100, 100, 100, 100_000)


@asynccontextmanager
async def served(view: NodeView, **bounds: Any) -> AsyncIterator[Any]:
    listen = f"127.0.0.1:{free_port()}"
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
