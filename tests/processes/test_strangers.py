"""Peers with an expired certificate, or one of another authority, at the ports of real nodes: refused, told apart in
the log, and the state is as before."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from tests.processes.fleet import Fleet
from tests.reference.register import command
from tests.transport.test_tls import DAY, Authority

CLUSTER = "fleet"


def test_an_expired_and_a_foreign_peer_are_refused_and_change_nothing(tmp_path: Path) -> None:
    ours, foreign = Authority(tmp_path / "ours"), Authority(tmp_path / "foreign")
    fleet = Fleet(tmp_path)
    for name in fleet.names:
        ours.contexts(name, cluster=CLUSTER)
        files = tmp_path / "ours" / name
        fleet.tls[name] = [str(files.with_suffix(".pem")), str(files.with_suffix(".key")), ours.ca]
    # The secret would be asked for next: neither gets that far.
    strangers = {
        "tls_untrusted": foreign.contexts("n2", cluster=CLUSTER, trust=ours.ca)["ssl_client"],
        "tls_expired": ours.contexts("n2-of-yesterday", cluster=CLUSTER, valid=-DAY)["ssl_client"],
    }
    try:
        fleet.run(lambda fleet: _besiege(fleet, strangers))
    finally:
        fleet.close()


async def _besiege(fleet: Fleet, strangers: dict[str, ssl.SSLContext]) -> None:
    fleet.start()
    leader = await fleet.leader()
    written = await fleet.clients[leader].call("propose", command("put", "k", 1), 5.0)
    assert written[0] == "committed", written
    before = await fleet.converged()
    for name in fleet.names:
        for told, context in strangers.items():
            await _knock(fleet.peer_address(name), context)
            await fleet.logged(name, told)
    after = await fleet.converged()
    assert after == before, "leader, term, log or digest changed"


async def _knock(address: str, context: ssl.SSLContext) -> None:
    """In TLS 1.3 a client learns that it is refused from the first it reads."""
    writer = None
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*address.rsplit(":", 1), ssl=context)
            writer.write(b"\0" * 64)
            said = await reader.read()
            assert not said, said
    except (ssl.SSLError, ConnectionError):
        pass  # that is how it is told
    finally:
        if writer is not None:
            writer.transport.abort()
