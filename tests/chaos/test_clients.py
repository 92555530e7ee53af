"""What a client of the chaos run writes down: that nobody answered, or that the answer was no."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web

from coordinator.client import Client
from tests.chaos.clients.facts import knocker
from tests.chaos.clients.work import Work
from tests.chaos.records import Recorder, read
from tests.chaos.store import Store
from tests.client.running import run
from tests.client.scripted import Asked, refused, scripted

MALFORMED = 400, "denied", "bad_request"


@pytest.mark.parametrize(("answers", "noted"), [(True, "turned_away"), (False, "failed")])
def test_a_connection_that_is_cut_once_is_no_failure_of_what_is_refused(
    tmp_path: Path, answers: bool, noted: str
) -> None:
    async def scenario() -> None:
        settle = asyncio.Event()

        async def reply(asked: Asked) -> web.Response | None:
            settle.set()
            return refused(*MALFORMED) if answers and len(node.asked) > 1 else None

        async with scripted(reply) as node, Client(node.address, timeout=1) as client:
            with closing(Recorder(tmp_path, "knocker")) as recorder, closing(Store(tmp_path / "store.db")) as store:
                await knocker(Work("knocker", client, recorder, store, settle, asyncio.Event(), tmp_path))
            assert len(node.asked) > 1

    run(scenario)
    assert [record["what"] for record in read(tmp_path)] == [noted]
