"""Several keys that were granted together, of which one is over before anybody heard of the grant: the others are given
back, not entered a second time and left once."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from coordinator.client import Client, LockBusy, clock
from tests.client.running import run
from tests.client.scripted import Asked, ok, refused, scripted
from tests.client.test_open_acquisitions import TTL, granted, holds, linked
from tests.waiting import until


@pytest.mark.parametrize("wait", [0.0, 30.0, None])
def test_what_is_left_of_an_unheard_grant_is_not_entered_again(endpoints: list[str], wait: float | None) -> None:
    """The answer is lost, and an administrator breaks one of the locks before the request is tried again."""

    async def scenario() -> None:
        x, y = (f"partly.{wait}.{name}" for name in "xy")
        async with linked(endpoints) as (link, observer, _), Client(link.endpoints) as client:
            link.cut("deaf")
            asking = asyncio.ensure_future(client.locks([x, y], TTL, wait=wait).acquire())
            await until(lambda: granted(observer, x), "the grant")
            (lost,) = await holds(observer, y)
            await observer.call("POST", "/locks/break", {"lock_key": x})
            link.cut("reset")
            link.mend()
            held = await asking
            assert held.tokens[y] > lost["fencing_token"]
            for key in (x, y):
                (hold,) = await holds(observer, key)
                assert hold["hold_count"] == 1 and str(hold["client_id"]) == held.holder
            await held.release()
            assert not await granted(observer, x) and not await granted(observer, y)
            assert not len(client.acquisitions)

    run(scenario)


class Forgetful:
    """A cluster of one, of whose grant of `x` and `y` nobody hears; asked again, `x` is over, and `y` is held."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.silent = True
        self.given_back = list[Asked]()

    async def reply(self, asked: Asked) -> web.Response | None:
        match asked.path:
            case "/locks/acquire-many":
                self.names.append(asked.body["client_id"])
                if len(self.names) == 1:
                    return None
                if asked.body["client_id"] == self.names[0]:
                    return refused(403, "denied", "not_holder")
                return ok({"ttl_ms": TTL * 1000, "locks": [{"fencing_token": 8}, {"fencing_token": 9}]})
            case "/locks/release":
                self.given_back.append(asked)
                return ok({})
            case "/locks/y":
                if self.silent:
                    return refused(503, "retry")
                return ok({"holders": [{"client_id": self.names[0], "fencing_token": 7}], "waiters": []})
            case "/locks/x":
                return refused(404, "denied", "unknown_lock")
        return ok({})


def test_what_cannot_be_given_back_at_once_is_given_back_later_and_never_entered() -> None:
    """By then another hold has the keys under another name: the one that is given back is only the old one."""

    async def scenario() -> None:
        cluster = Forgetful()
        async with scripted(cluster.reply) as node, Client(node.address, timeout=0.5) as client:
            lock = client.locks(["x", "y"], TTL, wait=30)
            held = await lock.acquire()
            assert held.holder not in cluster.names[:2] and len(set(cluster.names[:2])) == 1
            assert len(client.acquisitions) == 1 and not cluster.given_back
            beside = await lock.acquire()
            assert beside.holder not in (held.holder, cluster.names[0])  # nor taken up by who asks for the same
            cluster.silent = False
            await until(lambda: not len(client.acquisitions), "it to be given back")
            (asked,) = cluster.given_back
            assert (asked.body["client_id"], asked.body["fencing_token"]) == (cluster.names[0], 7)

    run(scenario)


def test_cancelled_while_it_is_given_back_it_is_given_back_later() -> None:
    async def scenario() -> None:
        cluster = Forgetful()
        async with scripted(cluster.reply) as node, Client(node.address) as client:
            asking = asyncio.ensure_future(client.locks(["x", "y"], TTL, wait=30).acquire())
            await until(lambda: node.of("/locks/y"), "it to be looked for")
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            cluster.silent = False
            await until(lambda: not len(client.acquisitions), "it to be given back")
            assert [asked.body["client_id"] for asked in cluster.given_back] == [cluster.names[0]]

    run(scenario)


@pytest.mark.parametrize("reentrant", [False, True])
def test_heard_of_too_late_with_one_key_over_the_others_are_given_back(reentrant: bool) -> None:
    """Only a renewal tells what is left then: one of the keys is another's by now."""
    ttl = 1.2

    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            match asked.path:
                case "/locks/acquire-many" if len(node.of(asked.path)) == 1:
                    await until(lambda: clock.now() > asked.at + ttl / 5, "the answer to be late")
                    return ok({"ttl_ms": ttl * 1000, "locks": [{"fencing_token": 1}, {"fencing_token": 2}]})
                case "/locks/acquire-many":
                    return refused(409, "denied", "lock_held")
                case "/locks/renew" if asked.body["lock_key"] == "x":
                    return refused(403, "denied", "not_holder")
            return ok({"ttl_ms": ttl * 1000})

        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(LockBusy):
                await client.locks(["x", "y"], ttl, wait=0, reentrant=reentrant).acquire()
            first = node.of("/locks/acquire-many")[0].body["client_id"]
            left = {(asked.body["lock_key"], asked.body["fencing_token"]) for asked in node.of("/locks/release")}
            assert ("y", 2) in left
            assert {asked.body["client_id"] for asked in node.of("/locks/release")} == {first}

    run(scenario)
