"""`holdfast session list | get | delete`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from coordinator.cli.arguments import Commands, add_noun, count
from coordinator.cli.asking import add_asking, at
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


async def _delete(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("DELETE", at("sessions", options.session))
    return Shown(answer, f"session {answer['session_id']} ended, and {answer['leases']} leases with it")


def add(commands: Commands) -> None:
    actions = add_noun(commands, "session", "list, look at and end sessions")
    listing = add_asking(actions, "list", "sessions of the namespace", _list)
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100, at most 1000")
    for name, about, handler in (
        ("get", "what is known of a session", _get),
        ("delete", "end a session and all it owns", _delete),
    ):
        add_asking(actions, name, about, handler).add_argument("session", metavar="SESSION")
