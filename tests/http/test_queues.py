"""Every route of queues, tasks and shards in front of a lone machine: names, statuses, refusals, waiting."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import msgpack
import pytest

from coordinator.http.bodies import MSGPACK
from coordinator.machine.limits import MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES, TIMER_SHIFT
from tests.http.graph import API, ask, code, scenario
from tests.http.queues import acquire, enqueue, held, put
from tests.http.scripted import Client
from tests.service.lone import LoneHost
from tests.waiting import until

TIMER_MS = 1 << TIMER_SHIFT
"""By so much a delay may end late."""


def test_a_task_from_end_to_end() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        payload = {"image": 7, "sizes": [1.5, None, "ü"]}
        status, made = await ask(client, "POST", "/queues/q/tasks", {"payload": payload, "priority": 3})
        assert (status, set(made), made["existing"]) == (200, {"queue", "task_id", "existing"}, False)
        (task,) = await acquire(client)
        assert task == {
            "task_id": made["task_id"], "queue": "q", "payload": payload, "token": task["token"], "attempt": 1,
            "ttl_ms": 1_000, "revoked_in_ms": 1_400, "heartbeat_ms": 200,
        }  # fmt: skip
        renewed = await ask(client, "POST", "/queues/q/renew", held(task))
        assert renewed == (
            200,
            {"task_id": task["task_id"], "renewed": True, "ttl_ms": 1_000, "revoked_in_ms": 1_400},
        )
        status, seen = await ask(client, "GET", f"/queues/q/tasks/{task['task_id']}")
        assert (seen["state"], seen["owner"], seen["payload"], seen["priority"]) == ("leased", "w", payload, 3)
        done = await ask(client, "POST", "/queues/q/complete", held(task))
        assert done == (200, {"task_id": task["task_id"], "completed": True})
        status, seen = await ask(client, "GET", f"/queues/q/tasks/{task['task_id']}")
        assert (seen["state"], seen["payload"]) == ("done", None)
        status, queue = await ask(client, "GET", "/queues/q")
        assert (queue["done"], queue["completed"], queue["handed_out"], queue["standing"]) == (1, 1, 1, "running")

    scenario(run)


def test_every_refusal_has_its_code() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        await enqueue(client, 1, 2)
        first, second = await acquire(client)
        wrong = {**held(first), "token": second["token"]}
        for verb, done in (("renew", "renewed"), ("complete", "completed"), ("return", "returned")):
            status, answer = await ask(client, "POST", f"/queues/q/{verb}", wrong)
            assert (status, answer["error"]["code"], answer[done]) == (403, "not_holder", False)
            unknown = {**held(first), "task_id": "00000000000000ff"}
            assert await code(client, "POST", f"/queues/q/{verb}", unknown) == (404, "unknown_task")
            assert await code(client, "POST", f"/queues/none/{verb}", held(first)) == (404, "unknown_queue")
        assert await code(client, "POST", "/queues/q/fail", wrong) == (403, "not_holder")
        assert await code(client, "POST", "/queues/none/fail", held(first)) == (404, "unknown_queue")
        assert (await ask(client, "POST", "/queues/q/complete", held(first)))[0] == 200
        assert await code(client, "POST", "/queues/q/complete", held(first)) == (409, "task_done")
        revoked = await ask(client, "POST", f"/queues/q/tasks/{second['task_id']}/revoke")
        assert revoked == (200, {"task_id": second["task_id"], "revoked": True, "owner": "w"})
        assert await code(client, "POST", "/queues/q/renew", held(second)) == (403, "not_holder")
        assert await code(client, "POST", "/queues/q/complete", held(second)) == (403, "not_holder")
        for method, path in (
            ("GET", "/queues/none"), ("DELETE", "/queues/none"), ("POST", "/queues/none/pause"),
            ("GET", "/queues/none/tasks"), ("GET", "/queues/none/shards"), ("GET", "/queues/none/workers"),
            ("POST", "/queues/none/retry"), ("POST", "/queues/none/purge"),
        ):  # fmt: skip
            assert await code(client, method, path, {} if method == "POST" else None) == (404, "unknown_queue"), path
        asking = {"worker_id": "w", "wait_ms": 60_000}
        assert await code(client, "POST", "/queues/none/acquire", asking) == (404, "unknown_queue")
        assert await code(client, "POST", "/queues/none/workers", asking) == (404, "unknown_queue")
        assert await code(client, "DELETE", "/queues/q") == (409, "queue_in_use")

    scenario(run)


def test_many_at_once_have_a_verdict_each() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        await enqueue(client, 1, 2, 3)
        tasks = await acquire(client)
        pairs = [{"task_id": task["task_id"], "token": task["token"]} for task in tasks]
        await ask(client, "POST", "/queues/q/complete", {"worker_id": "w", "tasks": pairs[:1]})
        pairs[1]["token"] += 1_000
        _, answer = await ask(client, "POST", "/queues/q/complete", {"worker_id": "w", "tasks": pairs})
        assert [each["verdict"] for each in answer["results"]] == ["already_done", "not_holder", "ok"]
        assert answer["completed"] == 1
        both = {"worker_id": "w", "tasks": pairs, "task_id": pairs[0]["task_id"]}
        assert await code(client, "POST", "/queues/q/complete", both) == (400, "bad_request")
        assert await code(client, "POST", "/queues/q/complete", {"worker_id": "w"}) == (400, "bad_request")

    scenario(run)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"payload": "x" * MAX_PAYLOAD_BYTES}, 413),
        ({"tasks": [{"payload": "x" * (MAX_PAYLOAD_BYTES + 1)}]}, 413),
        ({"payload": 1 << 64}, 400),
        ({"payload": "\ud800"}, 400),
        ({"payload": [[[[1]]]], "tasks": [{"payload": 1}]}, 400),
        ({"priority": 256}, 400),
        ({"delay_ms": -1}, 400),
        ({"key": ""}, 400),
        ({"paylod": 1}, 400),
        ({"tasks": []}, 400),
    ],
)
def test_bad_tasks_are_refused_and_none_is_taken_in(body: Any, status: int) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        answer = await client.post(f"{API}/queues/q/tasks", json=body)
        shown = await answer.json()
        assert (answer.status, shown["error"]["outcome"]) == (status, "denied")
        assert (await ask(client, "GET", "/queues/q"))[1]["ready"] == 0

    scenario(run)


def test_payloads_are_any_json_value_in_both_forms() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        values = [None, True, 0, -1, (1 << 64) - 1, 1.5, "", "ü\n\0", [], {}, {"a": {"b": [1]}}]
        await enqueue(client, *values)
        assert (await ask(client, "POST", "/queues/q/tasks", {}))[0] == 200, "null unless said"
        assert [task["payload"] for task in await acquire(client, 20)] == [*values, None]
        packed = {"Content-Type": MSGPACK, "Accept": MSGPACK}
        for payload, status in ((b"bytes", 400), (float("inf"), 400), ({"a": [1]}, 200)):
            body = msgpack.packb({"payload": payload})
            answer = await client.post(f"{API}/queues/q/tasks", data=body, headers=packed)
            assert answer.status == status
        answer = await client.post(f"{API}/queues/q/acquire", data=msgpack.packb({"worker_id": "w"}), headers=packed)
        assert msgpack.unpackb(await answer.read())["tasks"][0]["payload"] == {"a": [1]}
        assert (await client.post(f"{API}/queues/q/tasks", data=b'{"payload": 1e999}')).status == 400
        for depth, status in ((100, 200), (103, 400), (900, 400), (20_000, 400)):
            deep = b'{"payload": ' + b"[" * depth + b"]" * depth + b"}"
            assert (await client.post(f"{API}/queues/q/tasks", data=deep)).status == status

    scenario(run)


def test_payloads_that_are_too_much_together() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        packed = {"Content-Type": MSGPACK}
        tasks = [{"payload": "x" * 120_000} for _ in range(MAX_BATCH_BYTES // 120_000 + 1)]
        body = BytesIO(msgpack.packb({"tasks": tasks}))
        answer = await client.post(f"{API}/queues/q/tasks", data=body, headers=packed)
        assert (answer.status, (await answer.json())["error"]["outcome"]) == (413, "denied")

    scenario(run)


def test_keys_priorities_delays_and_turns() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        await put(client, "r")
        _, first = await ask(client, "POST", "/queues/q/tasks", {"payload": 1, "key": "k"})
        _, second = await ask(client, "POST", "/queues/q/tasks", {"payload": 2, "key": "k"})
        assert (second["task_id"], second["existing"]) == (first["task_id"], True)
        await enqueue(client, "urgent", priority=9)
        await enqueue(client, "later", delay_ms=500)
        await enqueue(client, *"abc", queue="r")
        got = await acquire(client, 4, queues=["r"])
        assert [(task["queue"], task["payload"]) for task in got] == [
            ("q", "urgent"), ("r", "a"), ("q", 1), ("r", "b"),
        ]  # fmt: skip
        await acquire(client, 1, queue="r")
        _, nothing = await ask(client, "POST", "/queues/q/acquire", {"worker_id": "w"})
        assert (nothing["tasks"], nothing["retry_in_ms"]) == ([], 500)
        host.now_ms += 500 + TIMER_MS
        assert [task["payload"] for task in await acquire(client)] == ["later"]

    scenario(run)


def test_failing_retrying_and_dead_letters() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        (number,) = await enqueue(client, "x")
        for attempt in (1, 2, 3):
            (task,) = await acquire(client)
            assert task["attempt"] == attempt
            status, told = await ask(client, "POST", "/queues/q/fail", {**held(task), "reason": f"bad {attempt}"})
            assert (status, told["dead"], told["attempt"]) == (200, attempt == 3, attempt)
            host.now_ms += (told["retry_in_ms"] or 0) + TIMER_MS
        _, dead = await ask(client, "GET", "/queues/q/tasks?state=dead")
        assert [(each["task_id"], each["last_error"]) for each in dead["tasks"]] == [(number, "bad 3")]
        assert await ask(client, "POST", "/queues/q/retry", {}) == (200, {"retried": 1, "left": 0})
        (task,) = await acquire(client)
        assert task["attempt"] == 1
        _, told = await ask(client, "POST", "/queues/q/fail", {**held(task), "retry_in_ms": 7_000})
        assert told["retry_in_ms"] == 7_000
        assert (await ask(client, "DELETE", f"/queues/q/tasks/{number}"))[1]["dropped"] is True
        assert await code(client, "GET", f"/queues/q/tasks/{number}") == (404, "unknown_task")
        await enqueue(client, 1, 2)
        assert await ask(client, "POST", "/queues/q/purge", {"state": "ready"}) == (200, {"purged": 2, "left": 0})
        assert (await ask(client, "DELETE", "/queues/q"))[0] == 200

    scenario(run)


def test_paused_draining_running() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        await enqueue(client, 1)
        stands = await ask(client, "POST", "/queues/q/pause")
        assert stands == (200, {"queue": "q", "standing": "paused", "before": "running"})
        assert await acquire(client) == []
        waiting = asyncio.ensure_future(acquire(client, wait_ms=60_000))
        await until(lambda: host.replica.hub.claiming == 1, "the worker to wait")
        assert (await ask(client, "POST", "/queues/q/resume"))[1]["before"] == "paused"
        assert [task["payload"] for task in await waiting] == [1]
        await ask(client, "POST", "/queues/q/drain")
        assert await code(client, "POST", "/queues/q/tasks", {"payload": 2}) == (409, "queue_draining")

    scenario(run)


def test_a_waiting_worker_is_woken_and_one_that_hangs_up_has_nothing() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        waiting = asyncio.ensure_future(acquire(client, wait_ms=60_000, request_id="a"))
        await until(lambda: host.replica.hub.claiming == 1, "the worker to wait")
        asked = len(host.proposed)
        await enqueue(client, "x")
        (task,) = await waiting
        assert len(host.proposed) == asked + 2, "no asking in between: the task, and the acquire that got it"
        assert await acquire(client, request_id="a") == [task]
        await ask(client, "POST", "/queues/q/complete", held(task))
        host.gate = asyncio.Event()
        gone = asyncio.ensure_future(acquire(client, wait_ms=60_000))
        await until(lambda: len(host.proposed) > asked + 3, "the acquire to be on its way")
        gone.cancel()
        await until(lambda: not host.replica.hub.claiming, "the node to notice")
        host.gate.set()
        host.gate = None
        await enqueue(client, "y")
        assert [each["payload"] for each in await acquire(client, worker="v")] == ["y"]

    scenario(run)


def test_pages_of_queues_and_tasks() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        for name in ("a", "b/c", "d"):
            await put(client, name.replace("/", "%2F"))
        _, first = await ask(client, "GET", "/queues?limit=2")
        assert ([each["queue"] for each in first["queues"]], first["next"]) == (["a", "b/c"], "b/c")
        _, rest = await ask(client, "GET", "/queues?limit=2&after=b/c")
        assert ([each["queue"] for each in rest["queues"]], rest["next"]) == (["d"], None)
        await enqueue(client, *range(5), queue="a")
        seen: list[str] = []
        after = ""
        while True:
            _, page = await ask(client, "GET", f"/queues/a/tasks?limit=2{after}")
            seen += [each["task_id"] for each in page["tasks"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert len(set(seen)) == 5

    scenario(run)


# --- shards -----------------------------------------------------------------------------------------------------------


async def beat(client: Client, worker: str, version: int = 0, *released: Any, **more: Any) -> Any:
    body = {"worker_id": worker, "version": version, "released": list(released), **more}
    status, answer = await ask(client, "POST", "/queues/q/workers", body)
    assert status == 200, answer
    return answer


def test_shards_change_hands_in_two_steps() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        _, said = await ask(client, "PUT", "/queues/q/shards", {"shards": ["x", "y"]})
        assert (said["shards"], said["added"]) == (2, 2)
        one = await beat(client, "one")
        assert [each["shard"] for each in one["shards"]] == ["x", "y"]
        assert (await beat(client, "one", one["version"]))["changed"] is False
        waiting = asyncio.ensure_future(beat(client, "one", one["version"], wait_ms=60_000))
        await until(lambda: host.replica.hub.claiming == 1, "the first to wait")
        two = await beat(client, "two")
        assert two["shards"] == [], "the first has not given it back"
        told = await waiting
        (asked_back,) = told["revoking"]
        assert asked_back in one["shards"] and len(told["shards"]) == 1
        handing = asyncio.ensure_future(beat(client, "two", two["version"], wait_ms=60_000))
        await until(lambda: host.replica.hub.claiming == 1, "the second to wait")
        await beat(client, "one", told["version"], asked_back)
        (taken,) = (await handing)["shards"]
        assert taken["shard"] == asked_back["shard"] and taken["token"] > asked_back["token"]
        _, owners = await ask(client, "GET", "/queues/q/shards")
        assert sorted(each["owner"] for each in owners["shards"]) == ["one", "two"]
        assert (await ask(client, "DELETE", "/queues/q/workers/two"))[1] == {
            "worker_id": "two", "left": True, "shards": 1,
        }  # fmt: skip
        _, workers = await ask(client, "GET", "/queues/q/workers")
        assert [each["worker_id"] for each in workers["workers"]] == ["one"]
        assert await code(client, "DELETE", "/queues/q/workers/two") == (404, "unknown_worker")
        assert await code(client, "PUT", "/queues/q/shards", {}) == (400, "bad_request")
        both = {"shards": ["x"], "count": 1}
        assert await code(client, "PUT", "/queues/q/shards", both) == (400, "bad_request")

    scenario(run)


def test_numbers_are_told() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await put(client)
        await enqueue(client, 1, 2)
        host.now_ms += 3_000
        (task,) = await acquire(client, 1)
        await ask(client, "POST", "/queues/q/complete", held(task))
        await ask(client, "PUT", "/queues/q/shards", {"count": 3})
        await beat(client, "w")
        told = (await ask(client, "GET", "/telemetry"))[1]["dispatch"]
        assert (told["ready"], told["done"], told["oldest_ready_age_ms"], told["workers"]) == (1, 1, 3_000, 1)
        assert told["shards"] == {"owned": 3, "revoking": 0, "waiting": 0, "uncounted": 0}
        assert told["moves"] == {"handed_out": 1, "completed": 1}
        text = await (await client.get("/metrics")).text()
        for line in (
            'holdfast_tasks{state="ready"} 1.0',
            'holdfast_shards{state="owned"} 3.0',
            'holdfast_task_moves_total{kind="completed"} 1.0',
            'holdfast_task_wait_seconds_bucket{le="5.0"} 1.0',
            'holdfast_task_wait_seconds_bucket{le="1.0"} 0.0',
            "holdfast_task_oldest_ready_seconds 3.0",
            'holdfast_queue_tasks{namespace="default",queue="q",state="ready"} 1.0',
            'holdfast_queue_moves_total{kind="completed",namespace="default",queue="q"} 1.0',
        ):
            assert line in text, line

    scenario(run)
