"""`holdfast session list | create | renew | get | close`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from coordinator.cli.arguments import Commands, add_noun, count, lease_time
from coordinator.cli.asking import add_asking, at, ms
from coordinator.cli.output import Shown, fields, lasting, table

if TYPE_CHECKING:
    from coordinator.client import Client


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("GET", "/sessions", query={"limit": str(options.limit)})
    rows = [
        [each["session_id"], each["state"], lasting(each["ttl_ms"]), each["leases"], each["client_id"]]
        for each in answer["sessions"]
    ]
    return Shown(answer, table(("session", "state", "left", "leases", "client"), rows, empty="no sessions"))


async def _create(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("POST", "/sessions", {"client_id": client.client_id, "ttl_ms": ms(options.ttl)})
    pairs = [
        ("session", answer["session_id"]),
        ("client", client.client_id),
        ("left", lasting(answer["ttl_ms"])),
    ]
    return Shown({**answer, "client_id": client.client_id}, fields(pairs))


async def _renew(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("POST", at("sessions", options.session, "heartbeat"))
    return Shown(answer, f"renewed for {lasting(answer['ttl_ms'])}")


async def _get(client: Client, options: argparse.Namespace) -> Shown:
    session = await client.call("GET", at("sessions", options.session))
    pairs = [
        ("session", session["session_id"]),
        ("state", session["state"]),
        ("left", lasting(session["ttl_ms"])),
        ("client", session["client_id"]),
        ("leases", session["leases"]),
    ]
    return Shown(session, fields(pairs))


async def _close(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("DELETE", at("sessions", options.session))
    return Shown(answer, f"session {answer['session_id']} ended, and {answer['leases']} leases with it")


def add(commands: Commands) -> None:
    actions = add_noun(commands, "session", "list, create, renew, look at and close sessions")
    listing = add_asking(actions, "list", "sessions of the namespace", _list)
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100, at most 1000")
    creating = add_asking(actions, "create", "begin a session; it ends by itself unless it is renewed", _create)
    creating.add_argument(
        "--ttl", type=lease_time(0.001), default=60.0, metavar="S", help="lives so long (default: 60)"
    )
    creating.add_argument("--client", metavar="ID", help="whose it is (default: a new name, which the answer tells)")
    for name, about, handler, other in (
        ("renew", "keep a session for another of its lifetimes", _renew, []),
        ("get", "what is known of a session", _get, []),
        ("close", "end a session and all it owns", _close, ["delete"]),
    ):
        add_asking(actions, name, about, handler, aliases=other).add_argument("session", metavar="SESSION")
