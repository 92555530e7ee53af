"""`holdfast backup | restore`: the whole state into a file, and a new cluster out of one."""

from __future__ import annotations

import argparse
import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.options import ClusterOptions
from cluster.ports import Member
from coordinator.addresses import AddressError, split_address
from coordinator.cli.arguments import Commands, Run, add_command, add_json, add_remote, targets
from coordinator.cli.files import replacing
from coordinator.cli.output import Amount, Bar, Shown, complain, fields, plain, size_text
from coordinator.config import load_config
from coordinator.endpoint import Endpoint, EndpointError, NoAnswer, download

if TYPE_CHECKING:
    from coordinator.backups import BackupHeader

_PATH = "/api/v1/backup"
_PATIENCE_S = 30.0
"""How long the node may take for the next piece."""
_MOMENT = re.compile(r"-(\d{10})$")
_NAME_MOST = 50
_AHEAD_MOST_S = 86_400


class Misused(Exception):
    """The options do not go together."""


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[Callable[[int], None]]:
    """A bar while a file is read."""
    whole = file.stat().st_size if file.is_file() else 0
    with Bar(f"reading {plain(file.name)}") as bar:
        yield lambda size_bytes: bar.at(size_bytes / max(1, whole), size_text(size_bytes))


# --- backup -----------------------------------------------------------------------------------------------------------


def _whole(work: Run) -> Run:
    """The command, with what is wrong with a file or a directory told as any other mistake."""

    def run(options: argparse.Namespace) -> int:
        from coordinator.backups import BackupError  # noqa: PLC0415 - with it comes the machine

        try:
            return work(options)
        except Misused as error:
            return complain(options, str(error), 2, code="usage")
        except BackupError as error:
            return complain(options, str(error), 1)

    return run


def _backup(options: argparse.Namespace) -> int:
    if options.check:
        return _check(options)
    failures = []
    for endpoint in targets(options):
        try:
            return _take(options, endpoint)
        except EndpointError as error:
            if error.status not in (None, 429, 503):
                raise
            failures.append(f"{endpoint.base}: {error}")
    raise NoAnswer("; ".join(failures) or "no endpoint was given; say --endpoints HOST:PORT")


def _take(options: argparse.Namespace, endpoint: Endpoint) -> int:
    from coordinator.backups import BackupParser  # noqa: PLC0415 - as above

    target: Path = options.file
    parser = BackupParser(f"the backup from {endpoint.base}")
    path = f"{_PATH}?timeout_ms={round(max(1.0, options.timeout) * 1000)}"
    with Amount("backup") as shown, replacing(target) as file, download(endpoint, path, _PATIENCE_S) as pieces:
        for piece in pieces:
            # Checked as it comes: what is written is what the node sent, or nothing gets the name.
            parser.feed(piece)
            file.write(piece)
            shown.at(parser.size_bytes)
        header = parser.finish()
    document = {"file": str(target), "bytes": parser.size_bytes, "sha256": parser.sha256, **header.document()}
    return Shown(document, _described(document)).print(options)


def _check(options: argparse.Namespace) -> int:
    """Every checksum, and that this release can read the state."""
    from coordinator.backups import read_backup  # noqa: PLC0415 - as above

    with _reading(options.file) as read:
        found = read_backup(options.file, read)
    counts, graph = found.machine.counts(), found.machine.graph_counts()
    held = {
        "leases": counts.active_leases,
        "sessions": counts.sessions,
        "locks": counts.locks,
        "resources": graph.resources,
    }
    document = {
        "file": str(options.file), "bytes": found.size_bytes, "sha256": found.sha256, **found.header.document(), **held
    }  # fmt: skip
    more = "".join(f"\n{name.ljust(13)}{count:,}" for name, count in held.items())
    return Shown(document, f"{_described(document)}{more}\nit is whole").print(options)


def _described(document: dict[str, Any]) -> str:
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(document["taken_at_epoch_ms"] / 1000))
    return fields(
        [
            ("file", document["file"]),
            ("size", size_text(document["bytes"])),
            ("sha256", document["sha256"]),
            ("cluster", f"{document['cluster_id']} ({', '.join(document['members'])})"),
            ("revision", document["revision"]),
            ("taken", f"{taken} by holdfast {document['version']}"),
        ]
    )


# --- restore ----------------------------------------------------------------------------------------------------------


def _restore(options: argparse.Namespace) -> int:
    from coordinator.backups import BackupError, read_backup, restore  # noqa: PLC0415 - as above

    nodes = _nodes(options)
    if len({(node.cluster_id, node.members) for node in nodes}) != 1:
        raise BackupError("the files of --config are not of one cluster: cluster_id and [[members]] must be the same")
    members = [member.id for member in nodes[0].members]
    if not members:
        raise BackupError("there are no members: a restored cluster begins with all of them; add [[members]]")
    with _reading(options.file) as read:
        backup = read_backup(options.file, read)
    at_s = _moment(options, nodes[0].cluster_id, backup.header)
    made = restore(backup, nodes, at_s)
    document: dict[str, Any] = {
        "cluster_id": nodes[0].cluster_id,
        "backup": {"sha256": backup.sha256, **backup.header.document()},
        "nodes": {node.node_id: node.data_dir for node in nodes},
        "revision": made.revision,
        "first_token": made.first_token,
        "digest": made.digest,
        "at": at_s,
    }
    left = [each for each in members if each not in document["nodes"]]
    return Shown(document, _told(document, left, options.file, explicit=options.at is not None)).print(options)


def _moment(options: argparse.Namespace, new: str, header: BackupHeader) -> int:
    """The second of the restore. It is in the cluster's id, so that nodes of two restores never talk to each other."""
    from coordinator.backups import BackupError  # noqa: PLC0415 - as above

    now_s, taken_s = int(time.time()), header.taken_ms // 1000
    base = _MOMENT.sub("", new)[:_NAME_MOST]
    found = _MOMENT.search(new)
    if options.at is not None:
        at_s: int = options.at
    elif found is None or new == header.cluster_id:
        raise BackupError(
            f"cluster_id {new!r} does not tell this restore from others: end it with the second of the restore, the "
            f"same for all nodes, such as cluster_id = '{base}-{now_s}'; or say --at S if they cannot be confused"
        )
    else:
        at_s = int(found[1])
        if at_s < taken_s:
            # Written down before the backup was taken, or by a clock that is behind the node's.
            raise BackupError(
                f"cluster_id {new!r} names a second before that of the backup, {taken_s}: end it with the second of "
                f"the restore, the same for all nodes, such as cluster_id = '{base}-{max(now_s, taken_s)}'"
            )
    if at_s > now_s + _AHEAD_MOST_S:
        raise BackupError(f"the moment of the restore, {at_s}, is in the future; it is {now_s} now")
    return at_s


def _nodes(options: argparse.Namespace) -> list[ClusterOptions]:
    """By their files, or one of them by its options."""
    said = options.data_dir, options.node_id, options.cluster_id
    if options.config:
        if any(said) or options.member:
            raise Misused("--config says all of it: leave out --data-dir, --node-id, --cluster-id and --member")
        return [load_config(path).cluster_options() for path in options.config]
    if not all(said) or not options.member:
        raise Misused("say --config FILE, or --data-dir, --node-id, --cluster-id and every --member of the cluster")
    return [ClusterOptions(options.node_id, options.cluster_id, str(options.data_dir), tuple(options.member))]


def _told(document: dict[str, Any], left: list[str], file: Path, *, explicit: bool) -> str:
    lines = [f"{node}: {directory} is ready" for node, directory in document["nodes"].items()]
    lines += [
        f"cluster {document['cluster_id']} begins at revision {document['revision']}, "
        f"with fencing tokens from {document['first_token']}",
        f"state {document['digest']}",
    ]
    if left:
        at = f" --at {document['at']}" if explicit else ""
        lines += [
            f"still to do, with the same file, for {', '.join(left)}:",
            f"  holdfast restore {file.name}{at} --config NODE.toml",
        ]
    return "\n".join(lines)


# --- arguments --------------------------------------------------------------------------------------------------------


def _member(text: str) -> Member:
    node_id, _, addresses = text.partition("=")
    peer, _, http = addresses.partition(",")
    try:
        for name, address in (("peer", peer), ("http", http)):
            split_address(name, address)
    except AddressError as error:
        raise argparse.ArgumentTypeError(f"{error}; write it as n1=PEER-HOST:PORT,HTTP-HOST:PORT") from None
    return Member(node_id, peer, http)


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no second since 1970, such as an earlier restore prints")
    return int(text)


def add(commands: Commands) -> None:
    backup = add_remote(commands, "backup", "write the whole state into a file, from any node", _whole(_backup))
    backup.add_argument("file", type=Path, metavar="FILE", help="replaced only by a backup that is whole and durable")
    backup.add_argument("--check", action="store_true", help="ask no node, but check that FILE is whole")
    restore = add_command(
        commands, "restore", "prepare the data directories of a new cluster from a backup", _whole(_restore),
        description="Prepare the data directories of a new cluster from a backup, before its nodes start. "
        "Each must be empty. docs/OPERATIONS.md says what to know about it.",
    )  # fmt: skip
    restore.add_argument("file", type=Path, metavar="FILE")
    restore.add_argument(
        "--config", type=Path, action="append", default=[], metavar="FILE",
        help="a node's TOML file, whose data_dir is prepared; once for every node whose files are here",
    )  # fmt: skip
    restore.add_argument(
        "--at", type=_seconds, metavar="S",
        help="the second of the restore, the same for all nodes (default: what cluster_id ends with)",
    )  # fmt: skip
    one = restore.add_argument_group("instead of --config, one node")
    one.add_argument("--data-dir", type=Path, metavar="DIR")
    one.add_argument("--node-id", metavar="ID")
    one.add_argument("--cluster-id", metavar="ID")
    one.add_argument(
        "--member", type=_member, action="append", default=[], metavar="ID=PEER,HTTP", help="once for every member"
    )
    add_json(restore)
