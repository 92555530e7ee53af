"""GET /sessions: those of clients that begin so, page by page."""

from __future__ import annotations

import pytest

from coordinator.machine import commands as c
from coordinator.machine import reads
from tests.http.graph import ask, code, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost


async def listed(client: Client, query: str) -> tuple[list[str], int]:
    """Clients, and how many pages they came in."""
    found, after, pages = [], "", 0
    while True:
        status, page = await ask(client, "GET", f"/sessions?{query}{after}")
        assert status == 200
        found += [session["client_id"] for session in page["sessions"]]
        pages += 1
        if page["next"] is None:
            return sorted(found), pages
        after = f"&after={page['next']}"


def test_sessions_come_by_client_and_page() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(*(c.CreateSession(f"a-{number}", 60_000) for number in range(5)), c.CreateSession("b-1", 60_000))
        everyone = [f"a-{number}" for number in range(5)] + ["b-1"]
        assert await listed(client, "") == (everyone, 1)
        assert await listed(client, "limit=2") == (everyone, 3)
        assert await listed(client, "prefix=a-&limit=2") == (everyone[:-1], 3)
        assert await listed(client, "prefix=nobody") == ([], 1)
        for query in ("limit=0", "limit=1001", "after=zz"):
            assert (await code(client, "GET", f"/sessions?{query}"))[0] == 400

    scenario(run)


def test_a_page_looks_at_a_bounded_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SCANNED_SESSIONS", 4)

    async def run(host: LoneHost, client: Client) -> None:
        host.run(*(c.CreateSession(f"{'b' if number == 9 else 'a'}-{number}", 60_000) for number in range(10)))
        found, pages = await listed(client, "prefix=b-")
        assert found == ["b-9"] and pages >= 3

    scenario(run)
