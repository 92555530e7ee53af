"""`holdfast doctor`: looks at a node and its cluster, and says what it would do."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from coordinator.cli.arguments import Commands, add_remote, targets
from coordinator.cli.output import Shown, plain, table
from coordinator.config import ConfigError, load_config
from coordinator.doctor import Finding, of_cluster, of_host

_MARKS = {"well": "ok", "mind": "mind", "ill": "BAD"}


def _doctor(options: argparse.Namespace) -> int:
    found = [*_of_host(options.config), *of_cluster(targets(options), min(options.timeout, 2.0))]
    rows = [(_MARKS[each.verdict], each.what, each.seen) for each in found]
    advice = [f"  {plain(each.what)}: {plain(each.do)}" for each in found if each.do]
    ill = sum(each.verdict == "ill" for each in found)
    text = table(("", "what", "seen"), rows) + ("\n\nto do:\n" + "\n".join(advice) if advice else "\n\nnothing to do")
    return Shown({"well": not ill, "findings": [asdict(each) for each in found]}, text, int(ill > 0)).print(options)


def _of_host(path: Path | None) -> list[Finding]:
    if path is None:
        return []
    try:
        config = load_config(path)
    except ConfigError as error:
        return [Finding("configuration", "ill", f"a node would not start with {path}", str(error))]
    return [Finding("configuration", "well", str(path)), *of_host(config)]


def add(commands: Commands) -> None:
    about = "look at a node and its cluster, and say what to do"
    more = (
        "With --config also at this host: disk, clock, limits, certificates. Exit code 1 if something must be mended."
    )
    doctor = add_remote(commands, "doctor", about, _doctor, description=f"{about}. {more}")
    doctor.add_argument("--config", type=Path, metavar="FILE", help="the TOML file of the node on this host")
