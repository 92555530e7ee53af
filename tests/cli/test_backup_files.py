"""Backup files that are damaged, and directories that are not fit to be restored into, are refused with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from cluster.disk import RealDisk
from cluster.guards import ALL_ON
from cluster.journal import JournalHole
from cluster.options import ClusterOptions
from cluster.ports import Member
from cluster.scheduler import LoopScheduler
from cluster.snapshotfile import SnapshotCorrupt, SnapshotParser
from cluster.storage import Storage, open_storage
from coordinator.backups import BackupError, Writing, new_header, read_backup, restore
from coordinator.cli import main
from coordinator.cli.files import replacing
from coordinator.machine import commands as c
from coordinator.machine.codec import encode_command
from coordinator.machine.machine import Machine
from coordinator.machine.restoring import AHEAD_SHIFT
from tests.cli.processes import REPOSITORY

MEMBERS = tuple(Member(f"n{number}", f"127.0.0.1:72{number:02d}", f"127.0.0.1:71{number:02d}") for number in (1, 2, 3))


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    for index in range(1, 201):
        machine.apply(index, index, [encode_command(c.AcquireLease(f"r{index}", "a", 60_000))])
    return machine


@pytest.fixture
def file(machine: Machine, tmp_path: Path) -> Path:
    """A backup as a node writes it."""
    path = tmp_path / "state.backup"
    path.write_bytes(b"".join(pieces(machine)))
    return path


def pieces(machine: Machine) -> Iterator[bytes]:
    writing = Writing(new_header("old", machine.revision, machine.now_ms, ["n1", "n2", "n3"]), machine.freeze())
    while piece := writing.next_piece():
        yield piece


def options_of(directory: Path, node_id: str = "n1", cluster_id: str = "new") -> ClusterOptions:
    return ClusterOptions(node_id, cluster_id, str(directory), MEMBERS)


def opened(options: ClusterOptions) -> Storage:
    """As a node opens its directory."""
    scheduler: Any = LoopScheduler.__new__(LoopScheduler)
    storage = open_storage(
        options, disk=RealDisk(), scheduler=scheduler, random=SystemRandom(), guards=ALL_ON, fatal=pytest.fail
    )
    storage.lock.release()
    return storage


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(words))
    return code, capsys.readouterr().err


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_backup_is_what_the_machine_was(machine: Machine, file: Path) -> None:
    found = read_backup(file)
    assert found.machine.digest() == machine.digest()
    assert (found.header.cluster_id, found.header.revision, found.header.members) == ("old", 200, ("n1", "n2", "n3"))


def test_a_backup_is_no_snapshot_of_a_node(file: Path) -> None:
    with pytest.raises(SnapshotCorrupt):
        SnapshotParser(b"old", "a snapshot").feed(file.read_bytes())


def test_every_truncation_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = file.read_bytes()
    cuts = [0, 1, 15, 16, 40, len(whole) // 2, len(whole) - 25, len(whole) - 1]
    for size in cuts:
        file.write_bytes(whole[:size])
        code, complaint = said(capsys, "backup", "--check", str(file))
        assert (code, "state.backup" in complaint) == (1, True), size
    file.write_bytes(whole + b"x")
    assert said(capsys, "backup", "--check", str(file))[0] == 1


def test_every_flipped_bit_is_refused(file: Path) -> None:
    whole, chance = file.read_bytes(), Random(1)
    places = [*range(48), *(chance.randrange(len(whole)) for _ in range(60)), *range(len(whole) - 24, len(whole))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(BackupError):
            read_backup(file)


def test_a_person_sees_how_far_it_is(file: Path) -> None:
    """A bar on a terminal, which a program that reads what is printed does not get."""
    terminal, theirs = os.openpty()
    words = [sys.executable, "-m", "coordinator.cli", "backup", "--check", str(file)]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdout is not None and b"it is whole" in process.stdout.read()
        drawn = os.read(terminal, 1 << 16)
        os.close(terminal)
    assert b"reading state.backup [##########" in drawn and b"100 %" in drawn


@pytest.mark.parametrize("content", [b"", b"HELD", b"#!/bin/sh\necho this is a script of some length\n"])
def test_a_file_that_is_no_backup_is_said_to_be_none(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other"
    file.write_bytes(content)
    assert main(["backup", "--check", str(file)]) == 1
    told = capsys.readouterr().err
    assert "is no backup" in told and "damaged" not in told, told


def test_a_damaged_file_is_not_restored_and_leaves_no_directory(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    members = [word for each in MEMBERS for word in ("--member", f"{each.id}={each.peer},{each.http}")]
    target = tmp_path / "data"
    node = ["--data-dir", str(target), "--node-id", "n1", "--cluster-id", f"new-{int(time.time())}", *members]
    code, complaint = said(capsys, "restore", str(file), *node)
    assert (code, "damaged" in complaint, target.exists()) == (1, True, False)


def test_a_file_that_cannot_be_read_or_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, complaint = said(capsys, "backup", "--check", str(tmp_path / "missing"))
    assert (code, "No such file" in complaint) == (1, True)
    code, complaint = said(capsys, "backup", str(tmp_path / "no" / "dir"), "--endpoints", "127.0.0.1:1")
    assert (code, "cannot be written" in complaint) == (1, True)


# --- the directory ----------------------------------------------------------------------------------------------------


def test_a_backup_is_written_into_a_file_of_its_own(tmp_path: Path) -> None:
    """Not into one that somebody put there before, in a directory that is not its owner's alone."""
    theirs, target = tmp_path / "theirs", tmp_path / "backup"
    theirs.write_bytes(b"theirs")
    (tmp_path / f".backup.{os.getpid()}.tmp").symlink_to(theirs)
    with replacing(target) as file:
        file.write(b"ours")
    assert theirs.read_bytes() == b"theirs"
    assert (target.read_bytes(), target.is_symlink(), target.stat().st_mode & 0o777) == (b"ours", False, 0o600)


def test_a_directory_that_is_not_empty_is_refused_and_untouched(file: Path, tmp_path: Path) -> None:
    taken = tmp_path / "data"
    taken.mkdir()
    (taken / "something").write_text("mine")
    fresh = tmp_path / "fresh"
    with pytest.raises(BackupError, match="not empty"):
        restore(read_backup(file), [options_of(fresh, "n2"), options_of(taken)], 4_000_000_000)
    assert [each.name for each in taken.iterdir()] == ["something"]
    assert not fresh.exists()


def test_a_cluster_id_that_does_not_tell_the_restore_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = [word for each in MEMBERS for word in ("--member", f"{each.id}={each.peer},{each.http}")]
    node = ["--data-dir", str(tmp_path / "data"), "--node-id", "n1", *members]
    for cluster_id in ("old", "new", "new-123"):
        code, complaint = said(capsys, "restore", str(file), *node, "--cluster-id", cluster_id)
        assert (code, f"such as cluster_id = '{cluster_id}-1" in complaint) == (1, True), complaint
    code, complaint = said(capsys, "restore", str(file), *node, "--cluster-id", "new-4000000000")
    assert (code, "in the future" in complaint) == (1, True)
    code, complaint = said(capsys, "restore", str(file), *node, "--cluster-id", "new-1000000000")
    assert (code, "names a second before that of the backup" in complaint) == (1, True)
    assert "cluster_id = 'new-" in complaint, "one that can be used is told"
    named = ["--cluster-id", f"new-{int(time.time()) + 5}"]
    assert said(capsys, "restore", str(file), *node, *named)[0] == 0
    code, complaint = said(capsys, "restore", str(file), *node, *named)
    assert (code, "not empty" in complaint) == (1, True)


def test_nodes_prepared_apart_with_the_same_time_are_alike(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = [word for each in MEMBERS for word in ("--member", f"{each.id}={each.peer},{each.http}")]
    documents, cluster_id = [], f"new-{int(time.time()) + 5}"
    for node_id in ("n1", "n2"):
        node = ["--data-dir", str(tmp_path / node_id), "--node-id", node_id, "--cluster-id", cluster_id, *members]
        capsys.readouterr()
        assert main(["restore", str(file), *node, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["digest"] == documents[1]["digest"]
    storages = [opened(options_of(tmp_path / node_id, node_id, cluster_id)) for node_id in ("n1", "n2")]
    metas = [storage.snapshots.latest() for storage in storages]
    assert metas[0] == metas[1]


def test_another_file_or_another_time_is_another_term(file: Path, tmp_path: Path) -> None:
    """So that a node prepared differently is never taken for one that has the same state."""
    times = [4_000_000_000 + number for number in range(20)]
    made = [restore(read_backup(file), [options_of(tmp_path / str(at))], at) for at in times]
    assert len({each.term for each in made}) > 15
    assert [each.revision for each in made] == [at << AHEAD_SHIFT for at in times]


def test_a_restore_before_the_backup_was_taken_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="clock"):
        restore(read_backup(file), [options_of(tmp_path / "data")], 1_000_000)


def test_a_node_opens_what_was_prepared(file: Path, tmp_path: Path) -> None:
    options = options_of(tmp_path / "data")
    made = restore(read_backup(file), [options], 4_000_000_000)
    storage = opened(options)
    machine = Machine()
    storage.snapshots.load(machine.restore)
    assert (machine.digest().hex(), machine.revision) == (made.digest, made.revision)
    assert storage.membership.voters == {"n1", "n2", "n3"}
    assert (storage.journal.last_index, storage.journal.getCurrentTerm()) == (made.revision, made.term)


def test_a_directory_that_was_not_finished_does_not_start_as_an_empty_node(file: Path, tmp_path: Path) -> None:
    options = options_of(tmp_path / "data")
    restore(read_backup(file), [options], 4_000_000_000)
    for segment in (tmp_path / "data" / "log").iterdir():
        segment.unlink()
    with pytest.raises(JournalHole):
        opened(options)
