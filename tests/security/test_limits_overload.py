"""One namespace asks for many times what a node can do: the other one is served, and afterwards so is everybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.overload import acquire
from bench.wire import Wire, connect
from cluster.ports import Denied, Outcome
from coordinator.clientlimits import (
    AWAY_S,
    BUSY_CROWD,
    BUSY_LAG_S,
    CROWD_MOST,
    IN_WORK,
    LONG_TURN_S,
    MODEST_REQUESTS,
    PRESSURE_MOST,
    PRESSURE_URGENT,
    REFUSALS_PER_S,
    SHARE_S,
    SHORT_TURN_S,
    TICK_S,
    TURN_REQUESTS,
)
from coordinator.http.keys import NODE
from coordinator.http.shedding import Admission, Held, Shed
from coordinator.http.turnstile import Turnstile
from coordinator.machine.commands import Command
from coordinator.service import Service
from tests.security.doorway import Door, behind_the_door
from tests.security.lone_node import LoneNode, lone_node
from tests.waiting import until

GREEDY = 150
REFUSALS, HEALTHY = 100, 60
QUICK_S = 5.0
"""What a request may take by default: an overloaded node refuses before that (I18)."""


def test_the_one_that_asks_too_much_is_refused_and_the_other_served(tmp_path: Path) -> None:
    with lone_node(tmp_path) as node:
        for name in ("greedy", "healthy"):
            assert node.ask("PUT", f"/api/v1/namespaces/{name}", {})[0] == 200
        asyncio.run(_besiege(node))
        assert "Traceback" not in node.log


async def _besiege(node: LoneNode) -> None:
    address = ("127.0.0.1", node.http_port)
    answers: Counter[bytes] = Counter()
    refusals: list[tuple[float, bytes]] = []

    async def greedy(wire: Wire, number: int) -> None:
        waited = False
        while True:
            began = time.monotonic()
            answer = await wire.ask(acquire("greedy", f"k{number}"))
            answers[answer[9:12]] += 1
            if answer[9:12] == b"429" and not waited:
                refusals.append((time.monotonic() - began, answer))
            waited = answer[9:12] == b"429"  # the next one is not read at once

    wires = [await connect(address) for _ in range(GREEDY)]
    crowd = [asyncio.create_task(greedy(wire, number)) for number, wire in enumerate(wires)]
    wire, served = await connect(address), 0

    async def enough() -> bool:
        nonlocal served
        answer = await wire.ask(acquire("healthy", "k"))
        assert answer[9:12] == b"200", answer
        served += 1
        return len(refusals) >= REFUSALS and served >= HEALTHY

    await until(enough, f"{REFUSALS} refusals", 60)
    for task in crowd:
        task.cancel()
    ended = await asyncio.gather(*crowd, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended[:3]
    assert set(answers) == {b"200", b"429"}
    for seconds, answer in refusals:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert json.loads(body)["error"]["code"] == "overloaded"
        assert b"Retry-After: " in head
        assert seconds < QUICK_S
    calm = await connect(address)

    async def recovered() -> bool:
        return all([(await calm.ask(acquire("greedy", "k")))[9:12] == b"200" for _ in range(5)])

    await until(recovered, "a greedy namespace that is served again", 30)
    for each in (*wires, wire, calm):
        each.close()
    await asyncio.sleep(0)


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class _Crowd:
    """An admission under a clock that the test moves."""

    def __init__(self) -> None:
        self.clock, self.waiting, self.luck = _Clock(), 0, 0.0
        self.admission = Admission(self.clock, lambda: self.waiting, chance=lambda: self.luck)

    def ask(self, namespace: str, times: int, per_s: int | None = 1_000_000, *, urgent: bool = False) -> list[Shed]:
        refused = []
        for _ in range(times):
            try:
                self.admission.admit(namespace, per_s, urgent=urgent)
            except Shed as shed:
                refused.append(shed)
        return refused

    def be_busy(self, pressure: float = PRESSURE_MOST) -> None:
        """As long as it takes, at most a second."""
        for _ in range(50):
            if self.admission.pressure < pressure:
                self.admission.tick(2 * BUSY_LAG_S)

    def meet(self, greedy: str = "greedy") -> None:
        """One that asks for most, and one that asks for little."""
        self.ask(greedy, 5 * MODEST_REQUESTS)
        self.ask("healthy", 1)


def test_only_a_busy_node_refuses_and_only_who_asks_most() -> None:
    crowd = _Crowd()
    assert crowd.ask("greedy", 5 * MODEST_REQUESTS) == []
    assert crowd.ask("healthy", MODEST_REQUESTS) == []
    crowd.be_busy()
    assert crowd.ask("healthy", 100) == []
    assert 95 <= len(crowd.ask("greedy", 100)) < 100
    for _ in range(1_000):
        crowd.clock.now += TICK_S
        crowd.admission.tick(0.0)
    assert crowd.admission.pressure == 0
    assert crowd.ask("greedy", 100) == []


def test_a_namespace_that_is_alone_is_not_refused() -> None:
    crowd = _Crowd()
    crowd.ask("only", 5 * MODEST_REQUESTS)
    crowd.be_busy()
    assert crowd.ask("only", 100) == []
    crowd.admission.stranger()  # somebody who may not be here takes part in nothing
    crowd.be_busy()
    assert crowd.ask("only", 100) == []
    crowd.ask("another", 1)  # nor does what went before count against it, when somebody comes
    assert crowd.ask("only", 100) == []


def test_commands_that_wait_make_a_node_busy_as_well() -> None:
    crowd = _Crowd()
    crowd.meet()
    crowd.waiting = 1_000_000
    crowd.admission.tick(0.0)
    assert crowd.admission.pressure > 0


def test_a_crowd_that_waits_for_its_turn_makes_a_node_busy_as_well() -> None:
    """Else the turns would hide from the node how much is asked of it: its loop is never late."""

    async def scenario() -> None:
        crowd = _Crowd()
        crowd.ask("healthy", 1)
        crowd.ask("crowd", 1)
        waiting = _passing(crowd.admission.turnstile, [], "crowd", 3 * BUSY_CROWD)
        await asyncio.sleep(0)
        for _ in range(100):
            crowd.admission.tick(0.0)
        assert crowd.admission.pressure > 0
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_who_was_here_before_is_not_taken_for_the_one_that_begins() -> None:
    """From the first moment, and also when all of those that began have been told to stay away for a while."""

    async def scenario() -> None:
        crowd = _Crowd()
        for _ in range(int(SHARE_S / TICK_S)):
            crowd.ask("healthy", 10)
            crowd.clock.now += TICK_S
        crowd.ask("greedy", 1)
        arriving = _passing(crowd.admission.turnstile, [], "greedy", 10 * BUSY_CROWD)
        await asyncio.sleep(0)
        for _ in range(20):
            crowd.admission.tick(2 * BUSY_LAG_S)
            assert crowd.ask("healthy", 10) == []
        assert crowd.admission.pressure > 0.5
        refused = crowd.ask("greedy", 4 * BUSY_CROWD)
        assert len(refused) > BUSY_CROWD
        await asyncio.gather(*arriving)
        away = [asyncio.create_task(_stay_away(crowd, shed)) for shed in refused]
        await asyncio.sleep(0)
        for _ in range(20):
            crowd.clock.now += TICK_S
            crowd.admission.tick(2 * BUSY_LAG_S)
            assert crowd.ask("healthy", 10) == []
        assert crowd.ask("greedy", 100)
        await crowd.admission.stop(web.Application())
        await asyncio.gather(*away)
        crowd.admission.tick(0.0)
        assert crowd.ask("greedy", 100) == [], "with nobody of it left here, it is one like the others"

    asyncio.run(scenario())


async def _stay_away(crowd: _Crowd, shed: Shed) -> None:
    held = crowd.admission.held(web.Response(), shed)
    assert isinstance(held, Held)
    await held.hold()


def test_those_who_are_refused_are_let_in_again_slowly_and_at_once_when_they_stay_away() -> None:
    def eased(*, still_there: bool) -> float:
        crowd = _Crowd()
        crowd.meet()
        crowd.be_busy()
        for _ in range(100):
            if still_there:
                crowd.ask("greedy", 2)
            crowd.clock.now += TICK_S
            crowd.admission.tick(0.0)
        return PRESSURE_MOST - crowd.admission.pressure

    assert 0 < 4 * eased(still_there=True) < eased(still_there=False)


def test_they_are_let_in_only_as_far_as_turns_stay_short() -> None:
    """Long before a node is busy, the others feel who comes back; but nobody is shut out by how long turns are."""

    def left(turn_s: float, begin: float = PRESSURE_MOST) -> float:
        crowd = _Crowd()
        crowd.meet()
        crowd.be_busy(begin)
        for number in range(round(60 / TICK_S)):
            crowd.ask("greedy", 10)
            crowd.ask("healthy", int(number % 10 == 0))
            crowd.clock.now += TICK_S
            crowd.admission.tick(0.0, turn_s)
        return crowd.admission.pressure

    assert left(SHORT_TURN_S / 2) < 0.2
    for begin in (0.35, PRESSURE_MOST):
        assert 0.3 < left(2 * LONG_TURN_S, begin) < 0.5
    assert 0.3 < left((SHORT_TURN_S + LONG_TURN_S) / 2) < 0.5


def test_renewals_go_on_for_longer() -> None:
    crowd = _Crowd()
    crowd.meet()
    crowd.be_busy(PRESSURE_URGENT / 2)
    assert crowd.ask("greedy", 100, urgent=True) == []
    assert crowd.ask("greedy", 100)
    crowd.be_busy()
    assert crowd.ask("greedy", 100, urgent=True)


def test_names_that_are_nobodys_count_as_one() -> None:
    crowd = _Crowd()
    crowd.ask("healthy", MODEST_REQUESTS)
    for number in range(5 * MODEST_REQUESTS):
        crowd.ask(f"invented-{number}", 1, None)
    crowd.be_busy()
    assert crowd.ask("healthy", 100) == []
    assert len(crowd.ask("another", 100, None)) > 90


def test_the_more_are_refused_the_longer_they_stay_away() -> None:
    crowd = _Crowd()
    few = crowd.ask("paced", 20, 10)
    assert {int(shed.headers()["Retry-After"]) for shed in few} == {1}
    many = crowd.ask("paced", 5 * REFUSALS_PER_S, 10)
    assert 4 <= many[-1].retry_s <= AWAY_S
    crowd.clock.now += 2 * SHARE_S
    assert len(crowd.ask("paced", 10, 10)) == 0
    assert crowd.ask("paced", 1, 10)[0].retry_s < 1


def test_those_refused_together_do_not_come_again_together() -> None:
    crowd = _Crowd()
    crowd.ask("paced", 10, 10)
    (early,) = crowd.ask("paced", 1, 10)
    crowd.luck = 0.9
    (late,) = crowd.ask("paced", 1, 10)
    assert late.retry_s > 1.5 * early.retry_s


# --- turns ----------------------------------------------------------------------------------------------------------


def _passing(turnstile: Turnstile, order: list[str], namespace: str, times: int) -> list[asyncio.Task[None]]:
    async def one() -> None:
        await turnstile.turn(namespace)
        order.append(namespace)

    return [asyncio.create_task(one()) for _ in range(times)]


async def _turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_crowd_lets_others_pass() -> None:
    async def scenario() -> None:
        turnstile, order = Turnstile(), list[str]()
        crowd = _passing(turnstile, order, "crowd", 10 * TURN_REQUESTS)
        modest = _passing(turnstile, order, "modest", 1)
        await asyncio.gather(*crowd, *modest)
        assert order.index("modest") <= TURN_REQUESTS
        assert order.count("crowd") == 10 * TURN_REQUESTS
        # One that comes in the middle of the crowd is behind no more of it than passes in one round.
        crowd = _passing(turnstile, order, "crowd", 10 * TURN_REQUESTS)
        await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
        before = len(order)
        await asyncio.gather(*_passing(turnstile, order, "late", 1))
        assert order.index("late") - before <= TURN_REQUESTS
        await asyncio.gather(*crowd)

    asyncio.run(scenario())


def test_beside_others_only_so_many_of_a_namespace_are_in_work() -> None:
    """Alone it may have all of the node; so it may again when the others have gone."""

    async def scenario() -> None:
        turnstile, order = Turnstile(), list[str]()
        held = asyncio.Event()

        async def work(namespace: str) -> None:
            await turnstile.turn(namespace)
            turnstile.begin(namespace)
            order.append(namespace)
            await held.wait()
            turnstile.end(namespace)

        first = [asyncio.create_task(work("crowd")) for _ in range(2 * IN_WORK)]
        await _turns_of_the_loop(100)
        assert len(order) == 2 * IN_WORK
        held.set()
        await asyncio.gather(*first, *_passing(turnstile, [], "modest", 1))
        held.clear()
        order.clear()
        many = [asyncio.create_task(work("crowd")) for _ in range(IN_WORK + CROWD_MOST)]
        await _turns_of_the_loop(100)
        assert order.count("crowd") == IN_WORK
        assert turnstile.crowd == turnstile.here()["crowd"] - IN_WORK == CROWD_MOST
        assert turnstile.is_full("crowd") and not turnstile.is_full("modest")
        await asyncio.gather(*_passing(turnstile, order, "modest", TURN_REQUESTS))
        held.set()
        await asyncio.gather(*many)
        assert order.count("crowd") == IN_WORK + CROWD_MOST
        assert not turnstile.here()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_beside_others_less_is_in_work_while_the_node_is_slow() -> None:
    """From the first moment on, before it is known who asks too much. Nobody is refused for what waits therefore."""

    async def scenario() -> None:
        crowd, order, held = _Crowd(), list[str](), asyncio.Event()
        turnstile = crowd.admission.turnstile

        async def work() -> None:
            await turnstile.turn("crowd")
            turnstile.begin("crowd")
            order.append("crowd")
            await held.wait()
            turnstile.end("crowd")

        async def in_work(times: int) -> int:
            order.clear()
            held.clear()
            tasks = [asyncio.create_task(work()) for _ in range(times)]
            await _turns_of_the_loop(100)
            found = len(order)
            if found < IN_WORK:
                for _ in range(100):
                    crowd.admission.tick(0.0)
                    turnstile.pace(2 * LONG_TURN_S)
                assert not crowd.admission.pressure
            held.set()
            await asyncio.gather(*tasks)
            return found

        crowd.ask("crowd", 1)
        crowd.ask("modest", 1)
        for _ in range(5):
            crowd.admission.tick(0.0, 2 * LONG_TURN_S)
        assert await in_work(2 * IN_WORK) == 2 * IN_WORK, "alone it has the node for itself"
        await turnstile.turn("modest")
        assert await in_work(IN_WORK) == TURN_REQUESTS
        for _ in range(IN_WORK):
            crowd.admission.tick(0.0)
        assert await in_work(IN_WORK) == IN_WORK

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_turns_that_are_long_are_seen_by_the_node_itself() -> None:
    """Also such as are far shorter than what timers can tell."""

    async def scenario() -> None:
        admission = Admission(time.monotonic, lambda: 0)
        turnstile, app, working = admission.turnstile, web.Application(), True

        async def work() -> None:
            while working:
                over = time.monotonic() + 2 * LONG_TURN_S
                while time.monotonic() < over:
                    pass
                await asyncio.sleep(0)

        async with contextlib.asynccontextmanager(admission.watch_load)(app):
            busy = asyncio.create_task(work())
            await until(lambda: turnstile._room == TURN_REQUESTS, "less in work")
            working = False
            await busy
            await until(lambda: turnstile._room == IN_WORK, "as much in work as before")

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_who_gets_no_turn_in_the_time_it_has_is_refused_and_stands_in_nobodys_way() -> None:
    """Not answered when its client has long gone: what is in work may be so for as long as there is no leader."""

    async def scenario() -> None:
        crowd = _Crowd()
        turnstile, now_s = crowd.admission.turnstile, asyncio.get_running_loop().time()
        await turnstile.turn("modest")
        await turnstile.turn("crowd")
        for _ in range(IN_WORK):
            turnstile.begin("crowd")
        hasty = [asyncio.create_task(crowd.admission.turn("crowd", now_s + 0.05)) for _ in range(CROWD_MOST)]
        patient = asyncio.create_task(crowd.admission.turn("crowd", now_s + 60))
        ended = await asyncio.gather(*hasty, return_exceptions=True)
        assert {type(each) for each in ended} == {Shed} and {each.code for each in ended} == {"overloaded"}
        await turnstile.turn("modest")  # the next round sees that they have gone
        await asyncio.sleep(0)
        assert turnstile.crowd == 1 and not turnstile.is_full("crowd")
        turnstile.end("crowd")
        await patient

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_a_request_waits_for_its_turn_is_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the rest to commit, and not as long again."""
    left: list[float] = []

    async def propose(service: Service, namespace: str, command: Command, *asked: Any) -> Outcome:
        left.append(asked[1])
        return Denied("no_leader", "as it was asked")

    async def scenario(door: Door) -> None:
        assert (await door.ask(door.root, "PUT", "/api/v1/namespaces/a", {}))[0] == 200
        monkeypatch.setattr(Service, "propose", propose)
        node, lock = door.client.server.app[NODE], {"lock_key": "k", "client_id": "c", "lease_time_ms": 60_000}

        async def acquire_in_a(timeout_ms: int) -> tuple[int, str]:
            path = f"/api/v1/locks/acquire?timeout_ms={timeout_ms}"
            return await door.code(door.root, "POST", path, lock, namespace="a")

        for name in ("default", "a"):
            await node.admission.turnstile.turn(name)
        for _ in range(IN_WORK):
            node.admission.turnstile.begin("a")
        waiting = asyncio.create_task(acquire_in_a(60_000))
        assert await acquire_in_a(1_000) == (429, "overloaded")
        node.admission.turnstile.end("a")
        assert await waiting == (503, "no_leader")
        assert len(left) == 1 and 0 < left[0] <= 59.5

    behind_the_door(scenario)


def test_a_full_crowd_is_refused_but_for_what_is_urgent() -> None:
    async def scenario() -> None:
        crowd = _Crowd()
        turnstile = crowd.admission.turnstile
        await turnstile.turn("healthy")
        waiting = _passing(turnstile, [], "crowd", CROWD_MOST + TURN_REQUESTS)
        await asyncio.sleep(0)
        assert len(crowd.ask("crowd", 3)) == 3
        assert crowd.ask("crowd", 3, urgent=True) == crowd.ask("healthy", 3) == []
        await asyncio.gather(*waiting)
        assert crowd.ask("crowd", 3) == []

    asyncio.run(scenario())


def test_waiting_for_a_lock_is_no_work() -> None:
    """Else those that wait for one would keep its holder from giving it back."""

    async def scenario(door: Door) -> None:
        for name in ("a", "b"):
            assert (await door.ask(door.root, "PUT", f"/api/v1/namespaces/{name}", {}))[0] == 200

        async def acquire_in(namespace: str, client: str, block_ms: int = 0) -> int:
            body = {"lock_key": "k", "client_id": client, "lease_time_ms": 60_000, "block_time_ms": block_ms}
            return (await door.ask(door.root, "POST", "/api/v1/locks/acquire", body, namespace))[0]

        assert await acquire_in("a", "first") == 200
        waiting = [asyncio.create_task(acquire_in("a", f"w{n}", 60_000)) for n in range(IN_WORK + 1)]

        async def all_wait() -> bool:
            return door.host.replica.machine.counts().waiters == len(waiting)

        await until(all_wait, "a queue", 30)
        assert await acquire_in("b", "other") == 200  # from here on the node is shared
        assert await asyncio.wait_for(acquire_in("a", "late"), 10) == 409
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    behind_the_door(scenario)


def test_who_leaves_while_it_waits_takes_nobodys_turn() -> None:
    async def scenario() -> None:
        turnstile, order = Turnstile(), list[str]()
        crowd = _passing(turnstile, order, "crowd", 4 * TURN_REQUESTS)
        await asyncio.sleep(0)
        for gone in crowd[TURN_REQUESTS:-1]:
            gone.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        assert len(order) == TURN_REQUESTS + 1
        assert not turnstile.crowd

    asyncio.run(scenario())


def test_who_may_not_be_in_a_namespace_does_not_use_up_its_rate() -> None:
    async def scenario(door: Door) -> None:
        for name in ("a", "b"):
            asked = {"requests_per_s": 3}
            assert (await door.ask(door.root, "PUT", f"/api/v1/namespaces/{name}", asked))[0] == 200
        own, other = door.token(("a", "write")), door.token(("b", "write"))
        lock = {"lock_key": "k", "client_id": "bob", "lease_time_ms": 1_000}
        for _ in range(10):
            assert await door.code(other, "POST", "/api/v1/locks/acquire", lock, namespace="a") == (403, "forbidden")
        assert (await door.ask(own, "POST", "/api/v1/locks/acquire", lock, namespace="a"))[0] == 200
        codes = [(await door.code(own, "POST", "/api/v1/locks/acquire", lock, namespace="a"))[0] for _ in range(5)]
        assert 429 in codes

    behind_the_door(scenario)
