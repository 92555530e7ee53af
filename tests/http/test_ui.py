"""/ui/: the files of the dashboard, and the headers that keep everything else out of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from coordinator.http.ui import HEADERS
from tests.http.scripted import Client, ScriptedHost, serving
from tests.meta.sources import REPOSITORY

FILES = REPOSITORY / "coordinator/ui"


def scenario(run: Callable[[Client], Awaitable[None]], phase: str = "running") -> None:
    async def start() -> None:
        async with serving(ScriptedHost(), phase=phase) as client:
            await run(client)

    asyncio.run(start())


def test_every_file_is_served_and_the_page_names_no_other() -> None:
    served = {str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file()}
    named = {"index.html"}
    for path in FILES.rglob("*"):
        if path.suffix == ".js":
            named |= {
                str((path.parent / name).resolve().relative_to(FILES))
                for name in re.findall(r'from "(\.[^"]+)"', path.read_text())
            }
    named |= set(re.findall(r'(?:href|src)="([\w./]+)"', (FILES / "index.html").read_text()))
    named = {name for name in named if not name.startswith("../")}
    assert named == served

    async def run(client: Client) -> None:
        for name in served:
            answer = await client.get(f"/ui/{'' if name == 'index.html' else name}")
            assert answer.status == 200, name
            assert await answer.read() == (FILES / name).read_bytes()
            for header, value in HEADERS.items():
                assert answer.headers[header] == value, name
        assert (await client.get("/ui/../http/app.py")).status == 404
        assert (await client.get("/ui/nothing.js")).status == 404

    scenario(run)


def test_the_page_is_there_before_the_node_is_ready_and_under_its_bare_name() -> None:
    async def run(client: Client) -> None:
        bare = await client.get("/ui", allow_redirects=False)
        assert (bare.status, bare.headers["Location"]) == (308, "ui/")
        answer = await client.get("/ui")
        assert answer.status == 200 and answer.content_type == "text/html"

    scenario(run, phase="starting")


def test_what_did_not_change_is_not_sent_again() -> None:
    async def run(client: Client) -> None:
        first = await client.get("/ui/app.js")
        again = await client.get("/ui/app.js", headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status, await again.read()) == (304, b"")
        assert again.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
        assert (await client.get("/ui/app.js", headers={"If-None-Match": '"other"'})).status == 200

    scenario(run)


def test_text_from_outside_has_no_way_into_markup() -> None:
    """The policy would refuse it in the browser as well; here it is found without one."""
    for path in FILES.rglob("*.js"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", path.read_text()
        ) + re.findall(r"https?:(?!//www\.w3\.org/2000/svg)", path.read_text())
        assert not found, (path.name, found)
    page = (FILES / "index.html").read_text()
    assert not re.search(r"\son\w+=|<style|style=|https?:|<script(?![^>]*\bsrc=)", page)
