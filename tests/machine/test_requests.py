"""Request ids: once, the same answer, bounded, and remembered by a restored replica."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from coordinator.http.operations import TIMEOUT_MS_MAX
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_result
from coordinator.machine.levels import REFUSALS
from coordinator.machine.limits import REFUSAL_MEMORY_MS, REQUEST_MEMORY_MS
from coordinator.machine.machine import Machine
from coordinator.machine.requests import Requests, key_of, size_of
from tests.machine.driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_the_same_id_applies_once_and_answers_the_same_bytes(driver: Driver) -> None:
    command = c.CreateSession("a", 60_000)
    first = driver.do(command, request_id=b"id")
    driver.now_ms += 500
    assert encode_result(driver.do(command, request_id=b"id")) == encode_result(first)
    assert driver.machine.counts().sessions == 1
    assert driver.do(command, request_id=b"other") != first


def test_an_id_used_for_something_else_is_refused(driver: Driver) -> None:
    driver.do(c.CreateSession("a", 60_000), request_id=b"id")
    denied = driver.do(c.CreateSession("b", 60_000), request_id=b"id")
    assert isinstance(denied, r.Denied) and denied.code == "request_id_reused"


def test_a_refusal_stands_though_an_earlier_try_comes_later(driver: Driver) -> None:
    """The first try of a release that was told that there is nothing: it must not end the lease that came since."""
    driver.do(c.RaiseLevel(REFUSALS))
    release = c.ReleaseLease("r", "a")
    refused = driver.do(release, request_id=b"id")
    assert isinstance(refused, r.Denied)
    driver.lease()
    assert driver.do(release, request_id=b"id") == refused
    assert driver.machine.reference_count("default", "r") == 1
    assert isinstance(driver.do(release, request_id=b"another"), r.LeaseReleased)


def test_a_refusal_counts_for_all_that_it_says(driver: Driver) -> None:
    """The path of a cycle is up to a thousand long names: they are remembered, so they have room to need."""
    short = r.Denied("would_close_cycle", "no", {"path": ("a", "b"), "length": 1})
    long = r.Denied("would_close_cycle", "no", {"path": ("ä" * 255,) * 1_000, "length": 999})
    assert size_of(b"id", long) - size_of(b"id", short) > 1_000 * 2 * 255
    memory = Requests(max_bytes=1 << 20)
    for number in range(100):
        memory.remember(key_of(0, b"%d" % number), b"", long, 0, 0)
    assert 0 < len(memory.remembered) <= 2


def test_a_refusal_is_remembered_for_longer_than_a_try_may_be_under_way() -> None:
    assert REFUSAL_MEMORY_MS > TIMEOUT_MS_MAX


def test_what_is_refused_for_want_of_room_may_be_asked_for_again_under_its_id(driver: Driver) -> None:
    driver.do(c.RaiseLevel(REFUSALS))
    driver.do(c.PutNamespace(1, 1, 1, 1, 9_999))
    driver.lease("first")
    wanted = c.AcquireLease("second", "a", 1_000)
    refused = driver.do(wanted, request_id=b"id")
    assert isinstance(refused, r.Denied) and refused.code == "quota_exceeded"
    driver.do(c.ReleaseLease("first", "a"))
    assert isinstance(driver.do(wanted, request_id=b"id"), r.LeaseGranted)


def test_who_was_told_that_a_lock_is_busy_does_not_get_it_by_an_earlier_try_that_comes_later(driver: Driver) -> None:
    driver.do(c.RaiseLevel(REFUSALS))
    held = driver.lock(client="b")
    busy = driver.lock(request_id=b"id")
    assert isinstance(busy, r.LockBusy)
    driver.unlock(held)
    assert driver.lock(request_id=b"id") == busy
    assert driver.machine.lock("default", "k") is None
    assert isinstance(driver.lock(request_id=b"another"), r.LockGranted)


def test_that_a_lock_was_busy_is_restored_and_forgotten_in_time(driver: Driver) -> None:
    driver.do(c.RaiseLevel(REFUSALS))
    held = driver.lock(client="b", lease_ms=10 * REFUSAL_MEMORY_MS)
    busy = driver.lock(request_id=b"id")
    before = driver.machine.digest()
    driver.machine.restore(list(driver.machine.freeze().chunks()))
    assert driver.machine.digest() == before
    driver.unlock(held)
    driver.pass_time(REFUSAL_MEMORY_MS - 1)
    assert driver.lock(request_id=b"id") == busy
    driver.pass_time(1)
    assert isinstance(driver.lock(request_id=b"id"), r.LockGranted)
    assert driver.machine.counts().remembered_requests == 1


def test_below_its_level_nothing_is_remembered_of_it(driver: Driver) -> None:
    driver.do(c.RaiseLevel(REFUSALS - 1))
    held = driver.lock(client="b")
    assert isinstance(driver.lock(request_id=b"id"), r.LockBusy)
    driver.unlock(held)
    assert isinstance(driver.lock(request_id=b"id"), r.LockGranted)


def test_an_id_is_forgotten_after_its_time(driver: Driver) -> None:
    first = driver.do(c.CreateSession("a", 1_000), request_id=b"id")
    driver.pass_time(REQUEST_MEMORY_MS - 1)
    assert driver.machine.outcome("default", b"id") == first
    driver.pass_time(1)
    assert driver.machine.outcome("default", b"id") is None
    assert driver.machine.counts().remembered_requests == 0
    assert driver.do(c.CreateSession("a", 1_000), request_id=b"id") != first


def test_when_it_was_last_asked_is_remembered_and_restored(driver: Driver) -> None:
    driver.lock(client="a")
    waiting = driver.lock(client="b", block_ms=60_000, request_id=b"id")
    first = driver.index
    driver.lock(client="b", block_ms=60_000, request_id=b"id")
    other = Machine()
    other.restore(driver.machine.freeze().chunks())
    driver.machine = other
    assert driver.code(c.CancelWaiter(waiting.waiter_id, b"id", first)) == "asked_again"
    assert driver.do(c.CancelWaiter(waiting.waiter_id, b"id", first + 1)) == r.WaitCancelled()


def test_ids_of_two_namespaces_do_not_meet(driver: Driver) -> None:
    driver.do(c.PutNamespace(9, 9, 9, 9, 999), namespace="other")
    driver.do(c.CreateSession("a", 1_000), request_id=b"id")
    other = driver.do(c.CreateSession("b", 1_000), namespace="other", request_id=b"id")
    assert isinstance(other, r.SessionCreated)


def test_a_restored_replica_remembers(driver: Driver) -> None:
    first = driver.lock(request_id=b"id")
    other = Machine()
    other.restore(driver.machine.freeze().chunks())
    driver.machine = other
    assert driver.lock(request_id=b"id") == first


def test_the_oldest_go_first_when_there_are_too_many_or_too_large() -> None:
    requests = Requests(max_requests=3, max_bytes=10_000)
    for number in range(5):
        requests.remember(key_of(0, bytes([number])), b"", r.LockReleased(number), number, number)
    assert list(requests.remembered) == [key_of(0, bytes([number])) for number in (2, 3, 4)]
    requests.remember(key_of(0, b"big"), b"", r.LeasesGranted(bytes(9_700), 1, 1), 9, 9)
    assert list(requests.remembered) == [key_of(0, b"big")] or len(requests.remembered) == 2
    assert requests.size_bytes <= 10_000


def test_forgetting_the_oldest_costs_the_same_however_many_are_remembered() -> None:
    """At its limit every new id makes an old one go. Twice as many must not take four times as long."""

    def cost(many: int) -> float:
        requests = Requests(max_requests=many)
        for number in range(many):
            requests.remember(number.to_bytes(8, "big"), b"", r.LeaseReleased(0), 0, 1)
        began = time.process_time()
        for number in range(many, 2 * many):
            requests.remember(number.to_bytes(8, "big"), b"", r.LeaseReleased(0), 0, 1)
        return (time.process_time() - began) / many

    small = min(cost(2_000) for _ in range(3))
    assert min(cost(64_000) for _ in range(2)) < 5 * small


def test_an_id_asked_anew_takes_its_new_place() -> None:
    requests = Requests(max_requests=2)
    for key in (b"a", b"b", b"a", b"c"):
        requests.remember(key, b"", r.LeaseReleased(0), 0, 1)
    assert list(requests.remembered) == [b"a", b"c"]
    restored = Requests(max_requests=2)
    restored.restore(requests.remembered)
    for each in (requests, restored):
        each.remember(b"d", b"", r.LeaseReleased(0), 0, 1)
        assert list(each.remembered) == [b"c", b"d"]


def test_one_namespace_cannot_make_what_another_asked_be_forgotten() -> None:
    def filled(*, shares: bool) -> Requests:
        requests = Requests(max_requests=100, max_bytes=100_000)
        for number in range(10):
            requests.remember(key_of(7, bytes([number])), b"", r.LeaseReleased(0), 0, 1, shares=shares)
        for number in range(500):
            requests.remember(key_of(3, number.to_bytes(2, "big")), b"", r.LeaseReleased(0), 0, 1, shares=shares)
        for number in range(10):
            large = r.LeasesGranted(bytes(30_000), 1, 1)
            requests.remember(key_of(5, bytes([number])), b"", large, 0, 1, shares=shares)
        return requests

    fair = filled(shares=True)
    assert [key for key in fair.remembered if key[0] == 7] == [key_of(7, bytes([number])) for number in range(10)]
    assert len(fair.remembered) <= 100 and fair.size_bytes <= 100_000
    assert not [key for key in filled(shares=False).remembered if key[0] == 7]


def test_whom_it_hits_does_not_depend_on_what_is_long_forgotten() -> None:
    lived, restored = Requests(max_requests=10), Requests(max_requests=10)
    for number in range(300):
        namespace = number * 7 % 3 + 1
        lived.remember(key_of(namespace, bytes([number % 250])), b"", r.LeaseReleased(0), number, 1, shares=True)
        if number % 11 == 0:
            lived.forget(key_of(number % 3 + 1, bytes([(number - 1) % 250])))
    restored.restore(lived.remembered)
    for number in range(60):
        for each in (lived, restored):
            key = key_of(number * 5 % 4 + 1, bytes([number]))
            each.remember(key, b"", r.LeaseReleased(0), 1_000, 1, shares=number % 9 > 0)
        assert list(lived.remembered) == list(restored.remembered)


@pytest.mark.parametrize("seed", range(6))
def test_the_oldest_of_the_largest_goes_first(seed: int) -> None:
    """Against a reckoning that counts everything anew each time, for numbers and for bytes."""
    chance = random.Random(seed)
    requests, plain = Requests(max_requests=60, max_bytes=20_000), dict[bytes, int]()
    for number in range(1_500):
        key = key_of(chance.choice((0, 1, 2, 63, 64, 700, 4_095)), bytes([chance.randrange(40)]))
        result = r.LeasesGranted(bytes(chance.choice((8, 8, 200, 3_000))), 1, 1)
        requests.remember(key, b"", result, number, 1, shares=True)
        plain.pop(key, None)
        plain[key] = size_of(key, result)
        while len(plain) > 60 or sum(plain.values()) > 20_000:
            measure = Counter[bytes]()
            for each, size in plain.items():
                measure[each[:2]] += 1 if len(plain) > 60 else size
            most = min(measure, key=lambda space: (-measure[space], int.from_bytes(space, "little")))
            del plain[next(each for each in plain if each[:2] == most)]
        assert list(requests.remembered) == list(plain) and requests.size_bytes == sum(plain.values())


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_forgotten_before_its_turn_needs_no_room_and_changes_no_order(
    monkeypatch: pytest.MonkeyPatch, seed: int, shares: bool
) -> None:
    """Against one that drops nothing of what it skips, and one that was restored."""
    chance = random.Random(seed)
    requests, plain, restored = (Requests(max_requests=150, memory_ms=900) for _ in range(3))
    dropped = 0
    for number in range(4_000):
        key = key_of(chance.choice((0, 1, 1, 1, 7)), chance.randrange(200).to_bytes(2, "big"))
        gone = chance.random() < 0.5
        for each in (requests, restored, plain):
            monkeypatch.setattr("coordinator.machine.requests.STALE_ALLOWANCE", 1 << 40 if each is plain else 2)
            each.remember(key, b"", r.LeaseReleased(0), number, 1, shares=shares)
            each.forget_old(number)
            if gone:
                each.forget(key)
        if chance.random() < 0.05:
            restored = Requests(max_requests=150, memory_ms=900)
            restored.restore(requests.remembered)
        assert list(requests.remembered) == list(plain.remembered) == list(restored.remembered)
        dropped = max(dropped, *(len(plain._ages[each]) - len(requests._ages.get(each, ())) for each in plain._ages))
    assert dropped > 20


def test_waits_that_are_cancelled_leave_nothing_behind_an_older_request(driver: Driver) -> None:
    driver.do(c.CreateSession("a", 60_000), request_id=b"older")
    driver.lock(client="holder", lease_ms=600_000)
    for number in range(500):
        waits = driver.lock(client="w", block_ms=60_000, request_id=b"%d" % number)
        assert isinstance(driver.do(c.CancelWaiter(waits.waiter_id, b"%d" % number)), r.WaitCancelled)
    requests = driver.machine.state.requests
    assert list(requests.remembered) == [key_of(0, b"older")]
    assert sum(map(len, requests._ages.values())) < 100
