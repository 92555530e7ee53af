"""`holdfast locks list | get | break`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_noun, count
from coordinator.cli.asking import PAGE, add_asking, at
from coordinator.cli.output import Shown, fields, lasting, plain, table

if TYPE_CHECKING:
    from coordinator.client import Client


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    found: list[dict[str, Any]] = []
    while len(found) < options.limit:
        size = min(PAGE, options.limit - len(found))
        query = {"prefix": options.prefix, "limit": str(size), "after": found[-1]["lock_key"] if found else ""}
        page = (await client.call("GET", "/locks", query=query))["locks"]
        found += page
        if len(page) < size:
            break
    rows = [
        [each["lock_key"], _mode(each), _holder(each), each["fencing_token"], lasting(each["ttl_ms"]),
         each["queue_length"]]
        for each in found
    ]  # fmt: skip
    columns = ("key", "mode", "holder", "token", "left", "waiting")
    return Shown({"locks": found}, table(columns, rows, empty="no lock is held"))


async def _get(client: Client, options: argparse.Namespace) -> Shown:
    lock = await client.call("GET", at("locks", options.key))
    parts = [f"{plain(lock['lock_key'])}: {_mode(lock)}"]
    holders = [
        [each["client_id"], each["fencing_token"], lasting(each["ttl_ms"]), each["hold_count"], each["lease_id"],
         each["session_id"]]
        for each in lock["holders"]
    ]  # fmt: skip
    held = table(("holder", "token", "left", "count", "lease", "session"), holders, empty="nobody holds it")
    waiters = [
        [place, each["client_id"], each["mode"], lasting(each["wait_left_ms"])]
        for place, each in enumerate(lock["waiters"], start=1)
    ]
    waiting = table(("place", "waits", "mode", "for"), waiters, empty="nobody waits")
    if lock["delay_left_ms"]:
        parts.append(f"nobody gets it for {lasting(lock['delay_left_ms'])}: its last hold expired or was broken")
    return Shown(lock, "\n\n".join([*parts, held, waiting]))


def _mode(lock: dict[str, Any]) -> str:
    return f"semaphore of {lock['permits']}" if lock["permits"] > 1 else str(lock["mode"])


def _holder(lock: dict[str, Any]) -> str | None:
    """The token beside it is the newest of them all."""
    others = lock["holder_count"] - 1
    return lock["holder"] if others < 1 else f"{lock['holder']} and {others} other{'s' if others > 1 else ''}"


async def _break(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("POST", "/locks/break", {"lock_key": options.key})
    pairs = [("broken", answer["lock_key"]), ("holders", answer["holders"])]
    return Shown(answer, fields(pairs))


def add(commands: Commands) -> None:
    actions = add_noun(commands, "locks", "list, look at and break locks")
    listing = add_asking(actions, "list", "locks that are held or waited for", _list)
    listing.add_argument("--prefix", default="", help="keys that begin so")
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100")
    getting = add_asking(actions, "get", "who holds a lock, and who waits, in order", _get)
    getting.add_argument("key", metavar="KEY")
    breaking = add_asking(actions, "break", "end every hold of a lock; its holders are refused from then on", _break)
    breaking.add_argument("key", metavar="KEY")
