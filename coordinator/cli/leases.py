"""`holdfast lease list | acquire | renew | release | get`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_noun, count, lease_time, positive
from coordinator.cli.asking import add_asking, at, given, more, ms, pages
from coordinator.cli.output import Shown, fields, lasting, table

if TYPE_CHECKING:
    from coordinator.client import Client


async def _acquire(client: Client, options: argparse.Namespace) -> Shown:
    body = {
        "resource_id": options.resource,
        "client_id": client.client_id,
        "lease_duration_ms": ms(options.ttl),
        **given(session_id=options.session, max_lifetime_ms=ms(options.max_lifetime)),
    }
    answer = await client.call("POST", "/leases/acquire", body)
    pairs = [
        ("lease", answer["lease_id"]),
        ("client", client.client_id),
        ("left", lasting(answer["ttl_ms"])),
        ("token", answer["fencing_token"]),
        ("references", answer["reference_count"]),
        ("had it already", answer["reacquired"] or None),
    ]
    return Shown({**answer, "client_id": client.client_id}, fields(pairs))


async def _renew(client: Client, options: argparse.Namespace) -> Shown:
    body = {"lease_id": options.lease, "client_id": options.client, "extend_duration_ms": ms(options.ttl)}
    answer = await client.call("POST", "/leases/renew", body)
    return Shown(answer, f"renewed for {lasting(answer['ttl_ms'])}")


async def _release(client: Client, options: argparse.Namespace) -> Shown:
    body = {"resource_id": options.resource, "client_id": options.client}
    answer = await client.call("POST", "/leases/release", body)
    return Shown(answer, f"released; references left: {answer['remaining_reference_count']}")


async def _get(client: Client, options: argparse.Namespace) -> Shown:
    lease = await client.call("GET", at("leases", options.lease))
    pairs = [
        ("lease", lease["lease_id"]),
        ("state", lease["state"]),
        ("left", lasting(lease["ttl_ms"])),
        ("client", lease["client_id"]),
        ("on", f"{lease['kind']} {lease['resource_id']}"),
        ("references", lease["reference_count"]),
        ("token", lease["fencing_token"]),
        ("session", lease["session_id"]),
    ]
    return Shown(lease, fields(pairs))


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    answer = await pages(client, "/leases", given(prefix=options.prefix), "leases", options.limit)
    names = ("lease_id", "resource_id", "client_id", "fencing_token")
    rows = [[*(each[name] for name in names), lasting(each["ttl_ms"]), each["session_id"]] for each in answer["leases"]]
    columns = ("lease", "resource", "client", "token", "left", "session")
    return Shown(answer, table(columns, rows, empty="no leases") + more(answer))


def add(commands: Commands) -> None:
    actions = add_noun(commands, "lease", "list, acquire, renew, release and look up leases")
    listing = add_asking(actions, "list", "active leases on resources", _list)
    listing.add_argument("--prefix", help="on ids that begin so")
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100")
    acquire = add_asking(actions, "acquire", "get a lease on a resource", _acquire)
    acquire.add_argument("resource", metavar="RESOURCE")
    acquire.add_argument("--client", metavar="ID", help="whose it is (default: a new name, which the answer tells)")
    _add_ttl(acquire)
    acquire.add_argument("--session", metavar="ID", help="it lives as long as this session")
    acquire.add_argument("--max-lifetime", type=positive, metavar="S", help="no renewal takes it further")
    renew = add_asking(actions, "renew", "keep a lease longer", _renew)
    renew.add_argument("lease", metavar="LEASE")
    renew.add_argument("--client", metavar="ID", required=True)
    _add_ttl(renew)
    release = add_asking(actions, "release", "give a lease back", _release)
    release.add_argument("resource", metavar="RESOURCE")
    release.add_argument("--client", metavar="ID", required=True)
    get = add_asking(actions, "get", "what is known of a lease", _get)
    get.add_argument("lease", metavar="LEASE")


def _add_ttl(added: Any) -> None:
    added.add_argument("--ttl", type=lease_time(0.001), default=60.0, metavar="S", help="for how long (default: 60)")
