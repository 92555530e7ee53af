"""GET /leases: the ACTIVE leases on resources of a prefix, page by page."""

from __future__ import annotations

import pytest

from coordinator.machine import commands as c
from coordinator.machine import reads
from tests.http.graph import ask, code, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost


async def listed(client: Client, query: str) -> tuple[list[str], int]:
    """Resource ids, and how many pages they came in."""
    found, after, pages = [], "", 0
    while True:
        status, page = await ask(client, "GET", f"/leases?{query}{after}")
        assert status == 200
        found += [lease["resource_id"] for lease in page["leases"]]
        pages += 1
        if page["next"] is None:
            return sorted(found), pages
        after = f"&after={page['next']}"


def test_only_active_leases_on_resources_of_the_prefix_are_listed() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(*(c.AcquireLease(f"a/{number}", "x", 60_000) for number in range(5)))
        host.run(c.AcquireLease("b/1", "x", 60_000), c.AcquireLease("a/short", "y", 1_000))
        host.run(c.AcquireLock("a/lock", "x", 60_000), c.ReleaseLease("a/3", "x"))
        everyone = ["a/0", "a/1", "a/2", "a/4", "a/short", "b/1"]
        assert await listed(client, "") == (everyone, 1)
        assert await listed(client, "prefix=a/&limit=2") == (everyone[:-1], 3)
        host.now_ms += 2_000
        assert await listed(client, "prefix=a/") == (everyone[:-2], 1)
        (lease,) = (await ask(client, "GET", "/leases?prefix=b/"))[1]["leases"]
        assert (lease["client_id"], lease["state"], lease["kind"]) == ("x", "ACTIVE", "resource")
        assert (await ask(client, "GET", f"/leases/{lease['lease_id']}"))[1]["resource_id"] == "b/1"
        for query in ("limit=0", "limit=1001", "after=zz", "what=1"):
            assert (await code(client, "GET", f"/leases?{query}"))[0] == 400

    scenario(run)


def test_a_page_looks_at_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SCANNED_LEASES", 4)

    async def run(host: LoneHost, client: Client) -> None:
        host.run(*(c.AcquireLease(f"{'b' if number == 9 else 'a'}/{number}", "x", 60_000) for number in range(10)))
        found, pages = await listed(client, "prefix=b/")
        assert found == ["b/9"] and pages >= 3

    scenario(run)


def test_leases_on_one_resource_are_found_without_looking_at_others() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(*(c.AcquireLease("shared", f"c{number}", 60_000) for number in range(4)))
        host.run(c.AcquireLease("shared/too", "other", 60_000), c.AcquireLease("shared", "brief", 1_000))
        host.run(c.ReleaseLease("shared", "c2"))

        async def clients(query: str) -> list[str]:
            status, page = await ask(client, "GET", f"/leases?{query}")
            assert status == 200 and page["next"] is None
            return [lease["client_id"] for lease in page["leases"]]

        assert sorted(await clients("resource=shared")) == ["brief", "c0", "c1", "c3"]
        host.now_ms += 2_000
        assert sorted(await clients("resource=shared")) == ["c0", "c1", "c3"]
        assert await clients("resource=shared&limit=1") == ["c3"]
        assert await clients("resource=nothing") == []
        assert await clients("resource=shared&prefix=other") == []

    scenario(run)
