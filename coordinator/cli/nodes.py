"""`holdfast up` and `holdfast node`: the commands that run the server."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from coordinator.cli.arguments import Commands, add_command
from coordinator.cli.telling import ForPerson, ForPrograms
from coordinator.config import NodeConfig, load_config
from coordinator.devcluster import DevCluster, Layout

_PR_SET_PDEATHSIG = 1


def _up(options: argparse.Namespace) -> int:
    return asyncio.run(DevCluster(layout_of(options), ForPrograms() if options.json else ForPerson()).run())


def layout_of(options: argparse.Namespace) -> Layout:
    http_base = options.base_port if options.http_base is None else options.http_base
    peer_base = options.base_port + 100 if options.peer_base is None else options.peer_base
    return Layout(options.data, options.nodes, http_base, peer_base, _grpc_base(options, http_base))


def _grpc_base(options: argparse.Namespace, http_base: int) -> int | None:
    """None where it is not wanted, or the extra is not installed."""
    if options.grpc_base is None:
        return http_base + 200 if find_spec("grpc") and find_spec("google") else None
    return options.grpc_base or None


def _node(options: argparse.Namespace) -> int:
    # Imported here: everything else on this command line starts without the server's libraries.
    import uvloop  # noqa: PLC0415

    from coordinator.node import run_node  # noqa: PLC0415

    if options.parent is not None:
        _die_with(options.parent)

    def load() -> NodeConfig:
        config = load_config(options.config, insecure=options.insecure)
        return replace(config, log_format="json") if options.json else config

    # It means new certificates; until the node listens to it, none came that it did not start with.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    config = load()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_node(config, load))


def _die_with(parent: int) -> None:
    """Ask the kernel for SIGTERM when the process that started us is gone, however it went."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(0)


def add(commands: Commands) -> None:
    up = add_command(commands, "up", "run a whole cluster on this machine, for trying out", _up)
    up.add_argument("--nodes", type=int, choices=(1, 3, 5), default=3)
    up.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="default: ./data")
    up.add_argument(
        "--base-port", type=int, default=7100, metavar="PORT",
        help="HTTP from PORT+1, peers from PORT+101, gRPC from PORT+201 (default: 7100)",
    )  # fmt: skip
    up.add_argument("--http-base", type=int, metavar="PORT", help="HTTP from PORT+1 (default: --base-port)")
    up.add_argument("--peer-base", type=int, metavar="PORT", help="peers from PORT+1 (default: --base-port + 100)")
    up.add_argument(
        "--grpc-base", type=int, metavar="PORT",
        help="gRPC from PORT+1, 0 for none (default: that of HTTP + 200, where the extra is installed)",
    )  # fmt: skip
    up.add_argument("--json", action="store_true", help="what happens as JSON, an object a line, for programs")
    node = add_command(commands, "node", "run one node", _node)
    node.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file; see configs/")
    node.add_argument(
        "--insecure", action="store_true",
        help="listen beyond this machine though there is no TLS or no token: whoever reaches the node may do anything",
    )  # fmt: skip
    node.add_argument("--json", action="store_true", help="its log as JSON, whatever the file says of log.format")
    node.add_argument("--parent", type=int, metavar="PID", help=argparse.SUPPRESS)
