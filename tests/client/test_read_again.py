"""A request sent again with its id, at any node: a write has one effect, and a read is answered as things are now."""

from __future__ import annotations

from typing import Any

import aiohttp

from tests.client.running import run

AGAIN, WRITTEN = {"Idempotency-Key": "again-1"}, {"Idempotency-Key": "again-write"}


async def _ask(
    session: aiohttp.ClientSession,
    endpoint: str,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str],
    status: int = 200,
) -> Any:
    async with session.post(f"{endpoint}/api/v1{path}", json=body, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


def test_a_read_retried_with_its_id_is_never_answered_from_memory(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session:
            lock = {"lock_key": "again/k", "client_id": "a", "lease_time_ms": 60_000}
            held = await _ask(session, endpoints[0], "/locks/acquire", lock, WRITTEN)
            token = {"lock_key": "again/k", "fencing_token": held["fencing_token"]}
            lookup = {"lease_ids": [held["lease_id"]]}
            for endpoint in endpoints:
                assert (await _ask(session, endpoint, "/fencing/check", token, AGAIN))["current"]
                (seen,) = (await _ask(session, endpoint, "/leases/lookup", lookup, AGAIN))["leases"]
                assert seen["state"] == "ACTIVE"
            await _ask(session, endpoints[1], "/locks/release", {**token, "client_id": "a"}, {})
            for endpoint in endpoints:
                (seen,) = (await _ask(session, endpoint, "/leases/lookup", lookup, AGAIN))["leases"]
                assert seen["state"] != "ACTIVE", endpoint
            # The write sent again is that grant, which is over: nobody is granted anything.
            for endpoint in endpoints:
                told = await _ask(session, endpoint, "/locks/acquire", lock, WRITTEN, 403)
                assert told["error"]["code"] == "not_holder"
                (seen,) = (await _ask(session, endpoint, "/leases/lookup", lookup, AGAIN))["leases"]
                assert seen["state"] != "ACTIVE", endpoint
            other = await _ask(session, endpoints[2], "/locks/acquire", {**lock, "client_id": "b"}, {})
            assert other["fencing_token"] > held["fencing_token"]

    run(scenario)
