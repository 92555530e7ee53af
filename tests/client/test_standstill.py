"""A standstill is told of while it lasts: what the nodes say, and what each task of the client waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.nodes import Nodes, nodes
from tests.client.running import run
from tests.client.standstill import told_of
from tests.waiting import until, wait_until


def test_what_stands_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with nodes(tmp_path / "data") as cluster:
        run(lambda: stand(cluster, capsys))


async def stand(cluster: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    renewals, told = 1, ""

    def tells(text: str) -> bool:
        nonlocal told
        told += capsys.readouterr().out
        return text in told

    waiting = asyncio.create_task(asyncio.Event().wait(), name="one that waits")
    async with told_of(lambda: renewals, "renewal", cluster, still_s=0.1):
        await until(lambda: tells("one that waits"), "what its tasks wait for")
        assert not tells("renewal goes on")
        renewals += 1
        await until(lambda: tells("renewal goes on"), "its end")
    waiting.cancel()
    assert "no renewal for 0.1 s, after 1 of them" in told
    assert all(f"--- {name}, running" in told for name in cluster.names)
    assert "'leader': 'n" in told and "node_started" in told


def test_an_event_loop_that_stands_is_told(tmp_path: Path) -> None:
    async def block_the_loop() -> None:
        async with told_of(lambda: 1, "renewal", Nodes(tmp_path / "data"), still_s=0.5, stderr=written.fileno()):
            await asyncio.sleep(0)
            wait_until(lambda: "in block_the_loop" in Path(written.name).read_text(), 60, "what it does")

    with open(tmp_path / "stderr", "w") as written:
        run(block_the_loop)
