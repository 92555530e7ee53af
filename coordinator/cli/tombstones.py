"""`holdfast tombstones list`, `holdfast holders list | remove`: what is dead, and who has not said that it knows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from coordinator.cli.arguments import Commands, add_noun, count
from coordinator.cli.asking import add_asking, at, given, more, pages
from coordinator.cli.output import Shown, lasting, plain, table

if TYPE_CHECKING:
    from coordinator.client import Client


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    query = given(after_revision=options.after_revision)
    asked = {name: str(value) for name, value in query.items()}
    answer = await pages(client, "/tombstones", asked, "tombstones", options.limit)
    rows = [
        [each["resource_id"], each["revision"], lasting(each["age_ms"]), f"~{each['holders_estimate']}",
         f"~{each['acked_estimate']}", each["waiting"], ", ".join(each["waiting_for"]), each["bytes"]]
        for each in answer["tombstones"]
    ]  # fmt: skip
    columns = ("resource", "revision", "age", "copies", "acked", "waiting", "for", "bytes")
    return Shown(answer, table(columns, rows, empty="no tombstones") + more(answer))


async def _holders(client: Client, options: argparse.Namespace) -> Shown:
    answer = await pages(client, "/holders", {}, "holders", options.limit)
    rows = [
        [each["holder_id"], each["watermark"], each["behind"], each["lag"], f"~{each['copies_estimate']}",
         each["session_id"], "serving" if each["verified"] else "verifying"]
        for each in answer["holders"]
    ]  # fmt: skip
    columns = ("holder", "watermark", "behind", "lag", "copies", "session", "state")
    return Shown(answer, table(columns, rows, empty="no holders") + more(answer))


async def _remove(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("DELETE", at("holders", options.holder))
    done = f"{plain(answer['holder_id'])} removed at {answer['watermark']}: it must verify every copy before it serves"
    return Shown(answer, done)


def add(commands: Commands) -> None:
    tombstones = add_noun(commands, "tombstones", "what is dead, and whom it waits for")
    listing = add_asking(tombstones, "list", "tombstones, oldest first", _list)
    listing.add_argument("--after-revision", type=count, metavar="N", help="those of later revisions")
    holders = add_noun(commands, "holders", "holders of copies: list them, remove one that will not be back")
    holding = add_asking(holders, "list", "holders and how far they are", _holders)
    for added in (listing, holding):
        added.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100")
    removing = add_asking(holders, "remove", "nothing waits for it any more; it is fenced if it comes back", _remove)
    removing.add_argument("holder", metavar="HOLDER")
