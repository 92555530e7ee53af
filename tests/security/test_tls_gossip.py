"""Gossip over TLS: nodes with certificates reach each other, and nobody reads or speaks plainly there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import msgpack
import pytest

from coordinator.authority import Authority
from coordinator.credentials import TlsFiles
from coordinator.gossip.calling import Caller, CallFailed, once_name
from coordinator.gossip.node import GossipNode
from coordinator.gossip.seal import Seal
from coordinator.gossip.settings import GossipSettings
from coordinator.trust import client_context
from tests.ports import free_address
from tests.waiting import until

SECRET = b"a secret of the gossip over TLS"


def test_a_record_travels_over_tls_and_plain_calls_fail(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority", "group", 30)
    ca = authority.directory / "ca.pem"
    addresses = [free_address() for _ in range(2)]

    def node(number: int) -> GossipNode:
        made = authority.node(f"g{number}", ["127.0.0.1"], 1, tmp_path, renew=False)
        return GossipNode(
            GossipSettings(
                f"g{number}",
                addresses[number],
                tmp_path / f"g{number}.db",
                SECRET,
                (addresses[1 - number],),
                20,
                TlsFiles(made.certificate, made.key, ca),
            )
        )

    async def scenario() -> None:
        nodes = [node(0), node(1)]
        try:
            for each in nodes:
                await each.start()
            async with aiohttp.ClientSession() as session:
                created = msgpack.packb(["r", b"content"])
                with pytest.raises(CallFailed):
                    await Caller(once_name(), Seal(SECRET), session).call(addresses[0], "create", lambda _: created)
                with_tls = Caller(once_name(), Seal(SECRET), session, client_context(ca))
                await with_tls.call(addresses[0], "create", lambda _: created)
                await until(lambda: "r" in nodes[1].replica.items, "the record at the other node", 20)
        finally:
            for each in nodes:
                await each.stop()

    asyncio.run(scenario())
