"""The peers and load generators a run needs: which are here, and Debian's packages for those that are not."""

from __future__ import annotations

import importlib.metadata
import shutil
from dataclasses import dataclass

from bench import debian, etcd, redis, zookeeper
from bench.load import Progress

PROGRAMS = {
    "etcd": "etcd-server",
    "h2load": "nghttp2-client",
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "wrk": "wrk",
}
"""Programs by name, and the package each is in. ZooKeeper is a jar and has no program of its own."""


@dataclass(frozen=True)
class Present:
    """What there is on this machine. A peer that is not there is left out of the run, and the result says so."""

    versions: dict[str, str]
    missing: dict[str, str]
    """What was not measured, and why."""

    def has(self, peer: str) -> bool:
        return peer in self.versions


def install(progress: Progress) -> None:
    """Debian's packages for what is missing, when this is root. Without a network the run goes on without them."""
    if wanted := _wanted():
        progress(f"installing Debian's packages, if this is root: {', '.join(sorted(wanted))}")
        debian.install(wanted, lambda: not _wanted())


def _wanted() -> set[str]:
    wanted = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    return wanted | ({"zookeeper", "default-jre-headless"} if zookeeper.version() is None else set())


def present() -> Present:
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for program in ("wrk", "h2load"):
        if shutil.which(program):
            versions[program] = "installed"
        else:
            missing[program] = f"install the package {PROGRAMS[program]}"
    for peer, found, packages in (
        ("etcd", etcd.version(), "etcd-server and nghttp2-client"),
        ("zookeeper", zookeeper.version(), "zookeeper and default-jre-headless"),
        ("redis", redis.version(), "redis-server and redis-tools"),
    ):
        if found is None:
            missing[peer] = f"install the packages {packages}"
        else:
            versions[peer] = found
    try:
        versions["kazoo"] = importlib.metadata.version("kazoo")
    except importlib.metadata.PackageNotFoundError:
        missing["kazoo"] = "install the extra: pip install '.[bench]'"
    if "kazoo" in missing and "zookeeper" in versions:
        del versions["zookeeper"]
        missing["zookeeper"] = missing["kazoo"]
    return Present(versions, missing)
