"""Guards of files, of objects, and of requests to a service."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from coordinator.client import Conflict, FileGuard, Invalid, ObjectGuard, StaleToken, TokenFloor, fencing_middleware


def test_a_file_takes_a_newer_token_and_the_same_again_but_no_older(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"before")
    path.chmod(0o640)
    guard = FileGuard(path)
    assert guard.newest() == 0
    for token, content in ((5, b"five"), (5, b"five again"), (9, b"nine")):
        guard.write(content, token)
        assert path.read_bytes() == content and path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(StaleToken) as refused:
        FileGuard(path).write(b"late", 8)
    assert refused.value.details["newest_token"] == 9
    with pytest.raises(StaleToken):
        guard.write(b"twice", 9, once=True)
    assert path.read_bytes() == b"nine" and guard.newest() == 9
    assert sorted(each.name for each in tmp_path.iterdir()) == ["state.json", "state.json.fence"]


def test_a_file_has_one_fence_by_whatever_name_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to("v1")
    path, link = tmp_path / "v1" / "report", tmp_path / "report"
    link.symlink_to(path)
    FileGuard(path).write(b"new", 9)
    for name in (link, tmp_path / "current" / "report"):
        with pytest.raises(StaleToken):
            FileGuard(name).write(b"late", 8)
        FileGuard(name).write(b"newer", 10)
    assert link.is_symlink() and path.read_bytes() == b"newer" and FileGuard(path).newest() == 10
    assert sorted(each.name for each in path.parent.iterdir()) == ["report", "report.fence"]


def test_a_writer_in_the_way_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path / "f", timeout=0.05)
    guard.write(b"x", 1)
    with open(tmp_path / "f.fence") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(Conflict):
            guard.write(b"y", 2)
    guard.write(b"y", 2)


def test_a_damaged_fence_lets_nothing_in(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path / "f")
    guard.write(b"x", 7)
    (tmp_path / "f.fence").write_bytes(b"000")
    with pytest.raises(Invalid):
        guard.write(b"y", 8)
    assert (tmp_path / "f").read_bytes() == b"x"


def _writer(path: Path, token: int, times: int) -> None:
    for _ in range(times):
        try:
            FileGuard(path, timeout=60).write(str(token).encode(), token)
        except StaleToken:
            return


def test_of_many_processes_the_newest_token_has_the_last_word(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_writer, args=(tmp_path / "f", token, 40)) for token in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert (tmp_path / "f").read_bytes() == b"4" and FileGuard(tmp_path / "f").newest() == 4


def test_an_object_is_written_if_it_did_not_change(tmp_path: Path) -> None:
    stored: dict[str, Any] = {"token": 3, "version": 1, "content": b""}
    others = [4, 4]  # tokens of writers that come in between

    def load() -> tuple[int, Any]:
        seen = stored["token"], stored["version"]
        if others:
            stored.update(token=others.pop(), version=stored["version"] + 1)
        return seen

    def store(content: bytes, token: int, version: Any) -> bool:
        if stored["version"] != version:
            return False
        stored.update(token=token, version=version + 1, content=content)
        return True

    guard = ObjectGuard("bucket/key", load, store)
    guard.write(b"mine", 5)
    assert stored["content"] == b"mine" and stored["token"] == 5
    with pytest.raises(StaleToken):
        guard.write(b"late", 4)
    others.append(9)
    with pytest.raises(StaleToken):
        guard.write(b"overtaken", 6)
    with pytest.raises(Conflict):
        ObjectGuard("busy", lambda: (0, None), lambda *_: False, attempts=3).write(b"", 1)
    assert stored["content"] == b"mine"


def test_a_floor_that_forgets_a_key_takes_no_token_as_low_as_its() -> None:
    floor = TokenFloor(max_keys=2)
    for key, token in (("a", 10), ("b", 11), ("a", 12), ("c", 13)):
        floor.admit(key, token)
    with pytest.raises(StaleToken):
        floor.admit("b", 9)  # forgotten, not forgiven
    floor.admit("b", 14)
    with pytest.raises(StaleToken):
        floor.admit("a", 11)


async def _statuses(client: TestClient[Any, Any], *tokens: str | None, method: str = "PUT") -> list[int]:
    found = []
    for token in tokens:
        headers = {} if token is None else {"X-Fencing-Token": token}
        async with client.request(method, "/things/k", headers=headers) as answer:
            found.append(answer.status)
    return found


def _service(*, admit: Any = None, handler: Any = None) -> web.Application:
    async def done(request: web.Request) -> web.Response:
        return web.Response(text="done")

    app = web.Application(middlewares=[fencing_middleware(lambda request: request.match_info.get("key"), admit)])
    app.router.add_route("*", "/things/{key}", handler or done)
    app.router.add_post("/open", done)
    return app


def test_requests_bring_their_token_and_older_ones_are_refused() -> None:
    async def scenario() -> None:
        async with TestClient(TestServer(_service())) as client:
            assert await _statuses(client, "5", "5", "7", "6", "x", "-1", None) == [200, 200, 200, 412, 400, 400, 428]
            assert await _statuses(client, None, "1", method="GET") == [200, 200]
            async with client.put("/things/k", headers={"X-Fencing-Token": "6"}) as answer:
                error = (await answer.json())["error"]
            assert error["code"] == "stale_token" and error["details"]["newest_token"] == 7
            async with client.post("/open") as answer:
                assert answer.status == 200
            async with client.put("/things/other", headers={"X-Fencing-Token": "1"}) as answer:
                assert answer.status == 200

    asyncio.run(scenario())


def test_a_newer_token_waits_for_the_request_that_was_admitted_before_it() -> None:
    async def scenario() -> None:
        begun, go_on, order = asyncio.Event(), asyncio.Event(), []

        async def slow(request: web.Request) -> web.Response:
            token = request.headers["X-Fencing-Token"]
            if token == "5":
                begun.set()
                await go_on.wait()
            order.append(token)
            return web.Response()

        admitted: list[int] = []

        async def admit(key: str, token: int) -> None:
            admitted.append(token)

        async with TestClient(TestServer(_service(admit=admit, handler=slow))) as client:
            first = asyncio.create_task(_statuses(client, "5"))
            await begun.wait()
            second = asyncio.create_task(_statuses(client, "6"))
            async with client.put("/things/other", headers={"X-Fencing-Token": "1"}) as answer:
                assert answer.status == 200  # another key does not wait
            go_on.set()
            assert await first == await second == [200]
        assert order == ["1", "5", "6"] and admitted == [5, 1, 6]

    asyncio.run(scenario())
