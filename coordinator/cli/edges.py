"""`holdfast edges list | add | remove`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_noun, add_remote, count
from coordinator.cli.asking import add_asking, ask, given, more, pages
from coordinator.cli.output import Shown, complain, plain, table
from coordinator.cli.resources import ON_LOST

if TYPE_CHECKING:
    from coordinator.client import Client


def _run_list(options: argparse.Namespace) -> int:
    if options.source is None and options.target is None:
        return complain(options, "say --source ID, --target ID, or both", 2, code="usage")
    return ask(options, _list)


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    query = given(source=options.source, target=options.target)
    answer = await pages(client, "/edges", query, "edges", options.limit)
    rows = [[each["source_resource_id"], each["target_resource_id"], each["on_lost"]] for each in answer["edges"]]
    return Shown(answer, table(("source", "target", "on lost"), rows, empty="no edges") + more(answer))


async def _add(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("PUT", "/edges", {**_ends(options), **given(on_lost=options.on_lost)})
    done = "added" if answer["created"] else "was there already"
    return Shown(answer, f"{_arrow(answer)} {done}")


async def _remove(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("DELETE", "/edges", _ends(options))
    left = answer["remaining_reference_count"]
    return Shown(answer, f"{_arrow(answer)} removed; references left: {left}")


def _ends(options: argparse.Namespace) -> dict[str, str]:
    return {"source_resource_id": options.source, "target_resource_id": options.target}


def _arrow(answer: dict[str, Any]) -> str:
    return f"{plain(answer['source_resource_id'])} → {plain(answer['target_resource_id'])}"


def add(commands: Commands) -> None:
    actions = add_noun(commands, "edges", "list, add and remove references between resources")
    listing = add_remote(actions, "list", "edges from --source, or to --target", _run_list)
    listing.add_argument("--source", metavar="ID")
    listing.add_argument("--target", metavar="ID")
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100")
    adding = add_asking(actions, "add", "have SOURCE refer to TARGET, and so keep it", _add)
    adding.add_argument("--on-lost", choices=ON_LOST, help="of this edge (default: as the target was registered)")
    removing = add_asking(actions, "remove", "cut an edge", _remove)
    for added in (adding, removing):
        added.add_argument("source", metavar="SOURCE")
        added.add_argument("target", metavar="TARGET")
