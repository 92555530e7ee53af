"""The state of every node at one and the same revision, by the backup that each gives: equal digests (I15)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from coordinator.backups import Backup, read_backup
from coordinator.endpoint import EndpointError, download
from tests.chaos.containers import SETTLE_S, Containers
from tests.checkers.digest_equal import DigestEqual
from tests.checkers.violation import Violation
from tests.waiting import wait_until

PATIENCE_S = 30


def compare(containers: Containers, directory: Path) -> tuple[int, list[str]]:
    """The revision at which all were seen, and what is wrong. Two that were seen at another one count too.

    A backup is written down in the log. So all are asked at once, and again until none of them had to wait for another.
    """
    checker, found = DigestEqual(), list[str]()

    def together() -> int | None:
        backups = taken(containers, directory)
        for node, backup in backups.items():
            try:
                checker.check(node, backup.header.revision, backup.machine.digest())
            except Violation as error:
                found.append(str(error))
        revisions = {backup.header.revision for backup in backups.values()}
        return revisions.pop() if len(revisions) == 1 and len(backups) == len(containers.nodes) else None

    return wait_until(together, SETTLE_S, f"{', '.join(containers.nodes)} at one revision", 0.1), found


def taken(containers: Containers, directory: Path) -> dict[str, Backup]:
    """Of each node that gives one."""
    barrier = Barrier(len(containers.nodes))

    def take(node: str) -> Backup | None:
        file = directory / f"{node}.backup"
        barrier.wait(PATIENCE_S)
        try:
            with file.open("wb") as target, download(containers.endpoint(node), "/api/v1/backup", PATIENCE_S) as pieces:
                for piece in pieces:
                    target.write(piece)
        except EndpointError:
            return None
        return read_backup(file)

    with ThreadPoolExecutor(len(containers.nodes)) as threads:
        taken = zip(containers.nodes, threads.map(take, containers.nodes), strict=True)
        return {node: backup for node, backup in taken if backup is not None}
