"""What a worker of shards makes of answers that come while it is still letting go of one. No cluster is needed."""

from __future__ import annotations

import asyncio
from typing import Any

from coordinator.client import Client, ShardWorker, clock
from tests.client.running import run
from tests.waiting import until


class Hands:
    """A worker whose letting go takes until it is allowed to."""

    def __init__(self) -> None:
        self.may_let_go = asyncio.Event()
        self.calls: list[tuple[str, int]] = []
        self.worker = ShardWorker(Client("http://127.0.0.1:1"), "q", self._assigned, self._revoked, worker_id="w")
        self._version = 0

    async def _assigned(self, shard: str, token: int) -> None:
        self.calls.append((shard, token))

    async def _revoked(self, shard: str, token: int) -> None:
        await self.may_let_go.wait()
        self.calls.append((shard, -token))

    def hear(self, shards: dict[str, int], revoking: dict[str, int], revoked_in_ms: int = 60_000) -> None:
        self._version += 1
        body: dict[str, Any] = {
            "changed": True, "version": self._version, "heartbeat_ms": 1_000, "revoked_in_ms": revoked_in_ms,
            "shards": [{"shard": name, "token": token} for name, token in shards.items()],
            "revoking": [{"shard": name, "token": token} for name, token in revoking.items()],
        }  # fmt: skip
        self.worker._hear(body, clock.now(), {})

    async def lost(self) -> None:
        """It has a shard, and then no heartbeat is answered in time."""
        watching = asyncio.ensure_future(self.worker._watch_time())
        self.hear({"s": 1}, {}, revoked_in_ms=80)
        await until(lambda: self.calls == [("s", 1)], "the shard")
        await until(lambda: not self.worker.shards, "the worker to notice that it heard nothing")
        watching.cancel()


def test_what_was_let_go_of_for_want_of_an_answer_is_taken_up_again() -> None:
    async def scenario() -> None:
        hands = Hands()
        await hands.lost()
        hands.hear({"s": 1}, {})  # it was its own all the time
        hands.may_let_go.set()
        await until(lambda: hands.worker.shards == {"s": 1}, "the shard again: nobody else has it")
        await until(lambda: hands.calls == [("s", 1), ("s", -1), ("s", 1)], "one after the other")
        assert not hands.worker._released

    run(scenario)


def test_what_is_asked_back_while_it_is_let_go_of_is_given_back() -> None:
    async def scenario() -> None:
        hands = Hands()
        await hands.lost()
        hands.hear({}, {"s": 1})
        assert not hands.worker._released, "not before it was let go of"
        hands.may_let_go.set()
        await until(lambda: hands.worker._released == {"s": 1}, "the shard to be given back")

    run(scenario)


def test_what_is_on_its_way_back_is_not_taken_up_again_under_its_old_token() -> None:
    async def scenario() -> None:
        hands = Hands()
        hands.hear({"s": 1, "r": 2}, {})
        await until(lambda: len(hands.calls) == 2, "both")
        hands.hear({"r": 2}, {"s": 1})
        hands.hear({"s": 1, "r": 2}, {})  # it might have kept it: but it has begun to let go
        hands.may_let_go.set()
        await until(lambda: hands.worker._released == {"s": 1}, "the shard to be given back")
        hands.hear({"s": 1, "r": 2}, {})
        assert hands.worker.shards == {"r": 2}, "as soon as the cluster hears that, another has it"
        hands.worker._hear({**_nothing(), "version": 9}, clock.now(), {"s": 1})
        hands.hear({"s": 3, "r": 2}, {})
        await until(lambda: hands.worker.shards == {"r": 2, "s": 3}, "the shard under a new token")

    run(scenario)


def _nothing() -> dict[str, Any]:
    return {"changed": False, "heartbeat_ms": 1_000, "revoked_in_ms": 60_000}
