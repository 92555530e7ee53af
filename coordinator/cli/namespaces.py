"""`holdfast namespace list | put | delete`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_noun
from coordinator.cli.asking import add_asking, at, given
from coordinator.cli.output import Shown, plain, table

if TYPE_CHECKING:
    from coordinator.client import Client

QUOTAS = ("leases", "locks", "waiters", "sessions", "name_bytes", "resources", "edges", "tasks", "queues",
          "holders", "tombstones", "task_bytes", "requests_per_s")  # fmt: skip


async def _list(client: Client, _: argparse.Namespace) -> Shown:
    answer = await client.call("GET", "/namespaces")
    rows = [
        [
            each["namespace"],
            each["acyclic"],
            *(f"{each['used'].get(name, '-')} / {each['quotas'][name]}" for name in QUOTAS),
        ]
        for each in answer["namespaces"]
    ]
    columns = ("namespace", "acyclic", *(name.replace("_", " ") for name in QUOTAS))
    return Shown(answer, table(columns, rows, empty="no namespaces"))


async def _put(client: Client, options: argparse.Namespace) -> Shown:
    """The interface sets every quota; what is not said here stays as it is."""
    known = (await client.call("GET", "/namespaces"))["namespaces"]
    before: dict[str, Any] = next((each for each in known if each["namespace"] == options.name), {})
    said = given(acyclic=options.acyclic, **{name: getattr(options, name) for name in QUOTAS})
    kept = {**before.get("quotas", {}), **given(acyclic=before.get("acyclic"))}
    answer = await client.call("PUT", at("namespaces", options.name), {**kept, **said})
    quotas = ", ".join(f"{name.replace('_', ' ')} {answer['quotas'][name]}" for name in QUOTAS)
    done = "changed" if before else "made"
    cycles = "refuses cycles" if answer["acyclic"] else "allows cycles"
    return Shown(answer, f"{plain(answer['namespace'])} {done}; {cycles}; at most: {quotas}")


async def _delete(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("DELETE", at("namespaces", options.name))
    return Shown(answer, f"{plain(answer['namespace'])} deleted")


def _quota(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def add(commands: Commands) -> None:
    actions = add_noun(commands, "namespace", "list, make, change and delete namespaces")
    add_asking(actions, "list", "all namespaces: what they use, and what they may", _list)
    putting = add_asking(actions, "put", "make a namespace, or change what is said here", _put)
    putting.add_argument("name", metavar="NAME")
    for name in QUOTAS:
        putting.add_argument(f"--{name.replace('_', '-')}", type=_quota, metavar="N", help="at most so many")
    cycles = putting.add_mutually_exclusive_group()
    cycles.add_argument("--acyclic", action="store_true", default=None, help="refuse edges that would close a cycle")
    cycles.add_argument("--cyclic", dest="acyclic", action="store_false", help="allow cycles; the collector finds them")
    deleting = add_asking(actions, "delete", "delete an empty namespace", _delete)
    deleting.add_argument("name", metavar="NAME")
