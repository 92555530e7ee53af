"""Locks: the source contract (seed 001), queues, re-entrancy, modes, several keys, delay, break, fencing."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.levels import ENDED_FOR_GOOD, LEVEL
from coordinator.machine.limits import LISTED_WAITERS, MAX_REVISION
from tests.machine.driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_the_contract_of_the_source(driver: Driver) -> None:
    driver.now_ms = 234
    held = driver.lock("inventory_item_98210", "worker_02", 10_000)
    assert held == r.LockGranted("inventory_item_98210", "worker_02", 1, held.lease_id, 1, 10_000, 10_234)
    busy = driver.lock("inventory_item_98210", "worker_03")
    assert busy == r.LockBusy("inventory_item_98210", "worker_03", "worker_02", 0)
    driver.now_ms = 10_000
    renewed = driver.do(c.RenewLock("inventory_item_98210", "worker_02", 1, 5_000))
    assert renewed == r.LockRenewed(5_000, 15_000)
    assert driver.unlock(held) == r.LockReleased(0)
    assert driver.machine.lock("default", "inventory_item_98210") is None, "nothing is kept of a free key"


def test_the_zombie_of_the_source(driver: Driver) -> None:
    """T1–T6: A pauses past its lease, B gets the lock with a greater token, A's token is refused everywhere."""
    a = driver.lock(client="A", lease_ms=1_000)
    driver.now_ms = 1_000
    b = driver.lock(client="B", lease_ms=1_000)
    assert isinstance(b, r.LockGranted) and b.fencing_token > a.fencing_token
    assert driver.code(c.RenewLock("k", "A", a.fencing_token, 1_000)) == "not_holder"
    assert driver.code(c.ReleaseLock("k", "A", a.fencing_token)) == "not_holder"
    check = driver.machine.fencing_check
    assert (check("default", "k", a.fencing_token).current, check("default", "k", b.fencing_token).current) == (
        False,
        True,
    )
    assert check("default", "k", a.fencing_token).newest_token == b.fencing_token


def test_an_expired_hold_is_not_renewed_even_if_nobody_came(driver: Driver) -> None:
    held = driver.lock(lease_ms=1_000)
    driver.now_ms = 1_000
    assert driver.code(c.RenewLock("k", "a", held.fencing_token, 1_000)) == "not_holder"


def test_waiters_are_granted_in_the_order_they_came(driver: Driver) -> None:
    held = driver.lock(client="first")
    names = [f"w{number}" for number in range(200)]
    waiting = {name: driver.lock(client=name, block_ms=60_000) for name in names}
    assert [waiting[name].position for name in names] == list(range(200))
    assert driver.queue() == names
    tokens = [held.fencing_token]
    for name in names:
        driver.unlock(held)
        (granted,) = [event for event in driver.events() if event.kind == "lock_granted"]
        assert (granted.owner, granted.waiter_id) == (name, waiting[name].waiter_id)
        tokens.append(granted.fencing_token)
        held = r.LockGranted("k", name, granted.fencing_token, granted.number, 1, 0, 0)
    assert tokens == sorted(set(tokens))


def test_a_newcomer_does_not_overtake_waiters(driver: Driver) -> None:
    driver.lock(client="a", mode="shared")
    driver.lock(client="writer", block_ms=60_000)
    assert isinstance(driver.lock(client="reader", mode="shared"), r.LockBusy)


@pytest.mark.parametrize("gone", ["deadline", "session", "deleted", "cancelled"])
def test_a_waiter_that_is_gone_is_never_granted(driver: Driver, gone: str) -> None:
    """etcd#11456, #9921, #19597, redisson#3730."""
    held = driver.lock(client="a", lease_ms=100_000)
    session = driver.session("b", 1_000)
    waiting = driver.lock(
        client="b", block_ms=900 if gone == "deadline" else 90_000, session_id=session, request_id=b"once"
    )
    driver.lock(client="c", block_ms=90_000)
    match gone:
        case "deadline":
            driver.now_ms = 900
        case "session":
            driver.now_ms = 1_000
        case "deleted":
            driver.do(c.DeleteSession(session))
        case _:
            driver.do(c.CancelWaiter(waiting.waiter_id))
    driver.unlock(held)
    assert driver.holders() == ["c"]
    assert not driver.machine.is_waiting(waiting.waiter_id)
    told = driver.machine.outcome("default", b"once")
    assert told is None if gone == "cancelled" else isinstance(told, r.LockBusy)
    assert driver.code(c.CancelWaiter(waiting.waiter_id)) == "unknown_waiter"


def test_a_cancelled_wait_asked_for_again_begins_anew(driver: Driver) -> None:
    """A client whose connection broke and who retries under the same id waits; it is not told of the wait it left."""
    held = driver.lock(client="a")
    first = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    assert driver.do(c.CancelWaiter(first.waiter_id, b"id", driver.index)) == r.WaitCancelled()
    driver.lock(client="c", block_ms=60_000)
    again = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    assert isinstance(again, r.LockWaiting) and again.waiter_id != first.waiter_id
    assert driver.queue() == ["c", "b"], "at the end of the queue: it had left"
    driver.unlock(held)
    assert driver.holders() == ["c"]


def test_who_asked_again_in_time_keeps_its_place(driver: Driver) -> None:
    """The retry is on another node, and in the log before the first node's cancel."""
    driver.lock(client="a")
    first = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    asked = driver.index
    driver.lock(client="c", block_ms=60_000)
    assert driver.lock(client="b", block_ms=60_000, request_id=b"id") == first
    assert driver.code(c.CancelWaiter(first.waiter_id, b"id", asked)) == "asked_again"
    assert driver.queue() == ["b", "c"]


@pytest.mark.parametrize("asked_again", [False, True])
def test_a_cancel_that_comes_after_the_grant(driver: Driver, asked_again: bool) -> None:
    """Nobody took the grant: it is given back. Somebody asked again and was told of it: it is theirs."""
    held = driver.lock(client="a")
    waiting = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    asked = driver.index
    driver.unlock(held)
    cancel = c.CancelWaiter(waiting.waiter_id, b"id", asked)
    if asked_again:
        granted = driver.lock(client="b", block_ms=60_000, request_id=b"id")
        assert isinstance(granted, r.LockGranted)
        assert driver.code(cancel) == "asked_again"
        assert driver.holders() == ["b"]
    else:
        assert driver.do(cancel) == r.WaitCancelled()
        assert driver.holders() == []
        assert driver.machine.outcome("default", b"id") is None
        assert driver.code(cancel) == "unknown_waiter"
        anew = driver.lock(client="b", block_ms=60_000, request_id=b"id")
        assert isinstance(anew, r.LockGranted) and anew.fencing_token == held.fencing_token + 2, "after one taken back"


@pytest.mark.parametrize("level", [ENDED_FOR_GOOD - 1, LEVEL])
@pytest.mark.parametrize("granted", [False, True])
def test_a_copy_of_what_was_cancelled_for_good(driver: Driver, granted: bool, level: int) -> None:
    """Nobody would take what it got: it is answered that it was cancelled."""
    driver.do(c.RaiseLevel(level))
    held = driver.lock(client="a")
    waiting = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    if granted:
        driver.unlock(held)
    assert driver.do(c.CancelWaiter(waiting.waiter_id, b"id", MAX_REVISION)) == r.WaitCancelled()
    copy = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    if level < ENDED_FOR_GOOD:
        assert isinstance(copy, r.LockGranted if granted else r.LockWaiting), "the release before is as it was"
    else:
        assert copy == r.WaitCancelled()
        assert driver.queue() == [] and driver.holders() == ([] if granted else ["a"])


def test_several_keys_granted_to_nobody_are_given_back(driver: Driver) -> None:
    held = driver.lock("k2", "a")
    ask = c.AcquireLocks(("k1", "k2"), "b", 10_000, 60_000)
    waiting = driver.do(ask, request_id=b"id")
    asked = driver.index
    driver.unlock(held)
    assert driver.holders("k1") == driver.holders("k2") == ["b"]
    driver.do(c.CancelWaiter(waiting.waiter_id, b"id", asked))
    assert driver.holders("k1") == driver.holders("k2") == []


def test_asking_again_with_the_same_id_tells_how_the_wait_ended(driver: Driver) -> None:
    held = driver.lock(client="a")
    waiting = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    assert driver.lock(client="b", block_ms=60_000, request_id=b"id") == waiting
    assert driver.queue() == ["b"]
    driver.unlock(held)
    (event,) = [event for event in driver.events() if event.kind == "lock_granted"]
    assert event.request_id == b"id"
    granted = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    assert isinstance(granted, r.LockGranted)
    assert (granted.fencing_token, granted.hold_count) == (event.fencing_token, 1)
    assert driver.machine.lock("default", "k").holders[0].hold_count == 1  # type: ignore[union-attr]


def test_reentrancy_counts(driver: Driver) -> None:
    first = driver.lock()
    second = driver.lock(lease_ms=60_000)
    assert (second.fencing_token, second.hold_count, second.ttl_ms) == (first.fencing_token, 2, 60_000)
    driver.lock(client="b", block_ms=60_000)
    assert driver.lock().hold_count == 3, "the holder enters past waiters, else it would wait for itself"
    assert [driver.unlock(first).hold_count for _ in range(3)] == [2, 1, 0]
    assert driver.holders() == ["b"]


@pytest.mark.parametrize(
    ("held", "asked", "code", "field"),
    [
        ({"mode": "shared"}, {}, "mode_mismatch", "mode"),
        ({}, {"mode": "shared"}, "mode_mismatch", "mode"),
        ({"permits": 3}, {}, "permits_mismatch", "permits"),
        ({}, {"permits": 3}, "permits_mismatch", "permits"),
        ({"permits": 2}, {"mode": "shared"}, "mode_mismatch", "mode"),
    ],
)
def test_entering_again_in_another_way_is_refused(
    driver: Driver, held: dict[str, Any], asked: dict[str, Any], code: str, field: str
) -> None:
    """To go on as if nothing had been asked would leave the client with another lock than it thinks it has."""
    driver.lock(**held)
    for block_ms in (0, 1_000):
        denied = driver.lock(block_ms=block_ms, **asked)
        assert (denied.code, denied.details["field"]) == (code, field)
        assert denied.details["held"] == held.get(field, {"mode": "exclusive", "permits": 1}[field])
    assert driver.code(c.AcquireLocks(("k", "other"), "a", 100, **asked)) == code
    assert driver.lock(**held).hold_count == 2, "the same way it may"


def test_readers_share_and_writers_do_not(driver: Driver) -> None:
    readers = [driver.lock(client=name, mode="shared") for name in "abc"]
    assert len({reader.fencing_token for reader in readers}) == 3
    driver.lock(client="w", block_ms=60_000)
    for name in "xy":
        driver.lock(client=name, mode="shared", block_ms=60_000)
    assert driver.code(c.AcquireLock("k", "a", 100)) == "mode_mismatch"
    for reader in readers:
        driver.unlock(reader)
    assert driver.holders() == ["w"]
    writer = driver.machine.lock("default", "k").holders[0]  # type: ignore[union-attr]
    driver.do(c.ReleaseLock("k", "w", writer.fencing_token))
    assert driver.holders() == ["x", "y"], "all leading readers at once"


def test_a_semaphore_admits_as_many_as_it_has_permits(driver: Driver) -> None:
    held = [driver.lock(client=name, permits=3) for name in "abc"]
    assert all(isinstance(grant, r.LockGranted) for grant in held)
    assert isinstance(driver.lock(client="d", permits=3), r.LockBusy)
    driver.lock(client="d", permits=3, block_ms=60_000)
    driver.unlock(held[1])
    assert driver.holders() == ["a", "c", "d"]
    assert isinstance(driver.lock(client="e", permits=5), r.LockBusy), "another number of permits is another lock"


def test_several_keys_or_none(driver: Driver) -> None:
    blocker = driver.lock("k2", "b")
    assert driver.do(c.AcquireLocks(("k1", "k2", "k3"), "a", 1_000)) == r.LockBusy("k2", "a", "b", 0)
    assert driver.holders("k1") == driver.holders("k3") == []
    driver.do(c.AcquireLocks(("k3", "k2", "k1"), "a", 1_000, 60_000))
    assert isinstance(driver.lock("k1", "c"), r.LockBusy), "first come, first served on every key"
    driver.unlock(blocker)
    assert [driver.holders(key) for key in ("k1", "k2", "k3")] == [["a"]] * 3
    tokens = [event.fencing_token for event in driver.events() if event.kind == "lock_granted"]
    assert len(tokens) == 3 and tokens == sorted(set(tokens))


def test_waiters_for_overlapping_keys_do_not_deadlock(driver: Driver) -> None:
    gate = driver.lock("b", "gate")
    for name, keys in (("x", ("a", "b")), ("y", ("b", "a")), ("z", ("a", "b", "c"))):
        driver.do(c.AcquireLocks(keys, name, 1_000, 60_000))
    driver.unlock(gate)
    for name in "xyz":
        assert driver.holders("a") == driver.holders("b") == [name]
        for key in ("a", "b", "c") if name == "z" else ("a", "b"):
            token = driver.machine.lock("default", key).holders[0].fencing_token  # type: ignore[union-attr]
            driver.do(c.ReleaseLock(key, name, token))
    assert driver.machine.locks("default", "", 10) == []


def test_holding_one_key_and_waiting_for_another_is_answered_at_once(driver: Driver) -> None:
    driver.lock("k1", "a")
    driver.lock("k2", "b")
    assert isinstance(driver.do(c.AcquireLocks(("k1", "k2"), "a", 1_000, 60_000)), r.LockBusy)
    assert driver.queue("k2") == []


def test_the_delay_follows_an_expiry_but_not_a_release(driver: Driver) -> None:
    driver.lock(lease_ms=1_000, lock_delay_ms=5_000)
    driver.lock(client="b", block_ms=60_000)
    driver.pass_time(1_200)
    assert driver.holders() == [] and driver.queue() == ["b"]
    driver.pass_time(4_799)
    assert driver.holders() == []
    driver.pass_time(1)
    assert driver.holders() == ["b"], "exactly at its end, from the moment of the expiry"
    held = driver.lock("other", lock_delay_ms=5_000)
    driver.unlock(held)
    assert isinstance(driver.lock("other", "b"), r.LockGranted)


def test_the_delay_of_one_key_holds_for_who_waits_for_several(driver: Driver) -> None:
    """The hold is over but not swept yet when another key's queue moves on: it is no holder to join, and delays."""
    driver.lock("k1", "reader", 1_000, mode="shared", lock_delay_ms=5_000)
    driver.do(c.AcquireLocks(("k2", "k1"), "writer", 1_000, 900))
    driver.do(c.AcquireLocks(("k1", "k2"), "other", 60_000, 60_000, "shared"))
    driver.pass_time(1_100)
    assert driver.holders("k1") == driver.holders("k2") == []
    driver.pass_time(4_899)
    assert driver.holders("k1") == []
    driver.pass_time(1)
    assert driver.holders("k1") == driver.holders("k2") == ["other"]


def test_a_break_is_a_third_event_and_the_holder_is_refused(driver: Driver) -> None:
    held = driver.lock()
    driver.lock(client="b", block_ms=60_000)
    assert driver.do(c.BreakLock("k")) == r.LockBroken(1)
    assert driver.kinds() == ["lock_broken", "lock_granted"]
    assert driver.holders() == ["b"]
    assert driver.code(c.RenewLock("k", "a", held.fencing_token, 1_000)) == "not_holder"
    assert driver.code(c.BreakLock("nobody's")) == "unknown_lock"


def test_tokens_grow_over_delete_and_re_create(driver: Driver) -> None:
    tokens = []
    for turn in range(20):
        held = driver.lock(f"k{turn % 3}")
        tokens.append(held.fencing_token)
        tokens.append(driver.lease(f"r{turn % 2}", client=f"c{turn}").fencing_token)
        driver.unlock(held)
        driver.pass_time(50_000)
    assert tokens == sorted(set(tokens))
    assert driver.machine.counts().locks == 0 and driver.machine.state.names.live <= 4, "nothing is left of any key"


def test_an_unknown_key_has_no_current_token(driver: Driver) -> None:
    held = driver.lock()
    driver.unlock(held)
    answer = driver.machine.fencing_check("default", "k", held.fencing_token)
    assert (answer.current, answer.newest_token) == (False, None)


def test_a_shared_token_is_current_while_its_hold_lives(driver: Driver) -> None:
    first, second = (driver.lock(client=name, mode="shared") for name in "ab")
    for grant in (first, second):
        assert driver.machine.fencing_check("default", "k", grant.fencing_token).current
    driver.unlock(first)
    assert not driver.machine.fencing_check("default", "k", first.fencing_token).current
    late = driver.machine.fencing_check("default", "k", second.fencing_token, now_ms=10_000)
    assert late.current and late.overdue, "whether it is over is for the log to say"
    driver.pass_time(10_000)
    assert not driver.machine.fencing_check("default", "k", second.fencing_token).current


def test_a_session_keeps_a_lock_and_only_it(driver: Driver) -> None:
    session = driver.session(ttl_ms=1_000)
    held = driver.lock(lease_ms=60_000, session_id=session)
    assert held.ttl_ms == 1_000, "told as long as it is certain"
    assert driver.code(c.RenewLock("k", "a", held.fencing_token, 1_000)) == "session_owned"
    assert driver.code(c.AcquireLock("k", "a", 1_000)) == "session_mismatch"
    driver.now_ms = 1_000
    assert isinstance(driver.lock(client="b"), r.LockGranted)


def test_a_herd_of_waiters_and_one_release(driver: Driver) -> None:
    from coordinator.machine.codec import encode_command

    held = driver.lock()
    commands = [encode_command(c.AcquireLock("k", f"w{n}", 1_000, 60_000, "shared")) for n in range(2_000)]
    driver.machine.apply(driver.index + 1, 0, commands)
    driver.index += 1
    driver.unlock(held)
    assert driver.holders() == [f"w{n}" for n in range(2_000)]


def test_locks_are_listed_in_the_order_of_their_keys_a_page_at_a_time(driver: Driver) -> None:
    keys = sorted(f"{first}/{second}" for first in "abc" for second in range(40))
    for key in reversed(keys):
        driver.lock(key)
    driver.unlock(driver.lock("b/7x"))
    machine = driver.machine
    for prefix in ("", "b/", "b/1", "c", "nobody's"):
        found, after = list[str](), ""
        while page := machine.locks("default", prefix, 7, after):
            found += [lock.lock_key for lock in page]
            after = found[-1]
        assert found == [key for key in keys if key.startswith(prefix)]
    assert [lock.lock_key for lock in machine.locks("default", "b/", 2, "a/9")] == ["b/0", "b/1"]
    assert machine.locks("default", "a", 9, "b") == []


def test_of_a_long_queue_only_its_head_is_listed(driver: Driver) -> None:
    driver.lock("k", "holder")
    for number in range(2 * LISTED_WAITERS):
        driver.lock("k", f"w{number:03d}", block_ms=1_000)
    (listed,) = driver.machine.locks("default", "", 9)
    asked = driver.machine.lock("default", "k", waiters=3)
    whole = driver.machine.lock("default", "k")
    assert asked is not None and whole is not None
    assert [len(lock.waiters) for lock in (listed, asked, whole)] == [LISTED_WAITERS, 3, 2 * LISTED_WAITERS]
    assert {lock.queue_length for lock in (listed, asked, whole)} == {2 * LISTED_WAITERS}
    assert [waiter.client_id for waiter in asked.waiters] == ["w000", "w001", "w002"]
