"""Bad input: 4xx with the field named, and nothing of it in the log."""

from __future__ import annotations

import asyncio
import io
import json
import urllib.parse
from typing import Any

import msgpack
import pytest
from yarl import URL

from coordinator.http.bodies import PACKED
from coordinator.machine import commands as c
from coordinator.machine.limits import MAX_BLOCK_MS, MAX_TTL_MS
from tests.service.lone import LoneHost, serving

LOCK: dict[str, Any] = {"lock_key": "k", "client_id": "a", "lease_time_ms": 1_000}
RENEW: dict[str, Any] = {"lock_key": "k", "client_id": "a", "fencing_token": 1, "extend_time_ms": 1}
LEASE: dict[str, Any] = {"resource_id": "r", "client_id": "a", "lease_duration_ms": 1_000}
BEAT: dict[str, Any] = {"client_id": "a", "lease_ids": ["0000000100000000"], "extend_duration_ms": 1_000}

BREAKING = ["\x00", "a\nb", "a\r", "\t", "\x1b[2J", "\x7f", "\x85", "a\u2028b"]
"""Control characters and line breaks: in a log or on a screen such a name is not what it is."""

WRONG: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "/locks/acquire": (
        LOCK,
        {
            "lock_key": ["", "x" * 256, 1, None, True, [], {}, "\ud800", *BREAKING],
            "client_id": ["", 7, None, *BREAKING],
            "lease_time_ms": [0, -1, MAX_TTL_MS + 1, 1.5, "10", None, True, 10**30, [1]],
            "block_time_ms": [-1, MAX_BLOCK_MS + 1, None, "0"],
            "mode": ["EXCLUSIVE", "", 1],
            "permits": [0, -1, 1 << 40],
            "session_id": ["", "xyz", "0" * 16, "1" * 17, 5],
            "lock_delay_ms": [-1, 10**9],
            "request_id": ["", "x" * 129, "é" * 100, 5, "a\n"],
        },
    ),
    "/locks/acquire-many": (
        {"lock_keys": ["a"], "client_id": "a", "lease_time_ms": 1},
        {
            "lock_keys": [
                ["a", "\x00"],
                [],
                ["a", "a"],
                ["a", ""],
                ["a", 1],
                "a",
                ["k"] * 65,
                {"a": 1},
                [f"{n}" for n in range(10**6)],
            ]
        },
    ),
    "/locks/renew": (
        RENEW,
        {"fencing_token": [-1, 1 << 63, "1", None, 1.5, 1e300], "extend_time_ms": [0, MAX_TTL_MS + 1]},
    ),
    "/locks/release": (
        {"lock_key": "k", "client_id": "a", "fencing_token": 1},
        {"fencing_token": [-1, 1 << 64, True], "lock_key": [""]},
    ),
    "/leases/acquire": (
        LEASE,
        {
            "resource_id": ["", "x" * 256, 3, *BREAKING],
            "lease_duration_ms": [0, 1 << 62],
            "max_lifetime_ms": [0, -5, 1 << 62],
        },
    ),
    "/leases/acquire-batch": (
        {"resource_ids": ["r"], "client_id": "a", "lease_duration_ms": 1},
        {"resource_ids": [[], ["r"] * 10_001, ["r", None], "r"]},
    ),
    "/leases/renew": (
        {"lease_id": "0000000100000000", "client_id": "a", "extend_duration_ms": 1},
        {"lease_id": ["", "1", 1, "g" * 16, "0" * 16, None], "extend_duration_ms": [0, "1"]},
    ),
    "/leases/lookup": ({"lease_ids": ["0000000100000000"]}, {"lease_ids": [[], ["x"], ["0000000100000000"] * 10_001]}),
    "/heartbeats": (
        BEAT,
        {
            "lease_ids": [[], ["1"], [1], ["00000001 0000000"], ["0000000100000000", None], "0000000100000000"],
            "extend_duration_ms": [0, -1, MAX_TTL_MS + 1],
        },
    ),
    "/sessions": ({"client_id": "a", "ttl_ms": 1}, {"client_id": ["", None], "ttl_ms": [0, -1, 1 << 62]}),
    "/fencing/check": ({"lock_key": "k", "fencing_token": 1}, {"fencing_token": [-1, "1"], "lock_key": ["", None]}),
}


async def refused(host: LoneHost, client: Any, path: str, status: int, field: str, **request: Any) -> None:
    before = host.replica.machine.digest()
    answer = await client.post("/api/v1" + path, **request)
    error = (await answer.json())["error"]
    assert answer.status == status, (path, request, error)
    assert error["outcome"] == "denied"
    named = error["details"].get("field", "")
    assert named.partition("[")[0] == field, (path, str(request)[:200], error)
    assert host.proposed == []
    assert host.replica.machine.digest() == before


@pytest.mark.parametrize("path", sorted(WRONG))
def test_every_field_has_its_bounds(path: str) -> None:
    good, wrong = WRONG[path]

    async def run() -> None:
        host = LoneHost()
        host.run(c.AcquireLock("held", "z", 10_000))
        async with serving(host, body_bytes_max=32 << 20) as client:
            for field, values in wrong.items():
                for value in values:
                    raw = json.dumps({**good, field: value}).encode()
                    await refused(host, client, path, 400, field, data=io.BytesIO(raw))
            for field in good:
                body = {name: value for name, value in good.items() if name != field}
                await refused(host, client, path, 400, field, json=body)
            await refused(host, client, path, 400, "surprise", json={**good, "surprise": 1})
            misspelt = next(iter(good)) + "s"
            answer = await client.post("/api/v1" + path, json={**good, misspelt: 1})
            assert "did you mean" in (await answer.json())["error"]["message"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b'"text"', "body"),
        (b"\xff\xfe{}", "body"),
        (b'{"lock_key": "\xff"}', "body"),
        (b"[" * 100_000, "body"),
        (b'{"a":' * 50_000, "body"),
        (b'{"lock_key": NaN}', "body"),
        (b'{"lock_key": Infinity}', "body"),
        (b'{"lease_time_ms": 1e400}', "lease_time_ms"),
        (b'{"lease_time_ms": 1' + b"0" * 5_000 + b"}", "body"),
        (b'{"lock_key": "k", "lock_key": "l"}', "lock_key"),
        (b'{"x": {"y": 1, "y": 2}}', "y"),
        (b"", "lock_key"),
    ],
)
def test_bodies_that_are_no_bodies(raw: bytes, field: str) -> None:
    async def run() -> None:
        host = LoneHost()
        async with serving(host) as client:
            if field == "lease_time_ms":
                full = b'{"lock_key": "k", "client_id": "a", "lease_time_ms": 1e400}'
                await refused(host, client, "/locks/acquire", 400, field, data=full)
            else:
                await refused(host, client, "/locks/acquire", 400, field, data=raw)

    asyncio.run(run())


def test_msgpack_is_held_to_the_same() -> None:
    async def run() -> None:
        host = LoneHost()
        headers = {"Content-Type": "application/msgpack"}
        async with serving(host) as client:
            for raw, field in (
                (b"\xc1", "body"),
                (msgpack.packb([1]), "body"),
                (msgpack.packb({1: 2}), "body"),
                (b"\x82\xa1a\x01\xa1a\x02", "a"),
                (msgpack.packb({**LOCK, "lock_key": b"k"}), "lock_key"),
                (msgpack.packb({**LOCK, "lease_time_ms": float("nan")}), "lease_time_ms"),
                (msgpack.packb({**LOCK, "lock_key": msgpack.Timestamp(1)}), "body"),
                (b"\x91" * 5_000 + b"\xc0", "body"),
            ):
                await refused(host, client, "/locks/acquire", 400, field, data=raw, headers=headers)

    asyncio.run(run())


def test_urls_and_headers() -> None:
    async def run() -> None:
        host = LoneHost()
        async with serving(host) as client:
            for url, field in (
                ("/locks?prefx=a", "prefx"),
                ("/locks?limit=0", "limit"),
                ("/locks?limit=1e3", "limit"),
                ("/locks?limit=" + "9" * 4_000, "limit"),
                ("/locks?limit=1&limit=2", "limit"),
                ("/locks?consistency=strong", "consistency"),
                ("/locks?max_staleness_ms=-1", "max_staleness_ms"),
                ("/locks?timeout_ms=0", "timeout_ms"),
                ("/locks/" + "x" * 256, "key"),
                ("/leases/nothex", "lease_id"),
                ("/sessions/" + "0" * 16, "id"),
                ("/watch?kinds=nothing", "kinds[0]"),
            ):
                answer = await client.get("/api/v1" + url)
                error = (await answer.json())["error"]
                assert (answer.status, error["details"]["field"]) == (400, field), (url, error)
            for name, value in (("X-Holdfast-Namespace", "x" * 256), ("Idempotency-Key", "x" * 129)):
                answer = await client.post("/api/v1/locks/acquire", json=LOCK, headers={name: value})
                assert (answer.status, (await answer.json())["error"]["details"]["field"]) == (400, name)
        assert host.proposed == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "target", "field"),
    [
        ("GET", "/locks/%ff", "key"),
        ("GET", "/locks/a%C3", "key"),
        ("GET", "/locks/a%2", "key"),
        ("GET", "/locks/a%zz", "key"),
        ("GET", "/locks/a%00b", "key"),
        ("GET", "/locks/a%0Ab", "key"),
        ("GET", "/locks?prefix=%ff", "prefix"),
        ("GET", "/locks?limit=1&prefix=a%ffb", "prefix"),
        ("GET", "/locks?prefix=%0d", "prefix"),
        ("GET", "/locks?after=50%", "after"),
        ("GET", "/leases/%ff", "lease_id"),
        ("PUT", "/namespaces/%fe%ff", "name"),
        ("DELETE", "/namespaces/a%0a", "name"),
        ("DELETE", "/cluster/members/%ff", "id"),
    ],
)
def test_escapes_that_are_no_text(method: str, target: str, field: str) -> None:
    """Sent byte for byte: a client library would mend them first."""

    async def run() -> None:
        host = LoneHost()
        async with serving(host) as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(f"{method} /api/v1{target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert head.startswith(b"HTTP/1.1 400 "), head
            assert json.loads(body)["error"]["details"]["field"] == field
        assert host.proposed == []

    asyncio.run(run())


def test_escapes_that_are_text_are_read_as_it() -> None:
    async def run() -> None:
        host = LoneHost()
        async with serving(host) as client:
            for name in ("a b", "50%", "%ff", "é/ü", "a+b", "日本", "\u200b"):
                host.run(c.AcquireLock(name, "a", 10_000))
                quoted = urllib.parse.quote(name)
                answer = await client.get(URL(f"/api/v1/locks/{quoted}", encoded=True))
                assert (await answer.json()).get("lock_key") == name
                answer = await client.get(URL(f"/api/v1/locks?prefix={quoted}", encoded=True))
                assert [lock["lock_key"] for lock in (await answer.json())["locks"]] == [name]

    asyncio.run(run())


def test_packed_bodies() -> None:
    async def run() -> None:
        host = LoneHost()
        good = {"Content-Type": PACKED, "X-Holdfast-Client": "a", "X-Holdfast-Extend-Ms": "1000"}
        async with serving(host) as client:
            for body, headers, field in (
                (b"", good, "lease_ids"),
                (b"1234567", good, "lease_ids"),
                (b"\0" * 800_008, good, "lease_ids"),
                (b"\0" * 8, {**good, "X-Holdfast-Extend-Ms": "0"}, "X-Holdfast-Extend-Ms"),
                (b"\0" * 8, {**good, "X-Holdfast-Extend-Ms": "1.5"}, "X-Holdfast-Extend-Ms"),
                (b"\0" * 8, {**good, "X-Holdfast-Client": "x" * 256}, "X-Holdfast-Client"),
                (b"\0" * 8, {"Content-Type": PACKED, "X-Holdfast-Client": "a"}, "X-Holdfast-Extend-Ms"),
            ):
                await refused(host, client, "/heartbeats", 400, field, data=body, headers=headers)

    asyncio.run(run())


def test_too_large() -> None:
    async def run() -> None:
        host = LoneHost()
        async with serving(host) as client:
            answer = await client.post("/api/v1/locks/acquire", data=io.BytesIO(b" " * (5 << 20)))
            assert (answer.status, (await answer.json())["error"]["code"]) == (413, "too_large")
        assert host.proposed == []

    asyncio.run(run())


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_what_is_no_text_is_quoted_without_harm(accept: str) -> None:
    """A refusal quotes the name it refuses; half a surrogate pair cannot be encoded, and must not become a 500."""

    async def run() -> None:
        async with serving(LoneHost()) as client:
            for body in (b'{"\\ud800": "c"}', b'{"\\ud800": 1, "\\ud800": 2}'):
                headers = {"Content-Type": "application/json", "Accept": accept}
                async with client.post("/api/v1/locks/acquire", data=body, headers=headers) as answer:
                    assert answer.status == 400
                    assert b"error" in await answer.read()

    asyncio.run(run())


@pytest.mark.parametrize(("path", "content_type"), [("/locks/acquire", "application/json"), ("/heartbeats", PACKED)])
def test_a_body_that_is_not_compressed_as_it_says(path: str, content_type: str) -> None:
    async def run() -> None:
        async with serving(LoneHost()) as client:
            headers = {"Content-Type": content_type, "Content-Encoding": "gzip"}
            async with client.post(f"/api/v1{path}", data=b"no gzip", headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["details"]["field"]) == (400, "body")

    asyncio.run(run())
