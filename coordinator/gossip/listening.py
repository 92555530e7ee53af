"""The answering side of HTTP: nothing is read, remembered or changed for somebody who has not proved the secret."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgpack
from aiohttp import web

from cluster.quiet import Quiet
from coordinator.addresses import place_of, split_address
from coordinator.clientlimits import ClientLimits
from coordinator.events import log_event
from coordinator.gossip.calling import CALL_S, MAC_HEADER, NONCE_HEADER, PREFIX, SENDER_HEADER, Caller
from coordinator.gossip.limits import (
    BODIES_BYTES,
    BODIES_BYTES_PER_ADDRESS,
    CONNECTIONS,
    CONNECTIONS_PER_ADDRESS,
    MESSAGE_BYTES,
)
from coordinator.gossip.messages import Message, check_content, check_record_id, decode, encode, unpacked
from coordinator.gossip.replica import Refused, Replica, Tombstone
from coordinator.gossip.seal import Busy, Nonces, NotAuthentic, Seal, same
from coordinator.gossip.settings import GossipSettings
from coordinator.gossip.tally import Implausible, check_node_id
from coordinator.http.connection import Connection
from coordinator.http.door import Door
from coordinator.http.entrance import Bodies
from coordinator.http.errors import ApiError

SHOWN_ITEMS = 1000
HEAD_S = CALL_S
"""What a connection has for its first request to begin and for the head of each to come."""


class Answerer(Protocol):
    """The node, as the listener needs it."""

    replica: Replica

    @property
    def incarnation(self) -> int: ...

    @property
    def caller(self) -> Caller: ...

    async def answer(self, message: Message, *, greeting: bool) -> Message: ...

    async def create(self, record_id: str, content: bytes) -> None: ...

    async def delete(self, record_id: str) -> None: ...


@web.middleware
async def _begin(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Tells the connection that it is not idle."""
    if isinstance(request.protocol, Connection):
        request.protocol.begin()
    return await handler(request)


class Listener:
    def __init__(self, settings: GossipSettings, seal: Seal, nonces: Nonces, node: Answerer) -> None:
        self._settings = settings
        self._seal = seal
        self._nonces = nonces
        self._node = node
        self._bodies = Bodies(BODIES_BYTES, BODIES_BYTES_PER_ADDRESS)
        self._quiet = Quiet(asyncio.get_running_loop().time)
        self._door: Door | None = None
        app = web.Application(client_max_size=MESSAGE_BYTES, middlewares=[_begin])
        app.router.add_post(f"{PREFIX}/challenge", self._challenge)
        app.router.add_post(f"{PREFIX}/{{verb}}", self._sealed)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def start(self) -> None:
        await self._runner.setup()
        host, port = split_address("listen", self._settings.listen)
        tls = None if self._settings.tls is None else self._settings.tls.serving()
        limits = ClientLimits(CONNECTIONS, CONNECTIONS_PER_ADDRESS, header_seconds=HEAD_S)
        if self._runner.server is not None:
            self._door = Door(self._runner.server, self._runner.app, limits, tls)
            await self._door.open(host, port)

    async def stop(self) -> None:
        if self._door is not None:
            await self._door.close()
        await self._runner.cleanup()

    async def _challenge(self, request: web.Request) -> web.Response:
        try:
            asker = check_node_id(request.headers.get(SENDER_HEADER))
        except Implausible:
            return web.Response(status=403)
        nonce = self._nonces.make(asker, self._node.replica.round)
        return web.Response(body=msgpack.packb([self._settings.node_id, nonce]))

    async def _sealed(self, request: web.Request) -> web.Response:
        """403 without a word for strangers; everybody else gets a sealed answer."""
        try:
            async with asyncio.timeout(CALL_S):
                asker, body, mac = await self._proven(request)
        except (NotAuthentic, Implausible, ValueError) as error:
            self._tell("gossip_refused", request.remote or "", str(error))
            return web.Response(status=403)
        except (Busy, ApiError) as error:
            self._tell("gossip_busy", request.remote or "", str(error))
            return web.Response(status=503)
        except TimeoutError:
            return web.Response(status=408)
        finally:
            self._bodies.release(request)
        try:
            status, answer = 200, await self._do(request.match_info["verb"], asker, body)
        except Implausible as error:
            self._tell("gossip_refused", asker, str(error))
            status, answer = 400, str(error).encode()
        except Refused as error:
            status, answer = 409, str(error).encode()
        sealed = self._seal.answer(mac, status, answer).hex()
        return web.Response(status=status, body=answer, headers={MAC_HEADER: sealed})

    def _tell(self, event: str, asker: str, reason: str) -> None:
        kept_back = self._quiet.kept_back(asker, event)
        if kept_back is not None:
            more = {"more_like_it": kept_back} if kept_back else {}
            log_event(event, {"level": "warning", "from": asker, "reason": reason, **more})

    async def _proven(self, request: web.Request) -> tuple[str, bytes, bytes]:
        """Who asks, the body and its MAC; the nonce first, so that no body is read for one that is bad."""
        now_round = self._node.replica.round
        asker = check_node_id(request.headers.get(SENDER_HEADER))
        nonce = bytes.fromhex(request.headers.get(NONCE_HEADER, ""))
        mac = bytes.fromhex(request.headers.get(MAC_HEADER, ""))
        self._nonces.check(nonce, asker, now_round)
        self._bodies.reserve(request, place_of(request.remote or ""))
        body = await request.read()
        expected = self._seal.request("POST", request.path, asker, self._settings.node_id, nonce, body)
        if not same(mac, expected):
            raise NotAuthentic("a wrong MAC")
        # Again: the same request may have come twice while the body was read.
        self._nonces.check(nonce, asker, now_round)
        self._nonces.spend(nonce, now_round)
        return asker, body, mac

    async def _do(self, verb: str, asker: str, body: bytes) -> bytes:
        if verb in ("greet", "say"):
            message = decode(body, self._node.replica.shape)
            if message.sender != asker or asker == self._settings.node_id:
                raise Implausible(f"{asker} speaks in the name of {message.sender}")
            return encode(await self._node.answer(message, greeting=verb == "greet"))
        match verb, unpacked(body):
            case "create", [record_id, content]:
                await self._node.create(check_record_id(record_id), check_content(content))
            case "delete", [record_id]:
                await self._node.delete(check_record_id(record_id))
            case "status", []:
                packed: bytes = msgpack.packb(self._status())
                return packed
            case _:
                raise Implausible(f"{verb} is nothing a gossip node does, or not with this body")
        return b""

    def _status(self) -> dict[str, Any]:
        replica = self._node.replica
        shown = list(replica.items.items())[:SHOWN_ITEMS]
        tombstones = {
            record_id: {
                "keeper": replica.keeps(record_id),
                "holders": held.holders.estimate(),
                "buried": held.buried.estimate(),
                "waits_for": sorted((held.holders.ids or frozenset()) - (held.buried.ids or frozenset())),
            }
            for record_id, held in shown
            if isinstance(held, Tombstone)
        }
        traffic, counters = self._node.caller.traffic, replica.counters
        return {
            "node": replica.node_id,
            "incarnation": self._node.incarnation,
            "round": replica.round,
            "items": len(replica.items),
            "records": [record_id for record_id, held in shown if record_id not in tombstones],
            "tombstones": tombstones,
            "buried": counters.buried,
            "stepped_down": counters.stepped_down,
            "refused_copies": counters.refused_copies,
            "sent_bytes": traffic.sent_bytes,
            "received_bytes": traffic.received_bytes,
        }
