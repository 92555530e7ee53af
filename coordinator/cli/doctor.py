"""`holdfast doctor`: looks at a node and its cluster, and says what it would do."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from coordinator.cli.arguments import DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Commands, add_remote, targets
from coordinator.cli.output import Shown, plain, table
from coordinator.config import ConfigError, NodeConfig, load_config
from coordinator.doctor import Finding, of_cluster, of_host

_MARKS = {"well": "ok", "mind": "mind", "ill": "BAD"}


def _doctor(options: argparse.Namespace) -> int:
    found, config = _configured(options.config)
    _aim(options, config)
    cluster_id = None if config is None else config.cluster_id
    found += of_cluster(targets(options), min(options.timeout, 2.0), cluster_id)
    rows = [(_MARKS[each.verdict], each.what, each.seen) for each in found]
    advice = dict.fromkeys(f"  {plain(each.what)}: {plain(each.do)}" for each in found if each.do)
    ill = sum(each.verdict == "ill" for each in found)
    text = table(("", "what", "seen"), rows) + ("\n\nto do:\n" + "\n".join(advice) if advice else "\n\nnothing to do")
    return Shown({"well": not ill, "findings": [asdict(each) for each in found]}, text, int(ill > 0)).print(options)


def _configured(path: Path | None) -> tuple[list[Finding], NodeConfig | None]:
    """What there is to say of this host, and the node that is meant to run on it."""
    if path is None:
        return [], None
    try:
        config = load_config(path)
    except ConfigError as error:
        return [Finding("configuration", "ill", f"a node would not start with {path}", str(error))], None
    return [Finding("configuration", "well", str(path)), *of_host(config)], config


def _aim(options: argparse.Namespace, config: NodeConfig | None) -> None:
    """At the cluster that the node's file names, unless another was said."""
    if options.endpoints is not None:
        return
    if config is None:
        options.endpoints = DEFAULT_ENDPOINTS if options.config is None else ""
        return
    options.endpoints = ",".join(dict.fromkeys([config.http_advertise, *(each.http for each in config.members)]))
    if options.ca is None and config.tls is not None and config.tls.clients != "off":
        options.ca = str(config.tls.ca)


def add(commands: Commands) -> None:
    about = "look at a node and its cluster, and say what to do"
    more = (
        "With --config also at this host: disk, clock, limits, certificates; its cluster is then the one that the file "
        "names, unless --endpoints says another. Exit code 1 if something must be mended."
    )
    doctor = add_remote(commands, "doctor", about, _doctor, description=f"{about}. {more}")
    doctor.add_argument("--config", type=Path, metavar="FILE", help="the TOML file of the node on this host")
    doctor.set_defaults(endpoints=os.environ.get(ENDPOINTS_VARIABLE) or None)
