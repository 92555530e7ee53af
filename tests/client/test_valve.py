"""The valve frees only what may go, only when the cluster is not heard, and tells of it afterwards."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coordinator.client import Client, HoldfastError
from coordinator.client.valve import ROOM_BYTES, Freed, Relief, SafetyValve
from coordinator.client.verifier import LeaseVerifier
from tests.client.gate import Gate
from tests.client.running import run
from tests.client.scripted import Asked, refused, scripted
from tests.waiting import until


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """a is the oldest, f the youngest; 1000 bytes each."""
    directory = tmp_path / "cache"
    (directory / "sub").mkdir(parents=True)
    for age, name in enumerate(["f", "e", "sub/d", "c", "b", "a"]):
        fill(directory / name, age)
    return directory


def fill(path: Path, age: int) -> None:
    path.write_bytes(b"x" * 1000)
    then = path.stat().st_mtime - 1000 - 10 * age
    os.utime(path, (then, then))


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file() and path.suffix != ".room")


def test_the_oldest_go_until_it_fits_and_the_journal_says_so(cache: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    valve = SafetyValve(cache, 3500, journal)
    relief = valve.relieve()
    assert [one.path for one in relief.freed] == ["a", "b", "c"]
    assert (relief.freed_bytes, relief.short_bytes) == (3000, 0)
    assert left(cache) == ["d", "e", "f"]
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [line["freed"]["path"] for line in lines] == ["a", "b", "c"]
    assert SafetyValve(cache, 3500, journal).unreported() == list(relief.freed)
    assert valve.relieve() == Relief((), 0, 0)


def test_what_is_protected_stays_whatever_it_costs(cache: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    fill(outside, 99)
    (cache / "link").symlink_to(outside)
    os.utime(cache / "link", (1, 1), follow_symlinks=False)
    (cache / "young").write_bytes(b"x" * 1000)
    valve = SafetyValve(cache, 0, cache / "journal", protected=["a", "sub/*"], pinned=lambda name: name == "b")
    relief = valve.relieve()
    assert [one.path for one in relief.freed] == ["c", "e", "f"]
    assert relief.short_bytes == 4000
    assert outside.exists() and left(cache) == ["a", "b", "d", "journal", "link", "young"]


def test_a_dry_run_only_says_and_a_run_is_bounded(cache: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    relief = SafetyValve(cache, 3500, journal, dry_run=True).relieve()
    assert [one.path for one in relief.freed] == ["a", "b", "c"]
    assert len(left(cache)) == 6 and not journal.exists()
    assert [one.path for one in SafetyValve(cache, 0, journal, max_files=2).relieve().freed] == ["a", "b"]


def test_a_line_that_a_crash_left_half_is_passed_over(cache: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text('{"freed": {"path": "x", "resource')
    valve = SafetyValve(cache, 5500, journal)
    assert [one.path for one in valve.relieve().freed] == ["a"]
    assert [one.path for one in valve.unreported()] == ["a"]


def test_a_file_that_changed_meanwhile_is_not_freed(cache: Path, tmp_path: Path) -> None:
    def pinned(name: str) -> bool:
        if name == "a":
            os.utime(cache / "a")  # somebody writes to it just now
        return False

    relief = SafetyValve(cache, 5500, tmp_path / "journal", pinned=pinned).relieve()
    assert [one.path for one in relief.freed] == ["b"]


def test_a_file_that_is_put_there_while_the_journal_is_written_stays(
    cache: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    valve, append = SafetyValve(cache, 4500, tmp_path / "journal"), SafetyValve._append
    happens = [lambda: os.replace(tmp_path / "new", cache / "a"), (cache / "b").unlink]

    def slowly(valve: SafetyValve, records: Sequence[dict[str, Any]]) -> None:
        append(valve, records)
        if "freed" in records[0] and happens:
            happens.pop(0)()

    (tmp_path / "new").write_bytes(b"new")
    monkeypatch.setattr(SafetyValve, "_append", slowly)
    relief = valve.relieve()
    assert (cache / "a").read_bytes() == b"new"
    # What is gone is freed, whoever did it.
    assert [one.path for one in relief.freed] == ["b", "c"] == [one.path for one in valve.unreported()]


def test_who_refuses_is_not_silent_nor_is_who_is_not_asked(cache: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async def refuse(asked: Asked) -> web.Response | None:
            return refused(401, "denied", "unauthenticated")

        valve = SafetyValve(cache, 3500, tmp_path / "journal")
        async with scripted(refuse) as node, Client(node.address) as client:
            running = asyncio.create_task(valve.run(client, every=0.001, patience=0.0))
            await until(lambda: len(node.asked) > 5 or len(left(cache)) < 6, "some refusals")
            await client.close()
            await asyncio.wait({running}, timeout=10)
            assert len(left(cache)) == 6 and running.done()
            error = running.exception()
            assert isinstance(error, HoldfastError) and error.code == "client_unusable"

    run(scenario)


def test_cut_off_it_frees_what_is_not_leased_and_reports_when_contact_returns(
    endpoints: list[str], cache: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        reliefs: list[Relief] = []
        reports: list[Freed] = []
        with Gate([each.removeprefix("http://") for each in endpoints]) as gate:
            async with Client(endpoints) as near, Client(gate.endpoints, timeout=1.0) as client:
                await prepare(near)
                async with LeaseVerifier(client, "valve/", ttl=2.0) as verifier:
                    valve = SafetyValve(
                        cache, 3500, tmp_path / "journal", verifier=verifier, resource_id=lambda name: f"valve/{name}"
                    )
                    options = {"every": 0.2, "patience": 1.0, "on_relief": reliefs.append, "on_report": reports.extend}
                    running = asyncio.create_task(valve.run(client, **options))  # type: ignore[arg-type]
                    await until(lambda: verifier.age < 1.5 and verifier._heard > begun + 2, "some time in contact")
                    assert len(left(cache)) == 6 and not reliefs  # over its budget, but the cluster is heard
                    await asyncio.to_thread(gate.cut)
                    await until(lambda: reliefs, "relief")
                    assert left(cache) == ["a", "e", "f"]  # a was leased
                    # It is acquired while the provider hears nothing; what was freed cannot be had back.
                    await acquire(near, "valve/b")
                    gate.mend()
                    await until(lambda: len(reports) == 3, "the report")
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
                assert {one.resource_id: one.told for one in reports} == {
                    "valve/b": "in_use", "valve/c": "reclaiming", "valve/sub/d": "unknown",
                }  # fmt: skip
                assert (await near.call("GET", "/resources/valve%2Fc"))["state"] == "reclaiming"
                assert valve.unreported() == []

    async def prepare(near: Client) -> None:
        for name in ("a", "b", "c"):
            await near.call("PUT", f"/resources/valve%2F{name}", {"provider": "valve", "kind": "file"})
        await acquire(near, "valve/a")

    from coordinator.client import clock

    begun = clock.now()
    asyncio.run(asyncio.wait_for(scenario(), 180))


async def acquire(client: Client, resource_id: str) -> None:
    body = {"resource_id": resource_id, "client_id": "reader", "lease_duration_ms": 60_000}
    await client.call("POST", "/leases/acquire", body)


def test_on_a_full_disk_the_journal_has_the_room_that_was_kept_for_it(cache: Path, monkeypatch: Any) -> None:
    """That is when the valve is needed: nothing is freed that is not in the journal."""
    valve, append = SafetyValve(cache, 3500, cache / "journal"), SafetyValve._append

    def on_a_full_disk(valve: SafetyValve, records: Sequence[dict[str, Any]]) -> None:
        if valve._room.exists():
            with open(valve._journal, "ab") as file:
                file.write(b'{"freed": {"pa')
            raise OSError(errno.ENOSPC, "No space left on device")
        append(valve, records)

    monkeypatch.setattr(SafetyValve, "_append", on_a_full_disk)
    relief = valve.relieve()
    assert [one.path for one in relief.freed] == ["a", "b", "c"]
    assert valve.unreported() == list(relief.freed)
    valve.relieve()
    assert valve._room.stat().st_blocks * 512 >= ROOM_BYTES, "room is kept again when there is some"


def test_it_goes_on_when_its_journal_cannot_be_written(
    endpoints: list[str], cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        journal, reliefs = tmp_path / "none" / "journal", list[Relief]()
        valve = SafetyValve(cache, 3500, journal)
        with Gate([each.removeprefix("http://") for each in endpoints]) as gate:
            await asyncio.to_thread(gate.cut)
            async with Client(gate.endpoints, timeout=0.2) as client:
                running = asyncio.create_task(valve.run(client, every=0.1, patience=0.0, on_relief=reliefs.append))
                await until(lambda: "it is tried again" in caplog.text, "the error to be told")
                assert len(left(cache)) == 6, "nothing goes that is not in the journal"
                journal.parent.mkdir()
                await until(lambda: reliefs, "relief")
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert left(cache) == ["d", "e", "f"]

    asyncio.run(asyncio.wait_for(scenario(), 60))
