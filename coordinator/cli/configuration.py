"""`holdfast config check FILE`: whether a node would start with it."""

from __future__ import annotations

import argparse
from pathlib import Path

from coordinator.cli.arguments import Commands, add_command, add_json, add_noun
from coordinator.cli.output import Shown, fields
from coordinator.config import load_config


def _check(options: argparse.Namespace) -> int:
    config = load_config(options.file)
    document = {
        "file": str(options.file),
        "valid": True,
        "node_id": config.node_id,
        "cluster_id": config.cluster_id,
        "data_dir": str(config.data_dir),
        "http": config.http,
        "peer": config.peer,
        "members": [member.id for member in config.members],
    }
    pairs = [
        ("node", f"{config.node_id} of {config.cluster_id}"),
        ("data", config.data_dir),
        ("http", config.http),
        ("peer", config.peer),
        ("members", ", ".join(member.id for member in config.members) or "none: it waits to be added"),
    ]
    return Shown(document, f"a node can start with {options.file}\n\n{fields(pairs)}").print(options)


def add(commands: Commands) -> None:
    actions = add_noun(commands, "config", "check a node's configuration")
    check = add_command(actions, "check", "whether a node would start with this file and this environment", _check)
    check.add_argument("file", type=Path, metavar="FILE")
    add_json(check)
