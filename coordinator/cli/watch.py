"""`holdfast watch`: one line an event, as it happens; goes on at another node when one is lost."""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from coordinator.cli.arguments import Commands, add_remote, count
from coordinator.cli.asking import run_with_client
from coordinator.cli.output import plain

if TYPE_CHECKING:
    from coordinator.client import Client, Event

_KIND_WIDTH = 19


async def _follow(client: Client, options: argparse.Namespace) -> int:
    kinds = [each.strip() for each in options.kinds.split(",") if each.strip()]
    events = client.watch(
        prefix=options.prefix, kinds=kinds, owner=options.owner, from_revision=options.from_revision,
        after=options.after,
    )  # fmt: skip
    seen = 0
    async with contextlib.aclosing(events) as stream:
        async for event in stream:
            print(as_json(event) if options.json else line(event), flush=True)
            seen += 1
            if seen == options.count:
                break
    return 0


def as_json(event: Event) -> str:
    return json.dumps({name: value for name, value in asdict(event).items() if value is not None}, ensure_ascii=False)


def line(event: Event) -> str:
    parts = [event.id.ljust(10), event.kind.ljust(_KIND_WIDTH), plain(event.key) or "-"]
    if event.kind.startswith("edge"):
        parts.append(f"from {plain(event.owner)}")
    elif event.owner:
        parts.append(f"by {plain(event.owner)}")
    if event.fencing_token is not None:
        parts.append(f"token {event.fencing_token}")
    if event.session_id is not None:
        parts.append(f"session {event.session_id}")
    return "  ".join(parts)


def _run(options: argparse.Namespace) -> int:
    return run_with_client(options, _follow)


def _revision(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no revision; holdfast status shows the present one")
    return int(text)


def add(commands: Commands) -> None:
    added = add_remote(commands, "watch", "events as they happen, one line each (with --json, one document)", _run)
    added.add_argument("--prefix", default="", help="only of keys that begin so")
    added.add_argument("--kinds", default="", metavar="KIND,…", help="only these, such as lock_granted,lock_expired")
    added.add_argument("--owner", default="", metavar="ID", help="only of exactly this name, as the events have it")
    added.add_argument("--count", type=count, metavar="N", help="end after so many")
    start = added.add_mutually_exclusive_group()
    start.add_argument(
        "--from", dest="from_revision", type=_revision, metavar="REVISION", help="also what happened from there on"
    )
    start.add_argument("--after", metavar="EVENT", help="go on after the event of this id, the first of its line")
