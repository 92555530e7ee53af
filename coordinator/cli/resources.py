"""`holdfast resources list | get | put | delete`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_noun, count, not_negative, positive
from coordinator.cli.asking import add_asking, at, given, more, ms, pages
from coordinator.cli.output import Shown, fields, lasting, plain, table

if TYPE_CHECKING:
    from coordinator.client import Client

STATES = ("live", "unreferenced", "suspect", "reclaiming", "dead")
ON_LOST = ("cascade", "orphan", "block")


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    query = given(state=options.state, provider=options.provider, prefix=options.prefix)
    answer = await pages(client, "/resources", query, "resources", options.limit)
    rows = [
        [each["resource_id"], each["provider"], each["kind"], each["state"], each["leases"], each["edges_in"],
         each["pinned"]]
        for each in answer["resources"]
    ]  # fmt: skip
    columns = ("resource", "provider", "kind", "state", "leases", "edges in", "pinned")
    return Shown(answer, table(columns, rows, empty="no resources") + more(answer))


async def _get(client: Client, options: argparse.Namespace) -> Shown:
    found = await client.call("GET", at("resources", options.id))
    pairs = [
        ("resource", found["resource_id"]),
        ("provider", found["provider"]),
        ("kind", found["kind"]),
        ("state", found["state"]),
        ("references", f"{found['reference_count']} ({found['leases']} leases, {found['edges_in']} edges)"),
        ("pinned", found["pinned"]),
        ("on lost", found["on_lost"]),
        ("safety buffer", lasting(found["safety_buffer_ms"])),
        ("lifetime left", lasting(found["lifetime_left_ms"])),
        ("kept for", lasting(found["hold_left_ms"]) if found["hold_left_ms"] else None),
        *_reclaim(found["reclaim"]),
    ]
    return Shown(found, fields(pairs))


def _reclaim(reclaim: dict[str, Any] | None) -> list[tuple[str, Any]]:
    if reclaim is None:
        return []
    return [
        ("reclaim", f"{reclaim['reclaim_id']}, {reclaim['state']} for {lasting(reclaim['age_ms'])}"),
        ("worker", reclaim["worker"]),
        ("attempts", reclaim["attempt"]),
        ("last error", reclaim["last_error"]),
        ("again in", lasting(reclaim["retry_in_ms"])),
    ]


async def _put(client: Client, options: argparse.Namespace) -> Shown:
    body = {
        "provider": options.provider,
        "kind": options.kind,
        "pinned": options.pinned,
        **given(
            max_lifetime_ms=ms(options.max_lifetime),
            safety_buffer_ms=ms(options.safety_buffer),
            on_lost=options.on_lost,
        ),
    }
    answer = await client.call("PUT", at("resources", options.id), body)
    done = "registered" if answer["created"] else "changed"
    unreferred = f"kept for {lasting(answer['safety_buffer_ms'])} unless referred to"
    kept = "pinned: kept until it is deleted or its lifetime is over" if answer["pinned"] else unreferred
    return Shown(answer, f"{plain(answer['resource_id'])} {done}; {kept}")


async def _delete(client: Client, options: argparse.Namespace) -> Shown:
    query = {"force": "true"} if options.force else None
    answer = await client.call("DELETE", at("resources", options.id), query=query)
    text = f"{plain(answer['resource_id'])} will be reclaimed, as {answer['reclaim_id']}"
    return Shown(answer, text)


def add(commands: Commands) -> None:
    actions = add_noun(commands, "resources", "list, look at, register and delete resources")
    listing = add_asking(actions, "list", "resources of the namespace", _list)
    listing.add_argument("--state", choices=STATES)
    listing.add_argument("--provider", metavar="NAME")
    listing.add_argument("--prefix", help="ids that begin so")
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100")
    getting = add_asking(actions, "get", "what is known of a resource", _get)
    getting.add_argument("id", metavar="ID")
    putting = add_asking(actions, "put", "register a resource, or change it", _put)
    putting.add_argument("id", metavar="ID")
    putting.add_argument("--provider", metavar="NAME", required=True, help="whose workers clean it up")
    putting.add_argument("--kind", required=True, help="what its clean-up is")
    putting.add_argument("--max-lifetime", type=positive, metavar="S", help="reclaimed after so long in any case")
    putting.add_argument("--safety-buffer", type=not_negative, metavar="S", help="not reclaimed for so long")
    putting.add_argument("--pinned", action="store_true", help="never reclaimed but by lifetime or delete")
    putting.add_argument("--on-lost", choices=ON_LOST, help="when the last that refers to it goes")
    deleting = add_asking(actions, "delete", "have a resource reclaimed", _delete)
    deleting.add_argument("id", metavar="ID")
    deleting.add_argument("--force", action="store_true", help="also while it is referred to")
