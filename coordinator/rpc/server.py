"""Listening: the gRPC port on the node's own event loop, its bounds, and its end without cutting calls off."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.clientlimits import CALLS_MAX, CALLS_PER_NAMESPACE, MESSAGE_BYTES_MAX, MESSAGE_S, ClientLimits
from coordinator.http.errors import ApiError, bad_request
from coordinator.http.ports import NodeView
from coordinator.http.tls import NodeTls
from coordinator.rpc import leases
from coordinator.rpc.calls import Call
from coordinator.rpc.librarylog import bound_library_log
from coordinator.rpc.listening import Listening
from coordinator.rpc.messages import CLASSES, METHODS, PACKAGE, Method
from coordinator.rpc.renewals import Renewals

QUIET_S = 0.05
QUIET_ROUNDS = 10
"""The library cancels a call that comes in while it shuts down, and its client cannot know what became of it. So for
up to so many rounds calls are refused in words, until one passes without a call."""

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # or a second node could share the port, and calls would go to either
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 1_000),
    ("grpc.keepalive_time_ms", 30_000),  # a stream whose client vanished ends
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
_MALFORMED = object()
_LOGGER = logging.getLogger(__name__)

Unary = Callable[[Call, Any], Awaitable[Any]]


class RpcServer:
    """Both services on one address. `stop` refuses new calls at once and waits for those under way."""

    kind = "grpc"

    def __init__(
        self,
        node: NodeView,
        listen: str,
        limits: ClientLimits | None = None,
        *,
        calls_of_one: int = CALLS_PER_NAMESPACE,
        message_s: float = MESSAGE_S,
    ) -> None:
        self.listen = listen
        self._limits = limits or ClientLimits()
        self._calls_of_one = calls_of_one
        self._message_s = message_s
        self._node = node
        self._renewals = Renewals()
        self._calls = 0
        self._under_way: Counter[str] = Counter()
        """By the namespace they count for, from the moment that it is known who calls."""
        self._stopping = False
        self._listening = Listening(listen, self._made)

    async def start(self) -> None:
        """OSError when the address cannot be had."""
        bound_library_log()
        await self._listening.start()

    def _made(self) -> Any:
        """While the loop runs that it shall belong to."""
        server = grpc.aio.server(options=(*_OPTIONS, *_bounds(self._limits)), maximum_concurrent_rpcs=CALLS_MAX)
        handlers: dict[str, Unary] = {
            "AcquireLease": leases.acquire,
            "RenewLease": leases.renew,
            "ReleaseReference": leases.release,
        }
        for method in METHODS:
            routed = self._stream(method) if method.streams else self._unary(method, handlers[method.name])
            service = grpc.method_handlers_generic_handler(f"{PACKAGE}.{method.service}", {method.name: routed})
            server.add_generic_rpc_handlers((service,))
        try:
            bound = self._add_port(server, self._node.tls)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        if not bound:
            raise OSError(f"{self.listen} cannot be listened on")
        return server

    def _add_port(self, server: Any, tls: NodeTls | None) -> int:
        if tls is None:
            port: int = server.add_insecure_port(self.listen)
        else:
            # Asked for with every connection, so that a renewed certificate needs no restart.
            credentials = grpc.dynamic_ssl_server_credentials(
                _certificates(tls), lambda: _certificates(tls), tls.demands_certificate
            )
            port = server.add_secure_port(self.listen, credentials)
        return port

    async def stop(self) -> None:
        self._stopping = True
        self._renewals.stop()
        for _ in range(QUIET_ROUNDS):
            before = self._calls
            await asyncio.sleep(QUIET_S)
            if self._calls == before:
                break
        await self._listening.stop()

    @asynccontextmanager
    async def _admitted(self, call: Call) -> AsyncIterator[None]:
        self._calls += 1
        if self._stopping:
            raise ApiError(503, "stopping", "this node is stopping: ask another", outcome="retry")
        namespace = await call.enter()
        if self._under_way[namespace] >= self._calls_of_one:
            message = f"{self._calls_of_one} calls of your namespace are under way here; end some, or ask another node"
            raise ApiError(429, "overloaded", message, outcome="retry")
        self._under_way[namespace] += 1
        try:
            yield
        finally:
            self._under_way[namespace] -= 1
            if not self._under_way[namespace]:
                del self._under_way[namespace]

    def _unary(self, method: Method, handler: Unary) -> Any:
        """Served as a stream of one message: the library would wait for that before it tells of the call, and so
        whoever has no access token could begin as many as there may be and leave it at that."""

        async def serve(requests: AsyncIterator[Any], context: Any) -> Any:
            call = Call(self._node, context)
            try:
                async with self._admitted(call):
                    answer = await handler(call, await _only(method, requests, self._message_s))
                    call.finish()
                    return answer
            except ApiError as error:
                await call.refuse(error)
            except Exception:  # noqa: BLE001 - logged there, and told
                await call.refuse(_bug(method))

        return grpc.stream_unary_rpc_method_handler(serve, **_codecs(method))

    def _stream(self, method: Method) -> Any:
        async def serve(requests: AsyncIterator[Any], context: Any) -> None:
            call = Call(self._node, context)
            try:
                async with self._admitted(call):
                    await self._renewals.serve(call, _well_formed(method, requests), context.write)
                    call.finish()
            except ApiError as error:
                await call.refuse(error)
            except Exception:  # noqa: BLE001 - logged there, and told
                await call.refuse(_bug(method))

        return grpc.stream_stream_rpc_method_handler(serve, **_codecs(method))


def _bounds(limits: ClientLimits) -> tuple[tuple[str, int], ...]:
    """Of connections. The library counts them for itself, and tells them apart by nothing."""
    begin_ms = int(limits.header_seconds * 1000)
    return (
        ("grpc.max_allowed_incoming_connections", limits.grpc_connections),
        ("grpc.server_handshake_timeout_ms", begin_ms),
        ("grpc.http2.settings_timeout", begin_ms),
        ("grpc.max_connection_idle_ms", int(limits.idle_seconds * 1000)),
    )


def _certificates(tls: NodeTls) -> Any:
    key, certificate, authority = tls.pem
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


def _codecs(method: Method) -> dict[str, Any]:
    return {
        "request_deserializer": _parser(CLASSES[method.request]),
        "response_serializer": CLASSES[method.response].SerializeToString,
    }


def _parser(message: Any) -> Callable[[bytes], Any]:
    def parse(raw: bytes) -> Any:
        """Left to itself, the library would answer INTERNAL, as if it were this node's mistake."""
        try:
            return message.FromString(raw)
        except DecodeError:
            return _MALFORMED

    return parse


async def _only(method: Method, requests: AsyncIterator[Any], limit_s: float) -> Any:
    try:
        async with asyncio.timeout(limit_s):
            return await anext(_well_formed(method, requests))
    except StopAsyncIteration:
        raise _malformed(method) from None
    except TimeoutError:
        message = f"no message came within {limit_s:g} seconds; send it at once"
        raise ApiError(408, "slow_request", message, outcome="retry") from None


async def _well_formed(method: Method, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if request is _MALFORMED:
            raise _malformed(method)
        yield request


def _malformed(method: Method) -> ApiError:
    return bad_request(f"the message is not a {PACKAGE}.{method.request}, or a text in it is not UTF-8")


def _bug(method: Method) -> ApiError:
    """The call may have reached the cluster before it, so the outcome is unknown."""
    _LOGGER.exception("%s failed", method.name)
    return ApiError(500, "internal", "a bug in this node; its log has the trace", outcome="unknown")
