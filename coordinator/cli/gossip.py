"""`holdfast gossip`: run a node for copies that are held without the coordinator, and talk to one."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from coordinator.cli.arguments import Commands, add_command, add_json, add_noun, address
from coordinator.cli.output import Shown, complain, fields, plain, table
from coordinator.trust import client_context


def _run(options: argparse.Namespace) -> int:
    # Imported here: everything else on this command line starts without the server's libraries.
    from cluster.options import OptionsError  # noqa: PLC0415
    from coordinator.events import start_log  # noqa: PLC0415
    from coordinator.gossip.node import run_gossip  # noqa: PLC0415
    from coordinator.gossip.settings import SettingsError, load_settings  # noqa: PLC0415
    from coordinator.gossip.store import StoreError  # noqa: PLC0415

    async def run() -> int:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await run_gossip(settings, stop)

    try:
        settings = load_settings(options.config, insecure=options.insecure)
        start_log(settings.node_id, options.log_level, "json" if options.json else "text")
        return asyncio.run(run())
    except (SettingsError, StoreError, OptionsError, OSError) as error:
        return complain(options, str(error), 1)


def _ask(options: argparse.Namespace, verb: str, fields_sent: list[Any]) -> Any:
    """What the node at --at answers; None after a complaint."""
    import aiohttp  # noqa: PLC0415
    import msgpack  # noqa: PLC0415

    from coordinator.gossip.calling import Caller, CallFailed, CallRefused, once_name  # noqa: PLC0415
    from coordinator.gossip.seal import Seal  # noqa: PLC0415
    from coordinator.gossip.settings import SettingsError, load_secret  # noqa: PLC0415

    async def ask() -> bytes:
        async with aiohttp.ClientSession() as session:
            tls = None if options.ca is None else client_context(options.ca)
            caller = Caller(once_name(), Seal(load_secret(options.secret_file)), session, tls)
            packed: bytes = msgpack.packb(fields_sent, use_bin_type=True)
            return (await caller.call(options.at, verb, lambda _: packed))[1]

    try:
        raw = asyncio.run(ask())
    except CallFailed as error:
        complain(options, str(error), 75, code="unavailable", outcome="unknown")
        return 75
    except (CallRefused, SettingsError) as error:
        complain(options, str(error), 1)
        return 1
    return msgpack.unpackb(raw) if raw else {}


def _put(options: argparse.Namespace) -> int:
    answer = _ask(options, "create", [options.record, sys.stdin.buffer.read()])
    return answer if isinstance(answer, int) else _done(options, "held")


def _delete(options: argparse.Namespace) -> int:
    answer = _ask(options, "delete", [options.record])
    return answer if isinstance(answer, int) else _done(options, "deleted")


def _done(options: argparse.Namespace, what: str) -> int:
    return Shown({"record": options.record, "state": what}, f"{plain(options.record)} {what}").print(options)


def _status(options: argparse.Namespace) -> int:
    answer = _ask(options, "status", [])
    if isinstance(answer, int):
        return answer
    simple = fields((name, value) for name, value in answer.items() if not isinstance(value, list | dict))
    stones = table(
        ("tombstone", "keeper", "holders", "buried", "waits for"),
        (
            (name, each["keeper"], each["holders"], each["buried"], ", ".join(each["waits_for"]))
            for name, each in answer["tombstones"].items()
        ),
        empty="no tombstones",
    )
    return Shown(answer, f"{simple}\n\n{stones}").print(options)


def add(commands: Commands) -> None:
    actions = add_noun(commands, "gossip", "hold copies among peers, without the coordinator")
    run = add_command(actions, "run", "run one gossip node", _run)
    run.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file; see docs/TOMBSTONES.md")
    run.add_argument("--insecure", action="store_true", help="listen beyond this machine though there is no [tls]")
    run.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    run.add_argument("--json", action="store_true", help="log JSON lines, for programs")
    for name, about, command in (
        ("put", "make a record of what comes on standard input", _put),
        ("delete", "delete a record from everywhere", _delete),
        ("status", "what a node holds and keeps", _status),
    ):
        added = add_command(actions, name, about, command)
        if name != "status":
            added.add_argument("record", metavar="ID")
        added.add_argument("--at", type=address, required=True, metavar="HOST:PORT", help="the node to ask")
        added.add_argument("--secret-file", type=Path, required=True, metavar="FILE", help="the group's secret")
        added.add_argument("--ca", type=Path, metavar="FILE", help="the nodes' authority, if they serve TLS")
        add_json(added)
