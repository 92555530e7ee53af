"""The command line: `holdfast up | node | status | member | transfer | snapshot | version`."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coordinator import __version__
from coordinator.config import ConfigError, load_config
from coordinator.devcluster import DevCluster, DevClusterError, Layout
from coordinator.endpoint import EndpointError, call

DEFAULT_ENDPOINT = "127.0.0.1:7101"
MEMBER_TIMEOUT_S = 60
CATCH_UP_S = 300
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. Mistakes are one line on standard error."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except (ConfigError, DevClusterError, EndpointError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


# --- commands -------------------------------------------------------------------------------------------------------


def _up(options: argparse.Namespace) -> int:
    http_base = options.base_port if options.http_base is None else options.http_base
    peer_base = options.base_port + 100 if options.peer_base is None else options.peer_base
    return asyncio.run(DevCluster(Layout(options.data, options.nodes, http_base, peer_base)).run())


def _node(options: argparse.Namespace) -> int:
    # Imported here: everything else on this command line starts without the server's libraries.
    import uvloop  # noqa: PLC0415

    from coordinator.node import run_node  # noqa: PLC0415

    if options.parent is not None:
        _die_with(options.parent)
    config = load_config(options.config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_node(config))


def _status(options: argparse.Namespace) -> int:
    _print_cluster(call(options.endpoint, "GET", "/api/v1/cluster"))
    return 0


def _member_add(options: argparse.Namespace) -> int:
    body = {"id": options.id, "peer": options.peer, "http": options.http}
    if options.if_absent:
        cluster = call(options.endpoint, "GET", "/api/v1/cluster")
        if any(body == {key: member[key] for key in body} for member in cluster["members"]):
            _print_cluster(cluster)
            return 0
    path = f"/api/v1/cluster/members?timeout_ms={MEMBER_TIMEOUT_S * 1000}"
    _print_cluster(call(options.endpoint, "POST", path, body, MEMBER_TIMEOUT_S + 5))
    return 0


def _member_replace(options: argparse.Namespace) -> int:
    """The new one first, until it votes; then the old one goes. No quorum gets smaller on the way."""
    body = {"id": options.id, "peer": options.peer, "http": options.http}
    cluster = call(options.endpoint, "GET", "/api/v1/cluster")
    if options.old not in [member["id"] for member in cluster["members"]]:
        raise EndpointError(f"{options.old} is not a member")
    if options.id not in [member["id"] for member in cluster["members"]]:
        path = f"/api/v1/cluster/members?timeout_ms={MEMBER_TIMEOUT_S * 1000}"
        call(options.endpoint, "POST", path, body, MEMBER_TIMEOUT_S + 5)
        print(f"{options.id} is a learner; waiting until it has caught up and votes")
    _wait_for_vote(options.endpoint, options.id)
    print(f"{options.id} votes; removing {options.old}")
    if call(options.endpoint, "GET", "/api/v1/cluster")["leader"] == options.old:
        call(options.endpoint, "POST", "/api/v1/cluster/transfer?timeout_ms=10000", {"target": options.id}, 15)
    path = f"/api/v1/cluster/members/{options.old}?timeout_ms={MEMBER_TIMEOUT_S * 1000}"
    _print_cluster(call(options.endpoint, "DELETE", path, None, MEMBER_TIMEOUT_S + 5))
    return 0


def _wait_for_vote(endpoint: str, node_id: str) -> None:
    end = time.monotonic() + CATCH_UP_S
    while time.monotonic() < end:
        cluster = call(endpoint, "GET", "/api/v1/cluster")
        if any(member["id"] == node_id and member["role"] != "learner" for member in cluster["members"]):
            return
        time.sleep(0.2)
    raise EndpointError(
        f"{node_id} has not caught up after {CATCH_UP_S} s: is it running, with no [[members]] of its own and the "
        "cluster's secret? It stays a learner; run the same command again to go on"
    )


def _member_remove(options: argparse.Namespace) -> int:
    path = f"/api/v1/cluster/members/{options.id}?timeout_ms={MEMBER_TIMEOUT_S * 1000}"
    _print_cluster(call(options.endpoint, "DELETE", path, None, MEMBER_TIMEOUT_S + 5))
    return 0


def _transfer(options: argparse.Namespace) -> int:
    body = {} if options.to is None else {"target": options.to}
    _print_cluster(call(options.endpoint, "POST", "/api/v1/cluster/transfer?timeout_ms=10000", body, 15))
    return 0


def _snapshot(options: argparse.Namespace) -> int:
    answer = call(options.endpoint, "POST", "/api/v1/cluster/snapshot?timeout_ms=300000", {}, 305)
    print(f"snapshot taken at revision {answer['revision']}")
    return 0


def _version(_: argparse.Namespace) -> int:
    print(f"holdfast {__version__}")
    return 0


# --- what they share ------------------------------------------------------------------------------------------------


def _print_cluster(cluster: dict[str, Any]) -> None:
    leader = cluster["leader"] or "none"
    print(f"cluster {cluster['cluster_id']}  leader {leader}  term {cluster['term']}  revision {cluster['revision']}\n")
    columns = ("id", "role", "term", "applied", "pid", "http", "peer")
    rows = [[column.upper() for column in columns]]
    rows += [["-" if m[c] is None else str(m[c]) for c in columns] for m in cluster["members"]]
    for row, member in zip(rows[1:], cluster["members"], strict=True):
        if member["applied"] is None:
            row[1] = "unreachable"
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _die_with(parent: int) -> None:
    """Ask the kernel for SIGTERM when the process that started us is gone, however it went."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(0)


# --- arguments ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdfast", description="A replicated coordinator.")
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_up(commands)

    node = commands.add_parser("node", help="run one node")
    node.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file; see configs/")
    node.add_argument("--parent", type=int, metavar="PID", help=argparse.SUPPRESS)
    node.set_defaults(command=_node)

    _add_operation(commands, "status", _status, "show the members of a cluster")
    _add_member(commands)
    transfer = _add_operation(commands, "transfer", _transfer, "hand leadership to another member")
    transfer.add_argument("--to", metavar="ID", help="which one (default: the most up to date)")
    _add_operation(commands, "snapshot", _snapshot, "make the node at --endpoint take a snapshot now")
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(command=_version)
    return parser


def _add_up(commands: Any) -> None:
    up = commands.add_parser("up", help="run a whole cluster on this machine, for trying out")
    up.add_argument("--nodes", type=int, choices=(1, 3, 5), default=3)
    up.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="default: ./data")
    up.add_argument("--base-port", type=int, default=7100, metavar="PORT", help="HTTP from PORT+1, peers from PORT+101")
    up.add_argument("--http-base", type=int, metavar="PORT", help="HTTP from PORT+1 (default: --base-port)")
    up.add_argument("--peer-base", type=int, metavar="PORT", help="peers from PORT+1 (default: --base-port + 100)")
    up.set_defaults(command=_up)


def _add_operation(commands: Any, name: str, command: Callable[[argparse.Namespace], int], about: str) -> Any:
    operation = commands.add_parser(name, help=about)
    operation.add_argument(
        "--endpoint", default=DEFAULT_ENDPOINT, metavar="HOST:PORT", help=f"any node (default: {DEFAULT_ENDPOINT})"
    )
    operation.set_defaults(command=command)
    return operation


def _add_member(commands: Any) -> None:
    member = commands.add_parser("member", help="add, replace or remove a member")
    actions = member.add_subparsers(required=True, metavar="ACTION")
    add = _add_operation(actions, "add", _member_add, "add a node that is running without [[members]]")
    add.add_argument("id")
    add.add_argument("--peer", required=True, metavar="HOST:PORT")
    add.add_argument("--http", required=True, metavar="HOST:PORT")
    add.add_argument("--if-absent", action="store_true", help="a member of this id and these addresses is no mistake")
    replace = _add_operation(actions, "replace", _member_replace, "put a new node in the place of a lost one")
    replace.add_argument("old", help="the member to leave")
    replace.add_argument("id", help="the new one, running without [[members]]")
    replace.add_argument("--peer", required=True, metavar="HOST:PORT")
    replace.add_argument("--http", required=True, metavar="HOST:PORT")
    remove = _add_operation(actions, "remove", _member_remove, "remove a member for good")
    remove.add_argument("id")


if __name__ == "__main__":
    sys.exit(main())
