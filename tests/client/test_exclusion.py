"""One client in one process: every block has a hold of its own, also when blocks share a client or an object."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager

import pytest

from coordinator.client import Client, Conflict, Invalid, Leader, LockBusy, SyncClient, clock
from coordinator.client.identity import MAX_NAME, HoldNames, client_of
from coordinator.machine.access import AccessToken
from coordinator.machine.limits import MAX_NAME_CHARACTERS
from tests.client.running import run
from tests.waiting import until, wait_until

TASKS = 4
Blocks = Callable[[], AbstractAsyncContextManager[object]]
SyncBlocks = Callable[[], AbstractContextManager[object]]


class Room:
    """How many are inside, and how many there were at most."""

    def __init__(self) -> None:
        self.inside = self.most = self.visits = 0
        self._gate = threading.Lock()

    @contextlib.contextmanager
    def visited(self) -> Iterator[None]:
        with self._gate:
            self.inside += 1
            self.most = max(self.most, self.inside)
        yield
        with self._gate:
            self.inside -= 1
            self.visits += 1


async def crowd(client: Client, block: Blocks, stays: int = 3) -> Room:
    """So many tasks at once, each of which stays for a few calls."""
    room = Room()

    async def visit() -> None:
        async with block():
            with room.visited():
                for _ in range(stays):
                    await client.call("GET", "/cluster")

    await asyncio.gather(*(visit() for _ in range(TASKS)))
    assert room.visits == TASKS
    return room


def crowd_of_threads(client: SyncClient, block: SyncBlocks) -> Room:
    room = Room()

    def visit() -> None:
        with block(), room.visited():
            for _ in range(3):
                client.call("GET", "/cluster")

    threads = [threading.Thread(target=visit) for _ in range(TASKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
    assert room.visits == TASKS
    return room


# --- tasks of one client --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [False, True], ids=["an object each", "one object"])
def test_tasks_of_one_client_are_never_inside_together(endpoints: list[str], shares: bool) -> None:
    kinds: dict[str, Callable[[Client], AbstractAsyncContextManager[object]]] = {
        "lock": lambda client: client.lock("own/lock"),
        "locks": lambda client: client.locks(["own/a", "own/b"]),
        "election": lambda client: client.election("own/election"),
        "semaphore": lambda client: client.semaphore("own/semaphore", 1),
        "write": lambda client: client.read_write_lock("own/rw").write(),
    }

    async def scenario() -> None:
        async with Client(endpoints) as client:
            for name, make in kinds.items():
                one = make(client)
                room = await crowd(client, lambda make=make, one=one: one if shares else make(client))
                assert room.most == 1, name
            room = await crowd(client, lambda: client.semaphore("own/semaphore-2", 2), stays=20)
            assert room.most == 2
            room = await crowd(client, lambda: client.read_write_lock("own/rw").read(), stays=20)
            assert room.most > 1

    run(scenario)


def test_holds_of_one_client_have_tokens_and_names_of_their_own(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints, client_id="own") as client:
            tokens, holders = [], []
            for _ in range(2):
                async with client.lock("own/tokens") as held:
                    with pytest.raises(LockBusy, match="own has it"):
                        await client.lock("own/tokens", wait=0).acquire()
                    assert (await client.call("GET", "/locks/own%2Ftokens"))["holder"] == held.holder
                    assert client_of(held.holder) == "own" != held.holder
                    tokens.append(held.token)
                    holders.append(held.holder)
            assert tokens[0] < tokens[1] and holders[0] != holders[1]
            async with client.election("own/led") as held:
                assert await client.election("own/led").leader() == Leader("own", held.token)

    run(scenario)


@pytest.mark.parametrize("apart", [False, True], ids=["one session", "a session each"])
def test_tasks_of_one_client_take_turns_in_the_name_of_sessions(endpoints: list[str], apart: bool) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, client.session() as common:

            @contextlib.asynccontextmanager
            async def block(permits: int = 1) -> AsyncIterator[None]:
                async with contextlib.AsyncExitStack() as stack:
                    session = await stack.enter_async_context(client.session()) if apart else common
                    await stack.enter_async_context(session.lock("own/of-session", permits=permits))
                    yield

            assert (await crowd(client, block)).most == 1
            assert (await crowd(client, lambda: block(2))).most == 1
            held = await common.acquire_lock("own/of-session")
            with pytest.raises(LockBusy):
                await common.acquire_lock("own/of-session", wait=0)
            with pytest.raises(LockBusy):
                await common.acquire_lock("own/of-session", wait=0.05, mode="shared")
            waiting = asyncio.ensure_future(common.acquire_lock("own/of-session"))
            gone = asyncio.ensure_future(common.acquire_lock("own/of-session"))
            await until(lambda: client.turns.waiting("own/of-session") == 2, "two who wait")
            gone.cancel()
            await held.release()
            await (await waiting).release()
            assert not client.turns.waiting("own/of-session")

    run(scenario)


def test_readers_of_one_session_share_and_its_end_lets_others_in(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            session, other = await client.open_session(), await client.open_session()
            async with session.lock("own/read", mode="shared"), session.lock("own/read", mode="shared", wait=0):
                pass
            await session.acquire_lock("own/ends")
            waiting = asyncio.ensure_future(other.acquire_lock("own/ends"))
            await until(lambda: client.turns.waiting("own/ends") == 1, "the other to wait")
            await session.close()
            await waiting
            await other.close()

    run(scenario)


# --- one object, several blocks -------------------------------------------------------------------------------------


def test_a_block_is_kept_when_another_of_the_same_object_ends(endpoints: list[str]) -> None:
    ttl = 1.5

    async def scenario() -> None:
        async with Client(endpoints) as client:
            lock, first_is_over = client.lock("own/object", ttl, mode="shared"), asyncio.Event()
            second_has_begun = asyncio.Event()

            async def first() -> None:
                async with lock:
                    await second_has_begun.wait()
                first_is_over.set()

            async def second() -> None:
                async with lock as held:
                    second_has_begun.set()
                    await first_is_over.wait()
                    held.check()
                    then = clock.now() + 2 * ttl
                    await until(lambda: clock.now() > then, "two lease times")
                    held.check()

            await asyncio.gather(first(), second())
            assert (await client.call("GET", "/locks", query={"prefix": "own/object"}))["locks"] == []

    run(scenario)


def test_blocks_inside_each_other_end_in_their_order(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            lock = client.lock("own/nested", mode="shared")
            async with lock as outer:
                async with lock as inner:
                    assert outer.holder != inner.holder
                assert (outer.state, inner.state) == ("HELD", "RELEASED")
            assert outer.state == "RELEASED"

    run(scenario)


def test_a_client_is_one_party_at_a_barrier(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client:
            barrier = client.barrier("own/barrier", 2)
            waiting = asyncio.ensure_future(barrier.wait())
            await until(lambda: len(client.leases) == 1, "its arrival")
            for party in (barrier, client.barrier("own/barrier", 2)):
                with pytest.raises(Invalid, match="a client of its own"):
                    await party.wait()
            waiting.cancel()
            await asyncio.wait({waiting})
            async with client.barrier("own/barrier", 1):
                pass

    run(scenario)


# --- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [False, True], ids=["an object each", "one object"])
def test_threads_of_one_client_are_never_inside_together(endpoints: list[str], shares: bool) -> None:
    kinds: dict[str, Callable[[SyncClient], AbstractContextManager[object]]] = {
        "lock": lambda client: client.lock("own/threads"),
        "election": lambda client: client.election("own/election-t"),
        "semaphore": lambda client: client.semaphore("own/semaphore-t", 1),
    }
    with SyncClient(endpoints) as client:
        for name, make in kinds.items():
            one = make(client)
            room = crowd_of_threads(client, lambda make=make, one=one: one if shares else make(client))
            assert room.most == 1, name
        with client.session() as session:
            assert crowd_of_threads(client, lambda: session.lock("own/session-t")).most == 1


def test_each_thread_leaves_what_it_entered(endpoints: list[str]) -> None:
    with SyncClient(endpoints) as client:
        semaphore = client.semaphore("own/lifo", 2)
        inside, first_is_over = threading.Event(), threading.Event()
        kept: list[str] = []

        def second() -> None:
            with semaphore as held:
                inside.set()
                first_is_over.wait(90)
                kept.append(held.state)

        with semaphore as held:
            thread = threading.Thread(target=second)
            thread.start()
            assert inside.wait(90)
        assert held.state == "RELEASED"
        first_is_over.set()
        thread.join(90)
        assert kept == ["HELD"]
        wait_until(lambda: not client.call("GET", "/locks", query={"prefix": "own/lifo"})["locks"], 90, "both gone")


# --- asked for: entered again ---------------------------------------------------------------------------------------


def test_only_who_asks_for_it_enters_again(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints, client_id="fixed") as client, Client(endpoints, client_id="fixed") as restarted:
            async with client.lock("own/again", reentrant=True) as held:
                assert held.holder == "fixed"
                async with client.lock("own/again", wait=0, reentrant=True) as again:
                    assert again.token == held.token
                async with restarted.lock("own/again", wait=0, reentrant=True) as again:
                    assert again.token == held.token
                with pytest.raises(LockBusy):
                    await restarted.lock("own/again", wait=0).acquire()
                with pytest.raises(Conflict) as refused:
                    await client.lock("own/again", mode="shared", reentrant=True).acquire()
                assert refused.value.code == "mode_mismatch"
            async with client.session() as session, session.lock("own/again", wait=0):
                await session.acquire_lock("own/again", wait=0, reentrant=True)

    run(scenario)


# --- the name of a hold ---------------------------------------------------------------------------------------------


def test_names_of_holds_are_new_in_every_process_and_give_their_client() -> None:
    one, other = HoldNames("me/7"), HoldNames("me/7")
    names = [one.new(), one.new(), other.new()]
    assert len(set(names)) == 3 and {client_of(name) for name in names} == {"me/7"}
    for plain in ("me", "me/7", "me/hold-1", "me/hold-12345678", "me/hold-1234567g-1"):
        assert client_of(plain) == plain


def test_a_name_without_room_for_a_hold_s_is_refused_unless_it_is_used_as_it_is(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints, client_id="x" * 220) as client, client.lock("own/long", wait=0) as held:
            assert len(held.holder) <= MAX_NAME == MAX_NAME_CHARACTERS
        async with Client(endpoints, client_id="x" * 250) as client:
            with pytest.raises(Invalid, match="reentrant=True"):
                await client.lock("own/too-long").acquire()
            async with client.lock("own/too-long", reentrant=True), client.session() as session:
                await session.acquire_lock("own/of-long")

    run(scenario)


def test_a_token_bound_to_a_client_s_name_covers_its_holds() -> None:
    token = AccessToken("t", b"", "billing", (), True, 0)
    assert token.owns(HoldNames("billing").new()) and token.owns(HoldNames("billing/7").new())
    assert not token.owns(HoldNames("billing-2").new()) and not token.owns(HoldNames("bill").new())
