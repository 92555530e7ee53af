"""What a look at a node finds: its disk, clock, limits, certificate and peers; each with what to do about it."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from coordinator.addresses import split_address
from coordinator.authority import described
from coordinator.config import NodeConfig
from coordinator.endpoint import Endpoint, EndpointError, call

Verdict = Literal["well", "mind", "ill"]

SYNCS = 50
SYNC_BYTES = 4096
CLOCK_LOOK_S = 0.3
CONNECT_S = 2.0
DESCRIPTORS = 4096
DAYS_LEFT = 30
LAG_REVISIONS = 10_000

_VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})


@dataclass(frozen=True, slots=True)
class Finding:
    """`well`, worth a thought (`mind`), or something that must be mended (`ill`); what was seen, and what to do."""

    what: str
    verdict: Verdict
    seen: str
    do: str = ""


# --- this host ------------------------------------------------------------------------------------------------------


def of_host(config: NodeConfig) -> Iterator[Finding]:
    yield _directory(config)
    if config.data_dir.is_dir():
        yield _file_system(config.data_dir)
        yield _room(config)
        yield _syncing(config)
    yield _descriptors()
    yield _clock_rate(config)
    yield from _certificates(config)


def _directory(config: NodeConfig) -> Finding:
    path = config.data_dir
    if not path.is_dir():
        parent = next(each for each in path.parents if each.exists())
        if os.access(parent, os.W_OK):
            return Finding("data_dir", "well", f"{path} is not there yet; the node makes it")
        return Finding(
            "data_dir", "ill", f"{path} is not there, and {parent} is not writable", f"make {path}, owned by this user"
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Finding("data_dir", "ill", f"{path} is not readable and writable", "run as its owner, or chown it")
    if path.stat().st_mode & 0o077:
        return Finding("data_dir", "mind", f"others may look into {path}", f"chmod 700 {path}")
    return Finding("data_dir", "well", str(path))


def _file_system(path: Path) -> Finding:
    kind = file_system_of(path, Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines())
    if kind in _VOLATILE:
        return Finding("file system", "ill", f"{kind}: gone with the next restart", "give data_dir a place on a disk")
    if kind in _REMOTE:
        return Finding("file system", "mind", f"{kind}: over a network", "a local disk is faster, and fails by itself")
    return Finding("file system", "well", kind)


def file_system_of(path: Path, mounts: Iterable[str]) -> str:
    """The kind of the deepest mount that `path` is under."""
    place, kind = "", "unknown"
    whole = str(path.resolve())
    for line in mounts:
        _, at, this_kind, *_ = line.split(" ")
        under = whole == at or whole.startswith(at.rstrip("/") + "/")
        if under and len(at) >= len(place):
            place, kind = at, this_kind
    return kind


def _room(config: NodeConfig) -> Finding:
    space = shutil.disk_usage(config.data_dir)
    used = sum(each.stat().st_size for each in config.data_dir.rglob("*") if each.is_file())
    needed = used + config.limits.log_bytes + config.limits.segment_bytes
    seen = f"{_size(space.free)} free of {_size(space.total)}; the node's {_size(used)} may need {_size(needed)} more"
    if space.free < needed:
        return Finding("room", "ill", seen, "make room: a node whose disk is full stops")
    if space.free < 2 * needed or space.free < space.total // 10:
        return Finding("room", "mind", seen, "make room before it is needed")
    return Finding("room", "well", seen)


def _syncing(config: NodeConfig) -> Finding:
    taken = sorted(_sync_times(config.data_dir / ".doctor"))
    middle, slow = taken[len(taken) // 2], taken[-1]
    seen = f"fdatasync takes {middle * 1e3:.1f} ms, the slowest of {SYNCS} took {slow * 1e3:.1f} ms"
    if slow > config.timing.election_min / 2:
        return Finding("disk speed", "ill", seen, "a faster disk, or a longer timing.election_min on every node")
    if slow > config.timing.heartbeat:
        return Finding("disk speed", "mind", seen, "a disk that others do not keep busy")
    return Finding("disk speed", "well", seen)


def _sync_times(path: Path) -> Iterator[float]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for number in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file, bytes(SYNC_BYTES), number * SYNC_BYTES)
            os.fdatasync(file)
            yield time.perf_counter() - began
    finally:
        os.close(file)
        path.unlink()


def _descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS
    return Finding(
        "open files",
        "well" if many else "mind",
        "no limit" if soft == resource.RLIM_INFINITY else f"up to {soft}",
        "" if many else f"ulimit -n {DESCRIPTORS}, or LimitNOFILE= in its unit: every connection takes one",
    )


def _clock_rate(config: NodeConfig) -> Finding:
    """The clock that leases are counted by, against the same hardware without corrections."""
    steered, plain = time.clock_gettime(time.CLOCK_BOOTTIME), time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    time.sleep(CLOCK_LOOK_S)
    lasted = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - plain
    off = (time.clock_gettime(time.CLOCK_BOOTTIME) - steered) / lasted - 1
    seen = f"steered by {off * 1e6:+.0f} millionths; timing.drift allows {config.timing.drift * 1e6:.0f}"
    if abs(off) > config.timing.drift / 2:
        return Finding("clock", "ill", seen, "find out what steers it so hard, or give all nodes a larger timing.drift")
    return Finding("clock", "well", seen)


def _certificates(config: NodeConfig) -> Iterator[Finding]:
    for path in () if config.tls is None else (config.tls.cert, config.tls.ca):
        for certificate in described(path):
            verdict: Verdict = "well" if certificate["days_left"] >= DAYS_LEFT else "mind"
            seen = f"{path} is good for {certificate['days_left']} days"
            if certificate["expired"]:
                verdict, seen = "ill", f"{path} expired at {certificate['not_after']}"
            yield Finding("certificate", verdict, seen, "" if verdict == "well" else "holdfast certs makes a new one")


# --- the cluster ----------------------------------------------------------------------------------------------------


def of_cluster(endpoints: Sequence[Endpoint], timeout_s: float) -> Iterator[Finding]:
    """What each node says, and whether they say the same. Asks the members that the first one to answer names."""
    seen = _first_answer(endpoints, timeout_s)
    if seen is None:
        tried = ", ".join(each.base for each in endpoints)
        yield Finding(
            "cluster", "ill", f"no node answers at {tried}", "start one, or say --endpoints; RUNBOOKS.md, lost quorum"
        )
        return
    views: dict[str, dict[str, Any]] = {}
    for member in seen["members"]:
        yield _reached(f"{member['id']} peer", member["peer"])
        try:
            views[member["id"]] = call(
                replace(endpoints[0], address=member["http"]), "GET", "/api/v1/cluster", None, timeout_s
            )
        except EndpointError as error:
            yield Finding(member["id"], "ill", str(error), "start it; if its disk is lost, holdfast member replace")
    newest = max((view["revision"] for view in views.values()), default=0)
    for node_id, view in views.items():
        yield _member(node_id, view, newest - view["revision"])
    yield _leader(views, len(seen["members"]))


def _first_answer(endpoints: Sequence[Endpoint], timeout_s: float) -> dict[str, Any] | None:
    for endpoint in endpoints:
        try:
            seen: dict[str, Any] = call(endpoint, "GET", "/api/v1/cluster", None, timeout_s)
        except EndpointError:
            continue
        return seen
    return None


def _reached(what: str, address: str) -> Finding:
    began = time.perf_counter()
    try:
        with socket.create_connection(split_address("peer", address), timeout=CONNECT_S):
            taken_ms = (time.perf_counter() - began) * 1e3
    except OSError as error:
        return Finding(what, "ill", f"{address}: {error}", "start the node, or open the port between the nodes")
    return Finding(what, "well", f"{address} takes connections, {taken_ms:.1f} ms away")


def _member(node_id: str, view: dict[str, Any], lag: int) -> Finding:
    own = next((each for each in view["members"] if each["id"] == node_id), None)
    if own is None:
        return Finding(node_id, "ill", "it does not think that it is a member", "it was removed: stop it")
    if lag > LAG_REVISIONS:
        return Finding(node_id, "mind", f"{own['role']}, {lag} revisions behind", "wait; RUNBOOKS.md, a node lags")
    return Finding(node_id, "well", f"{own['role']}, term {view['term']}, revision {view['revision']}")


def _leader(views: dict[str, dict[str, Any]], members: int) -> Finding:
    leaders = sorted({str(view["leader"]) for view in views.values() if view["leader"] is not None})
    if not leaders:
        more = f"only {len(views)} of {members} answer" if len(views) <= members // 2 else "they cannot agree"
        return Finding("leader", "ill", f"nobody leads: {more}", "RUNBOOKS.md, lost quorum")
    if len(leaders) > 1:
        return Finding(
            "leader", "mind", f"the nodes name {' and '.join(leaders)}", "look again: it should be over in a second"
        )
    unaware = sorted(node for node, view in views.items() if view["leader"] is None)
    if unaware:
        return Finding(
            "leader", "mind", f"{leaders[0]}, but {', '.join(unaware)} hears of none", "check its links to the others"
        )
    return Finding("leader", "well", f"{leaders[0]}, and all who answer agree")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
