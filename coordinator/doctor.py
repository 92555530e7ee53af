"""What a look at a node finds: its disk, clocks, limits, certificate and peers; each with what to do about it.

What it asks of the machine it runs on is one class, `Host`; what it concludes is the rest.
"""

from __future__ import annotations

import errno
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
from coordinator.endpoint import Endpoint, EndpointError, NoAnswer, call

Verdict = Literal["well", "mind", "ill"]

SYNCS = 50
SYNC_BYTES = 4096
CLOCK_LOOK_S = 0.3
CLOCK_READINGS = 20
CONNECT_S = 2.0
DESCRIPTORS = 4096
DAYS_LEFT = 30
LAG_REVISIONS = 10_000
STEP_S = 0.1
"""Beyond what any steering does while the clocks are looked at."""

_UNWRITABLE = {
    errno.ENOSPC: "make room: a node whose disk is full stops",
    errno.EDQUOT: "raise this user's quota, or make room",
    errno.EROFS: "dmesg says why; if the disk fails, it and then the node must be replaced (holdfast member replace)",
    errno.EACCES: "run as its owner, or chown it",
}
_UNAUTHENTICATED = 401
_VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})


@dataclass(frozen=True, slots=True)
class Finding:
    """`well`, worth a thought (`mind`), or something that must be mended (`ill`); what was seen, and what to do."""

    what: str
    verdict: Verdict
    seen: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Clocks:
    """At one moment: the one that leases are counted by, the same hardware without corrections, and the wall clock."""

    steered_s: float
    plain_s: float
    wall_s: float


class Host:
    """What can be learnt of this machine. Raises OSError where the machine refuses."""

    def space(self, path: Path) -> tuple[int, int]:
        """Bytes in all and free, where `path` is."""
        found = shutil.disk_usage(path)
        return found.total, found.free

    def sync_times_s(self, path: Path) -> list[float]:
        """How long it takes to write a little and have it on disk, again and again."""
        return list(_sync_times(path / ".doctor"))

    def clocks(self) -> Clocks:
        """Of several readings the quickest: in a slow one something else ran between the clocks."""
        return min((_clocks_read() for _ in range(CLOCK_READINGS)), key=lambda each: each[0])[1]

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


# --- this host ------------------------------------------------------------------------------------------------------


def of_host(config: NodeConfig, host: Host | None = None) -> Iterator[Finding]:
    host = host or Host()
    yield _directory(config)
    if config.data_dir.is_dir():
        yield _file_system(config.data_dir)
        yield _room(config, host)
        yield _syncing(config, host)
    yield _descriptors()
    yield from _clocks(config, host)
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


def _room(config: NodeConfig, host: Host) -> Finding:
    total, free = host.space(config.data_dir)
    used = sum(map(_bytes_in, config.data_dir.rglob("*")))
    needed = used + config.limits.log_bytes + config.limits.segment_bytes
    seen = f"{_size(free)} free of {_size(total)}; the node's {_size(used)} may need {_size(needed)} more"
    if free < needed:
        return Finding("room", "ill", seen, "make room: a node whose disk is full stops")
    if free < 2 * needed or free < total // 10:
        return Finding("room", "mind", seen, "make room before it is needed")
    return Finding("room", "well", seen)


def _bytes_in(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0  # a node that runs has just removed it


def _syncing(config: NodeConfig, host: Host) -> Finding:
    try:
        taken = sorted(host.sync_times_s(config.data_dir))
    except OSError as error:
        seen = f"nothing can be written there: {error.strerror or error}"
        return Finding("disk speed", "ill", seen, _UNWRITABLE.get(error.errno or 0, "look at the kernel's log (dmesg)"))
    middle, slow = taken[len(taken) // 2], taken[-1]
    seen = f"fdatasync takes {middle * 1e3:.1f} ms, the slowest of {SYNCS} took {slow * 1e3:.1f} ms"
    if slow > config.timing.election_min / 2:
        return Finding("disk speed", "ill", seen, "a faster disk, or a longer timing.election_min on every node")
    if slow > config.timing.heartbeat:
        return Finding("disk speed", "mind", seen, "a disk that others do not keep busy")
    return Finding("disk speed", "well", seen)


def _clocks_read() -> tuple[float, Clocks]:
    began = time.perf_counter()
    steered, plain, wall = (
        time.clock_gettime(each) for each in (time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC_RAW, time.CLOCK_REALTIME)
    )
    return time.perf_counter() - began, Clocks(steered, plain, wall)


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


def _clocks(config: NodeConfig, host: Host) -> Iterator[Finding]:
    """The clock that leases are counted by, against the same hardware without corrections; and the wall clock."""
    before = host.clocks()
    host.pause(CLOCK_LOOK_S)
    after = host.clocks()
    steered_s, plain_s = after.steered_s - before.steered_s, after.plain_s - before.plain_s
    off = steered_s / plain_s - 1
    seen = f"steered by {off * 1e6:+.0f} millionths; timing.drift allows {config.timing.drift * 1e6:.0f}"
    if steered_s - plain_s > STEP_S:
        # Only time that this machine slept through counts on it alone.
        seen = f"it jumped by {steered_s - plain_s:+.1f} s: the machine was suspended"
        yield Finding(
            "clock", "ill", seen, "a node must not be suspended: it is cut off meanwhile, and others take over"
        )
    elif abs(off) > config.timing.drift / 2:
        do = "find out what steers it so hard, or give all nodes a larger timing.drift"
        yield Finding("clock", "ill", seen, do)
    else:
        yield Finding("clock", "well", seen)
    step_s = after.wall_s - before.wall_s - steered_s
    if abs(step_s) > STEP_S:
        do = "let NTP slew it (chrony, timesyncd); no lease goes by it, but certificates and a restore do"
        yield Finding("wall clock", "mind", f"it was set by {step_s:+.1f} s while it was looked at", do)


def _certificates(config: NodeConfig) -> Iterator[Finding]:
    for path in () if config.tls is None else (config.tls.cert, config.tls.ca):
        for certificate in described(path):
            verdict: Verdict = "well" if certificate["days_left"] >= DAYS_LEFT else "mind"
            seen = f"{path} is good for {certificate['days_left']} days"
            if certificate["expired"]:
                verdict, seen = "ill", f"{path} expired at {certificate['not_after']}"
            yield Finding("certificate", verdict, seen, "" if verdict == "well" else "holdfast certs makes a new one")


# --- the cluster ----------------------------------------------------------------------------------------------------


def of_cluster(endpoints: Sequence[Endpoint], timeout_s: float, cluster_id: str | None = None) -> Iterator[Finding]:
    """What each node says, and whether they say the same. Asks the members that the first one to answer names.

    `cluster_id`: whose nodes they should be, where that is known.
    """
    refused: list[Finding] = []
    first = _first_answer(endpoints, timeout_s, refused)
    if first is None:
        yield from refused or [Finding("cluster", "ill", "no endpoint was given", "say --endpoints HOST:PORT")]
        return
    endpoint, seen = first
    if cluster_id is not None and seen["cluster_id"] != cluster_id:
        told = f"{endpoint.base} is of the cluster {seen['cluster_id']}, the file of {cluster_id}"
        yield Finding("cluster", "ill", told, "say --endpoints of the nodes that the file is about")
    scheme = endpoint.base.partition("://")[0]
    nodes = {each["id"]: replace(endpoint, address=f"{scheme}://{each['http']}") for each in seen["members"]}
    views: dict[str, dict[str, Any]] = {}
    for member in seen["members"]:
        yield _reached(f"{member['id']} peer", member["peer"])
        try:
            views[member["id"]] = call(nodes[member["id"]], "GET", "/api/v1/cluster", None, timeout_s)
        except EndpointError as error:
            yield Finding(member["id"], "ill", str(error), "start it; if its disk is lost, holdfast member replace")
    newest = max((view["revision"] for view in views.values()), default=0)
    led = any(view["leader"] is not None for view in views.values())
    for node_id, view in views.items():
        # The others have a leader: what this one lacks it knows best itself.
        why = _not_ready(nodes[node_id], timeout_s) if led and view["leader"] is None else ""
        yield _member(node_id, view, newest - view["revision"], why)
    yield _leader(views, len(seen["members"]))
    yield _levels(seen)


def _first_answer(
    endpoints: Sequence[Endpoint], timeout_s: float, refused: list[Finding]
) -> tuple[Endpoint, dict[str, Any]] | None:
    """The first that tells of its cluster; `refused` gets what became of those that were asked before."""
    for endpoint in endpoints:
        try:
            return endpoint, call(endpoint, "GET", "/api/v1/cluster", None, timeout_s)
        except NoAnswer as error:
            do = "start one, or say --endpoints (with TLS also --ca); RUNBOOKS.md, lost quorum"
            refused.append(Finding("cluster", "ill", str(error), do))
        except EndpointError as error:
            do = "say --token-file, with a token of this cluster" if error.status == _UNAUTHENTICATED else ""
            refused.append(Finding("cluster", "ill", f"{endpoint.base} refuses: {error}", do))
    return None


def _reached(what: str, address: str) -> Finding:
    began = time.perf_counter()
    try:
        with socket.create_connection(split_address("peer", address), timeout=CONNECT_S):
            taken_ms = (time.perf_counter() - began) * 1e3
    except OSError as error:
        return Finding(what, "ill", f"{address}: {error}", "start the node, or open the port between the nodes")
    return Finding(what, "well", f"{address} takes connections, {taken_ms:.1f} ms away")


def _not_ready(node: Endpoint, timeout_s: float) -> str:
    """Why it does not serve, in its own words."""
    try:
        call(node, "GET", "/readyz", None, timeout_s)
    except EndpointError as error:
        return str(error)
    return ""


def _member(node_id: str, view: dict[str, Any], lag: int, why: str) -> Finding:
    own = next((each for each in view["members"] if each["id"] == node_id), None)
    if own is None:
        return Finding(node_id, "ill", "it does not think that it is a member", "it was removed: stop it")
    if why:
        return Finding(node_id, "ill", f"{own['role']}, not ready: {why}", "RUNBOOKS.md, a node is down")
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


def _levels(seen: dict[str, Any]) -> Finding:
    """Nodes of two releases: an upgrade that is under way, or was left half done."""
    level = seen.get("level", 1)
    known = {each["id"]: each.get("known_level") or 1 for each in seen["members"] if each["applied"] is not None}
    missing = sorted(each["id"] for each in seen["members"] if each["id"] not in known)
    newest = max(known.values(), default=level)
    behind = sorted(node for node, most in known.items() if most < newest)
    if behind:
        told = f"level {level}; {', '.join(behind)} must know {newest} before it is raised"
        return Finding("level", "mind", told, "OPERATIONS.md, upgrade: go on with them, or remove their level_at_most")
    if newest > level:
        told = f"level {level}, and all that answer know {newest}"
        return Finding("level", "mind", told, f"start {', '.join(missing)}" if missing else "look again in a second")
    return Finding("level", "well", f"level {level}, which {'all that answer know' if missing else 'every node knows'}")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
