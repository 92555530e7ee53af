"""Locks on real nodes: first come first served, once each, and the seed's zombie table."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import Any

from tests.api.calls import Nodes, with_nodes
from tests.cli.processes import Up
from tests.waiting import until

WAITERS = 1_000
RACES, ROUNDS, PATIENCE_MS = 20, 25, 120_000


def ask(key: str, client_id: str, **more: Any) -> dict[str, Any]:
    return {"lock_key": key, "client_id": client_id, "lease_time_ms": 600_000, **more}


async def queue(nodes: Nodes, key: str) -> list[str]:
    status, lock = await nodes.get(nodes.alive[0], f"/locks/{key}")
    return [waiter["client_id"] for waiter in lock["waiters"]] if status == 200 else []


def test_any_node_takes_any_request(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        for node in (1, 2, 3):
            status, granted = await nodes.post(node, "/locks/acquire", ask(f"any-{node}", "a"))
            assert status == 200
            for other in (1, 2, 3):
                status, lock = await nodes.get(other, f"/locks/any-{node}")
                assert (status, lock["fencing_token"]) == (200, granted["fencing_token"])
            release = {"lock_key": f"any-{node}", "client_id": "a", "fencing_token": granted["fencing_token"]}
            assert (await nodes.post(node % 3 + 1, "/locks/release", release))[0] == 200
            assert (await nodes.get(node, f"/locks/any-{node}"))[0] == 404

    with_nodes(cluster, scenario)


def test_a_request_id_is_one_request_on_every_node(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        body = ask("once", "a", request_id="once-1")
        answers = await asyncio.gather(*(nodes.post(node, "/locks/acquire", body) for node in (1, 2, 3, 1, 2, 3)))
        assert {status for status, _ in answers} == {200}
        assert len({answer["fencing_token"] for _, answer in answers}) == 1
        assert {answer["hold_count"] for _, answer in answers} == {1}

    with_nodes(cluster, scenario)


def test_no_notice_is_lost_between_a_release_and_one_who_begins_to_wait(cluster: Up) -> None:
    """Both at once, at different nodes: whichever comes first in the log, who asks has the lock, and not at the end of
    its patience but when it is free."""

    async def scenario(nodes: Nodes) -> None:
        async def race(number: int) -> None:
            key, tokens = f"race-{number}", list[int]()
            _, held = await nodes.post(1, "/locks/acquire", ask(key, "0"))
            for turn in range(1, ROUNDS):
                here, there = (number + turn) % 3 + 1, (number + 2 * turn) % 3 + 1
                before = {"lock_key": key, "client_id": str(turn - 1), "fencing_token": held["fencing_token"]}
                tokens.append(held["fencing_token"])
                (released, _), (granted, held) = await asyncio.gather(
                    nodes.post(here, "/locks/release", before),
                    nodes.post(there, "/locks/acquire", ask(key, str(turn), block_time_ms=PATIENCE_MS)),
                )
                assert (released, granted) == (200, 200), held
            assert tokens == sorted(set(tokens))

        began = time.monotonic()
        await asyncio.gather(*map(race, range(RACES)))
        assert time.monotonic() - began < PATIENCE_MS / 1_000, "somebody waited in vain"

    with_nodes(cluster, scenario)


def test_waiters_are_granted_once_each_in_order(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        _, held = await nodes.post(1, "/locks/acquire", ask("fifo", "holder"))
        order: list[str] = []
        tokens: list[int] = []

        async def wait(number: int) -> None:
            name = f"w{number:04d}"
            node = number % 3 + 1
            # A thousand at once is more than a busy node takes of one namespace: who is refused asks again.
            body = ask("fifo", name, block_time_ms=60_000, request_id=name)
            status, granted = await nodes.insist("/locks/acquire", body, first=node - 1)
            assert status == 200, granted
            order.append(name)
            tokens.append(granted["fencing_token"])
            release = {"lock_key": "fifo", "client_id": name, "fencing_token": granted["fencing_token"]}
            assert (await nodes.post(node, "/locks/release", release))[0] == 200

        tasks = [asyncio.ensure_future(wait(number)) for number in range(WAITERS)]

        async def all_wait() -> bool:
            return len(await queue(nodes, "fifo")) == WAITERS

        await until(all_wait, "all waiters in the queue")
        expected = await queue(nodes, "fifo")
        release = {"lock_key": "fifo", "client_id": "holder", "fencing_token": held["fencing_token"]}
        assert (await nodes.post(2, "/locks/release", release))[0] == 200
        await asyncio.gather(*tasks)
        assert sorted(order) == sorted(expected)
        assert [name for _, name in sorted(zip(tokens, order, strict=True))] == expected
        assert len(set(tokens)) == WAITERS

    with_nodes(cluster, scenario)


def test_a_waiter_whose_connection_closes_is_never_granted(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        _, held = await nodes.post(1, "/locks/acquire", ask("gone", "holder"))
        leaving = asyncio.ensure_future(nodes.post(2, "/locks/acquire", ask("gone", "leaver", block_time_ms=60_000)))

        async def first() -> bool:
            return await queue(nodes, "gone") == ["leaver"]

        await until(first, "the leaver in the queue")
        staying = asyncio.ensure_future(nodes.post(3, "/locks/acquire", ask("gone", "stayer", block_time_ms=60_000)))
        leaving.cancel()

        async def only_the_other() -> bool:
            return await queue(nodes, "gone") == ["stayer"]

        await until(only_the_other, "the leaver to have left")
        release = {"lock_key": "gone", "client_id": "holder", "fencing_token": held["fencing_token"]}
        await nodes.post(1, "/locks/release", release)
        status, granted = await staying
        assert (status, granted["fencing_token"]) == (200, held["fencing_token"] + 1)

    with_nodes(cluster, scenario)


def test_broken_connections_and_their_retries_meet_in_any_order(cluster: Up) -> None:
    """Each breaks off and asks again elsewhere under its id, before or after its place is given up: it waits, is
    granted once, keeps what it was told of, and leaves nothing behind."""

    async def scenario(nodes: Nodes) -> None:
        key, clients = "broken", 60
        _, held = await nodes.post(1, "/locks/acquire", ask(key, "holder"))
        waiting = asyncio.Event()
        insisting: list[str] = []
        readings: list[list[str]] = []
        """The queue, as one task reads it for all: sixty that ask all the time would be all that the nodes do."""

        async def placed(name: str) -> None:
            begun = len(readings) + 1
            await until(lambda: any(name in reading for reading in readings[begun:]), "its place in the queue")

        async def client(number: int) -> int:
            name = f"b{number}"
            body = ask(key, name, block_time_ms=60_000, request_id=f"broken-{number}")
            for node in (1, 2, 3):
                broken = asyncio.ensure_future(nodes.post((number + node) % 3 + 1, "/locks/acquire", body))
                if (number + node) % 4:
                    await placed(name)
                broken.cancel()
            again = asyncio.ensure_future(nodes.insist("/locks/acquire", body, number))
            insisting.append(name)
            await waiting.wait()
            status, granted = await again
            assert (status, granted["hold_count"]) == (200, 1), granted
            release = {"lock_key": key, "client_id": name, "fencing_token": granted["fencing_token"]}
            status, released = await nodes.insist("/locks/release", {**release, "request_id": f"out-{number}"}, number)
            assert (status, released["hold_count"]) == (200, 0), (name, granted, released)
            return int(granted["fencing_token"])

        tasks = [asyncio.ensure_future(client(number)) for number in range(clients)]

        async def all_wait() -> bool:
            readings.append(await queue(nodes, key))
            return len(insisting) == clients == len(readings[-1])

        await until(all_wait, "every client in the queue")
        waiting.set()
        release = {"lock_key": key, "client_id": "holder", "fencing_token": held["fencing_token"]}
        assert (await nodes.post(2, "/locks/release", release))[0] == 200
        assert len(set(await asyncio.gather(*tasks))) == clients

        async def free() -> bool:
            return (await nodes.get(1, f"/locks/{key}"))[0] == 404

        await until(free, "the lock to be free")

    with_nodes(cluster, scenario, 180)


def test_waiting_ends_with_409_in_its_time(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await nodes.post(1, "/locks/acquire", ask("busy", "holder"))
        began = asyncio.get_running_loop().time()
        status, refused = await nodes.post(2, "/locks/acquire", ask("busy", "b", block_time_ms=300))
        assert (status, refused["acquired"], refused["holder"]) == (409, False, "holder")
        assert 0.3 <= asyncio.get_running_loop().time() - began < 30

    with_nodes(cluster, scenario)


def test_the_zombie_is_fenced_out(cluster: Up) -> None:
    """Seed 001, T1 to T6, with the conditional UPDATE of its schema."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE TABLE inventory_items (item_id VARCHAR(64) PRIMARY KEY, quantity INTEGER NOT NULL,"
        " last_fencing_token BIGINT NOT NULL DEFAULT 0)"
    )
    database.execute("INSERT INTO inventory_items VALUES ('98210', 10, 0)")

    def write(token: int) -> bool:
        changed = database.execute(
            "UPDATE inventory_items SET quantity = quantity - 1, last_fencing_token = :token"
            " WHERE item_id = '98210' AND last_fencing_token < :token",
            {"token": token},
        )
        return changed.rowcount == 1

    async def scenario(nodes: Nodes) -> None:
        key = "zombie_item_98210"
        # T1: A acquires. T2: A stalls. T3: its lease expires. T4: B, who waited, acquires.
        body = {"lock_key": key, "client_id": "A", "lease_time_ms": 500}
        _, a = await nodes.post(1, "/locks/acquire", body)
        status, b = await nodes.post(2, "/locks/acquire", ask(key, "B", block_time_ms=20_000))
        assert status == 200
        assert b["fencing_token"] > a["fencing_token"]
        # T5: B writes. T6: A wakes up; its write, its renewal and its release are refused.
        assert write(b["fencing_token"])
        assert not write(a["fencing_token"])
        hold = {"lock_key": key, "client_id": "A", "fencing_token": a["fencing_token"]}
        status, lost = await nodes.post(3, "/locks/renew", {**hold, "extend_time_ms": 5_000})
        assert (status, lost["error"]["details"]["holder"]) == (403, "B")
        assert (await nodes.post(1, "/locks/release", hold))[0] == 403
        check = {"lock_key": key, "fencing_token": a["fencing_token"]}
        assert (await nodes.post(3, "/fencing/check", check))[1] == {
            "current": False,
            "newest_token": b["fencing_token"],
        }
        assert database.execute("SELECT quantity, last_fencing_token FROM inventory_items").fetchone() == (
            9,
            b["fencing_token"],
        )

    with_nodes(cluster, scenario)
    database.close()
