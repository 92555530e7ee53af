"""`holdfast reclaims list | lanes | retry | purge`: clean-ups, and those that were given up."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_noun, count
from coordinator.cli.asking import PAGE, add_asking, given, more, pages
from coordinator.cli.output import Bar, Shown, lasting, table

if TYPE_CHECKING:
    from coordinator.client import Client

STATES = ("pending", "delayed", "claimed", "dead")


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    query = given(state=options.state, provider=options.provider, kind=options.kind)
    answer = await pages(client, "/reclaims", query, "items", options.limit)
    rows = [
        [each["reclaim_id"], each["resource_id"], each["provider"], each["kind"], each["state"], each["attempt"],
         lasting(each["age_ms"]), each["worker"], each["last_error"]]
        for each in answer["items"]
    ]  # fmt: skip
    columns = ("reclaim", "resource", "provider", "kind", "state", "attempt", "age", "worker", "last error")
    return Shown(answer, table(columns, rows, empty="nothing to clean up") + more(answer))


async def _lanes(client: Client, options: argparse.Namespace) -> Shown:
    query = given(provider=options.provider, kind=options.kind)
    lanes: list[dict[str, Any]] = (await client.call("GET", "/reclaims", query={**query, "limit": "1"}))["lanes"]
    names = ("provider", "kind", "pending", "delayed", "claimed", "dead", "failures")
    rows = [[*(each[name] for name in names), lasting(each["closed_for_ms"] or None)] for each in lanes]
    return Shown({"lanes": lanes}, table((*names, "closed for"), rows, empty="no lanes"))


async def _retry(client: Client, options: argparse.Namespace) -> Shown:
    return await _all_of(client, options, "retry", "retried")


async def _purge(client: Client, options: argparse.Namespace) -> Shown:
    return await _all_of(client, options, "purge", "purged")


async def _all_of(client: Client, options: argparse.Namespace, verb: str, done: str) -> Shown:
    """In pieces, each a request that is quickly through the log."""
    moved, left = 0, 1
    most = options.max
    with Bar(verb) as bar:
        while left and (most is None or moved < most):
            size = PAGE if most is None else min(PAGE, most - moved)
            body = {"provider": options.provider, "max": size, **given(kind=options.kind)}
            answer = await client.call("POST", f"/reclaims/{verb}", body)
            moved, left = moved + answer[done], answer["left"]
            bar.at(moved / max(1, moved + left), f"{moved} of {moved + left}")
            if not answer[done]:
                break
    return Shown({done: moved, "left": left}, f"{moved} {done}, {left} left")


def add(commands: Commands) -> None:
    actions = add_noun(commands, "reclaims", "clean-ups: list them, retry or purge dead letters")
    listing = add_asking(actions, "list", "clean-ups on their way", _list)
    listing.add_argument("--state", choices=STATES)
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100")
    lanes = add_asking(actions, "lanes", "how each provider's kinds are doing", _lanes)
    for added in (listing, lanes):
        added.add_argument("--provider", metavar="NAME")
    retrying = add_asking(actions, "retry", "give dead letters all their attempts again, oldest first", _retry)
    purging = add_asking(actions, "purge", "forget dead letters and their resources, oldest first", _purge)
    for added in (retrying, purging):
        added.add_argument("--provider", metavar="NAME", required=True)
        added.add_argument("--max", type=count, metavar="N", help="at most so many (default: all)")
    for added in (listing, lanes, retrying, purging):
        added.add_argument("--kind")
