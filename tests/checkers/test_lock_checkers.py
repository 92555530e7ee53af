"""The checkers of locks, leases, sessions and clean-ups: each is shown what it must find, and what it must not."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.machine import commands as c
from coordinator.machine import locks
from coordinator.machine.codec import encode_command
from coordinator.machine.events import Event
from coordinator.machine.state import State
from tests.checkers.bounded import OWN_COMMANDS, OWN_DESCRIPTORS, PAGE_BYTES, Bounded
from tests.checkers.exclusive_holds import ExclusiveHolds
from tests.checkers.expired_goes import LOSES_MUCH, LOSSY_RATE, SETTLED_S, AvailableTime, ExpiredGoes, Links
from tests.checkers.fencing import Fencing
from tests.checkers.free_lock_granted import MOST_ENTRIES, FreeLockGranted
from tests.checkers.grant_order import GrantOrder
from tests.checkers.holds_fit import HoldsFit
from tests.checkers.no_early_expiry import NoEarlyExpiry
from tests.checkers.one_effect import OneEffect
from tests.checkers.own_revisions import OwnRevisions
from tests.checkers.refusals import LOOK_EVERY, WatchedRefusals
from tests.checkers.refused_in_time import RefusedInTime
from tests.checkers.token_order import TokenOrder
from tests.checkers.violation import Violation
from tests.machine.driver import Driver


def event(kind: Any, key: str = "k", owner: str = "a", **fields: Any) -> Event:
    return Event(fields.pop("revision", 1), kind, "default", key, owner, **fields)


def granted(owner: str, token: int, waiter_id: int = 0, key: str = "k") -> Event:
    return event("lock_granted", key, owner, number=token, fencing_token=token, waiter_id=waiter_id)


def released(owner: str, token: int) -> Event:
    return event("lock_released", owner=owner, number=token, fencing_token=token)


def test_every_invariant_has_a_checker() -> None:
    """Its docstring names it."""
    docstrings = [path.read_text().split('"""')[1] for path in Path(__file__).parent.glob("[a-z]*.py")]
    named = {int(number) for text in docstrings for number in re.findall(r"\bI(\d+)\b", text)}
    assert named == set(range(1, 19))


def test_a_guard_takes_no_older_token_and_no_token_from_two() -> None:
    guard = Fencing()
    for token, client in ((1, "a"), (2, "b"), (2, "b")):
        guard.accepted("k", token, client)
    with pytest.raises(Violation, match="a wrote to k under 1, after one under 2"):
        guard.accepted("k", 1, "a")
    with pytest.raises(Violation, match="both write to k under token 2"):
        guard.accepted("k", 2, "a")


def test_two_who_believe_at_one_time() -> None:
    guard = Fencing()
    guard.believe("k", "a", 0.0, 2.0)
    guard.let_go("k", "a")
    guard.believe("k", "b", 1.0, 3.0)
    guard.believe("k", "b", 2.0, 4.0)
    guard.believe("k", "a", 4.0, 5.0)
    with pytest.raises(Violation, match="a has it until 5"):
        guard.believe("k", "b", 4.5, 6.0)


def test_tokens_out_of_order() -> None:
    checker = TokenOrder()
    for each in (granted("a", 3), granted("a", 3), released("a", 3), granted("b", 5), granted("c", 1, key="other")):
        checker.event(each)
    assert checker.grants == 3
    with pytest.raises(Violation, match="granted under 4"):
        checker.event(granted("a", 4))


def test_holds_that_overlap() -> None:
    checker = ExclusiveHolds()
    for each in (granted("a", 1), granted("a", 1), released("a", 1), granted("b", 2)):
        checker.event(each)
    with pytest.raises(Violation, match="b has k since 1, and c got it"):
        checker.event(granted("c", 3))
    with pytest.raises(Violation, match="nobody had it"):
        checker.event(released("a", 1))


def test_an_expiry_before_its_time() -> None:
    checker = NoEarlyExpiry(drift=0.01)
    checker.acknowledged("lock", 1, sent_s=10.0, ttl_s=1.01)
    checker.acknowledged("lock", 1, sent_s=9.0, ttl_s=1.01)
    checker.acknowledged("session", 7, sent_s=20.0, ttl_s=1.01)
    checker.acknowledged("lock", 2, sent_s=0.0, ttl_s=1.0, session=7)
    checker.event(event("lock_expired", number=1), 11.0)
    with pytest.raises(Violation, match=r"promised it until 11\.0"):
        checker.event(event("lock_expired", number=1), 10.99)
    with pytest.raises(Violation, match=r"promised it until 21\.0"):
        checker.event(event("lock_expired", number=2), 20.9)
    assert checker.expiries == 3


def test_what_nobody_renews_and_still_stands() -> None:
    checker = ExpiredGoes()
    for each in (
        granted("a", 1),
        event("wait_begun", waiter_id=4),
        event("lock_expired", number=1),
        granted("b", 2, waiter_id=4),
        released("b", 2),
    ):
        checker.event(each)
    checker.check()
    checker.event(event("session_created", number=3))
    with pytest.raises(Violation, match="session_created k of a"):
        checker.check()


def standing() -> ExpiredGoes:
    """At 10 s of available time: a lock for 2 s, a lease for 4 s, a session for 6 s that owns a lock, a wait of 1 s."""
    checker = ExpiredGoes(drift=0.0, sweep_s=1.0)
    checker.command(c.AcquireLock("k", "a", 2_000), b"1", 10.0)
    checker.command(c.AcquireLease("r", "a", 4_000), b"2", 10.0)
    checker.command(c.CreateSession("s", 6_000), b"3", 10.0)
    checker.command(c.AcquireLock("in", "s", 100, session_id=7), b"4", 10.0)
    checker.command(c.AcquireLock("k", "w", 500, 1_000), b"5", 10.0)
    for each in (
        granted("a", 1),
        event("lease_acquired", "r", "a", number=2),
        event("session_created", "", "s", number=7),
        granted("s", 3, key="in"),
        event("wait_begun", "k", "w", waiter_id=9),
    ):
        checker.event(each, 10.0)
    return checker


def ended(*kinds: str) -> ExpiredGoes:
    numbers = {"lock_expired": 1, "lease_expired": 2, "session_expired": 7}
    checker = standing()
    for kind in kinds:
        key = "r" if kind == "lease_expired" else "k"
        checker.event(event(kind, key, number=numbers.get(kind, 0), waiter_id=9), 11.0)
    return checker


def test_each_thing_goes_within_its_own_time_and_a_sweep() -> None:
    """Of available time: in an outage, when that stands still, nothing has to go."""
    ended("wait_expired", "lock_expired", "lease_expired", "session_expired").check_now(12.0)
    standing().check_now(12.0)
    for gone, late_s, left in (
        ((), 12.1, "wait_begun k of w"),
        (("wait_expired",), 13.1, "lock_granted k of a"),
        (("wait_expired", "lock_expired"), 15.1, "lease_acquired r of a"),
        (("wait_expired", "lock_expired", "lease_expired"), 17.1, "session_created  of s"),
        (("wait_expired", "lock_expired", "lease_expired", "session_expired"), 12.1, "lock_granted in of s"),
    ):
        checker = ended(*gone)
        checker.check_now(late_s - 0.2)
        with pytest.raises(Violation, match=left):
            checker.check_now(late_s)


def test_a_renewal_in_the_log_counts_once_and_from_there() -> None:
    checker = ended("wait_expired")
    checker.command(c.RenewLock("k", "a", 1, 2_000), None, 11.5)
    checker.command(c.HeartbeatSession(7), None, 14.0)
    checker.command(c.RenewLease(2, "a", 4_000), b"6", 13.0)
    checker.command(c.RenewLease(2, "a", 4_000), b"6", 16.0)
    checker.check_now(14.4)
    with pytest.raises(Violation, match="lock_granted k of a"):
        checker.check_now(14.6)
    checker.event(event("lock_expired", number=1), 14.6)
    checker.check_now(17.9)
    with pytest.raises(Violation, match="lease_acquired r of a"):
        checker.check_now(18.1)


def leading(name: str, term: int, *, lease: bool = True, leads: bool = True, log: tuple[int, int] = (0, 0)) -> Any:
    return SimpleNamespace(
        options=SimpleNamespace(node_id=name),
        engine=SimpleNamespace(is_leader=leads, term=term),
        leadership=SimpleNamespace(lease_valid=lambda: lease),
        membership=SimpleNamespace(voters={"n1", "n2", "n3"}),
        journal=SimpleNamespace(first_index=log[0], last_index=log[1]),
    )


def following(name: str, last_index: int) -> Any:
    return leading(name, 1, lease=False, leads=False, log=(1, last_index))


def test_time_counts_while_one_leader_can_act() -> None:
    available = AvailableTime()
    for second in range(11):
        available.sample(float(second), [leading("n1", 1)])
    assert available.seconds == 10.0 - SETTLED_S
    for second in range(11, 20):
        available.sample(float(second), [leading("n1", 1, lease=False)])
    for second in range(20, 24):
        available.sample(float(second), [leading("n1", 1)], stopped=["n1"])
    assert available.seconds == 10.0 - SETTLED_S
    assert available.counts() == {
        "I5 ms counted": 9_500,
        "I5 ms while a leader settled": 500,
        "I5 ms without a leader": 9_000,
        "I5 ms with a leader that stands still": 4_000,
    }


def test_a_leader_settles_once_however_often_it_loses_its_lease() -> None:
    available = AvailableTime()
    for tenth in range(100):
        available.sample(tenth / 10, [leading("n1", 1, lease=tenth % 4 != 0)])
    assert available.counts()["I5 ms while a leader settled"] == 1_000 * SETTLED_S
    assert available.seconds == pytest.approx(5.0 - SETTLED_S), "two of four spans have the lease at both ends"
    for tenth in range(100, 103):
        available.sample(tenth / 10, [leading("n2", 2)])
    assert available.seconds == pytest.approx(5.0 - SETTLED_S), "another one settles anew"


def test_where_much_is_lost_a_second_counts_less() -> None:
    available = AvailableTime()
    for second in range(3):
        available.sample(float(second), [leading("n1", 1)])
    before_s = available.seconds
    available.sample(3.0, [leading("n1", 1)], links=Links(drop=LOSES_MUCH / 2))
    assert available.seconds == before_s + 1.0
    available.sample(4.0, [leading("n1", 1)], links=Links(drop=LOSES_MUCH))
    assert available.seconds == before_s + 1.0 + LOSSY_RATE


def counted_s(*followers: Any, stopped: tuple[str, ...] = (), **links: Any) -> float:
    """Of one second in which n1 leads with a log from 50 to 60."""
    available = AvailableTime()
    nodes = [leading("n1", 1, log=(50, 60)), *followers]
    for now_s in (0.0, SETTLED_S, 1.0, 2.0):
        before_s = available.seconds
        available.sample(now_s, nodes, stopped, Links(**links) if now_s == 2.0 else Links())
    return available.seconds - before_s


def test_time_does_not_count_while_a_majority_needs_a_snapshot_of_which_pieces_are_lost() -> None:
    old, near, deaf = following("n3", 48), following("n2", 49), {("n1", "n2")}
    assert counted_s(near, old, cut=deaf, gaps=True) == 0.0
    assert counted_s(old, gaps=True) == 0.0, "the other one is down"
    assert counted_s(near, old, stopped=("n2",), gaps=True) == 0.0
    assert counted_s(near, old, cut=deaf) == 1.0, "where nothing is lost it comes in time"
    assert counted_s(near, old, gaps=True) == 1.0, "there is a majority without it"
    assert counted_s(near, gaps=True) == 1.0, "its log goes on with the leader's"
    assert counted_s(old, cut={("n3", "n1")}, gaps=True) == 1.0, "a lease that will end is one for now"


def waiting(*waiters: int) -> GrantOrder:
    order = GrantOrder()
    for waiter in waiters:
        order.asked(b"%d" % waiter, 100, waiter)
        order.event(event("wait_begun", waiter_id=waiter, request_id=b"%d" % waiter), now_ms=1_000)
    return order


def test_a_waiter_that_overtakes() -> None:
    order = waiting(1, 2, 3)
    order.event(granted("a", 1, waiter_id=1), 1_050)
    order.event(event("wait_cancelled", waiter_id=2), 1_060)
    order.event(granted("a", 2, waiter_id=3), 1_070)
    assert order.handed_over == 2
    with pytest.raises(Violation, match="and 1 came before it"):
        waiting(1, 2).event(granted("a", 1, waiter_id=2), 1_050)
    order = GrantOrder()
    order.event(granted("a", 1), 1_000)
    order.event(event("wait_begun", waiter_id=1), 1_010)
    order.event(granted("a", 1), 1_020)
    with pytest.raises(Violation, match="b got k at 1 at once"):
        order.event(granted("b", 2), 1_030)


def test_a_wait_for_several_locks_is_in_the_queue_of_each() -> None:
    order = GrantOrder()
    order.asked(b"1", 100, None, ("k", "l"))
    order.event(event("wait_begun", waiter_id=1, request_id=b"1"), 1_000)
    with pytest.raises(Violation, match="b got l at 1 at once"):
        order.event(granted("b", 2, key="l"), 1_010)
    order.event(event("wait_expired", waiter_id=1, request_id=b"1"), 1_020)
    order.event(granted("b", 2, key="l"), 1_030)


def test_a_grant_to_one_whose_time_or_session_is_over() -> None:
    with pytest.raises(Violation, match="was over"):
        waiting(1).event(granted("a", 1, waiter_id=1), 1_100)
    order = waiting(1)
    order.event(event("session_expired", number=1), 1_010)
    with pytest.raises(Violation, match="was over"):
        order.event(granted("a", 1, waiter_id=1), 1_050)


def test_holds_that_do_not_fit_together() -> None:
    driver = Driver()
    holds = [driver.lock("k", client, 1_000, permits=2) for client in ("a", "b")]
    state, checker = driver.machine.state, HoldsFit()
    grants = [
        event("lock_granted", owner=hold.client_id, number=hold.lease_id, request_id=b"semaphore") for hold in holds
    ]
    checker.asked(b"semaphore", "exclusive", 2)
    checker.event(grants[0])
    assert checker.has(grants[0]) and not checker.has(grants[1])
    with pytest.raises(Violation, match="by the events"):
        checker.check(state)
    checker.event(grants[1])
    checker.check(state)
    assert checker.most == 2
    with pytest.raises(Violation, match="had it not"):
        checker.event(event("lock_expired", number=7, owner="c"))
    with pytest.raises(Violation, match="3 have k of 2 permits"):
        checker.event(event("lock_granted", owner="c", number=7, request_id=b"semaphore"))


@pytest.mark.parametrize("terms", [("shared", 1), ("exclusive", 3)])
def test_a_hold_on_other_terms_beside_one(terms: tuple[str, int]) -> None:
    """Also where the state has only the terms of the last one."""
    checker = HoldsFit()
    checker.asked(b"first", "exclusive", 2)
    checker.asked(b"second", *terms)
    checker.event(event("lock_granted", number=1, request_id=b"first"))
    with pytest.raises(Violation, match=r"b got k as .* beside"):
        checker.event(event("lock_granted", owner="b", number=2, request_id=b"second"))


def test_a_free_lock_that_somebody_waits_for() -> None:
    order, holds = waiting(1), ExclusiveHolds()
    checker = FreeLockGranted(holds, order)
    holds.event(granted("a", 1))
    checker.check(1_050)
    holds.event(released("a", 1))
    checker.check(1_100)
    with pytest.raises(Violation, match="k is free"):
        checker.check(1_099)


def test_a_free_lock_that_is_not_reached_for_long() -> None:
    """The one that is first in its queue is gone, and the entry has ended all that it may."""
    order, holds = waiting(1), ExclusiveHolds()
    checker = FreeLockGranted(holds, order)
    for _ in range(MOST_ENTRIES):
        checker.check(1_050, left=True)
    holds.event(granted("a", 1))
    checker.check(1_060)
    holds.event(released("a", 1))
    for _ in range(MOST_ENTRIES):
        checker.check(1_070, left=True)
    with pytest.raises(Violation, match="k is free"):
        checker.check(1_080, left=True)


def test_a_session_that_goes_back_in_time() -> None:
    checker = OwnRevisions()
    for client, revision in (("a", 3), ("a", 3), ("b", 1), ("a", 9)):
        checker.told(client, "read", revision)
    with pytest.raises(Violation, match="after 9 it was told 8"):
        checker.told("a", "read", 8)


def test_a_clean_up_done_twice_or_by_the_wrong_one() -> None:
    checker = OneEffect()
    checker.handed_out(1, 5)
    checker.acknowledged(1, 5, "ok")
    checker.acknowledged(1, 5, "unknown_reclaim")
    with pytest.raises(Violation, match="acknowledged twice"):
        checker.acknowledged(1, 5, "ok")
    checker.handed_out(2, 5)
    checker.handed_out(2, 6)
    with pytest.raises(Violation, match="under 5, and another had it under 6"):
        checker.acknowledged(2, 5, "ok")


def test_a_refusal_that_leaves_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [encode_command(c.ReleaseLock("k", "a", 1))] * LOOK_EVERY
    machine = WatchedRefusals()
    machine.apply(1, 0, refused)
    assert machine.refusals == 1
    hold = locks._hold

    def counted(state: State, namespace: Any, command: Any) -> Any:
        state.next_token()
        return hold(state, namespace, command)

    monkeypatch.setattr(locks, "_hold", counted)
    with pytest.raises(Violation, match="not_holder at 1 changed the state"):
        WatchedRefusals().apply(1, 0, refused)


def process(directory: Path, pages: int, descriptors: int) -> None:
    files = directory / "7" / "fd"
    files.mkdir(parents=True, exist_ok=True)
    for number in range(descriptors):
        (files / str(number)).touch()
    (directory / "7" / "statm").write_text(f"900 {pages} 5")


def test_a_process_over_its_caps(tmp_path: Path) -> None:
    process(tmp_path, pages=100, descriptors=1)
    Bounded().look("n1", 7, tmp_path)
    Bounded().look("n1", 8, tmp_path)
    with pytest.raises(Violation, match="resident bytes"):
        Bounded(rss_bytes=99 * PAGE_BYTES).look("n1", 7, tmp_path)
    with pytest.raises(Violation, match="descriptors"):
        Bounded(descriptors=0).look("n1", 7, tmp_path)


def test_a_process_that_grows(tmp_path: Path) -> None:
    """One that came in the place of another begins anew."""
    checker = Bounded(grown_bytes=50 * PAGE_BYTES)
    for pages in (100, 150, 120):
        process(tmp_path, pages, descriptors=1)
        checker.look("n1", 7, tmp_path)
    process(tmp_path, 151, descriptors=1)
    Bounded(grown_bytes=50 * PAGE_BYTES).look("n1", 7, tmp_path)
    with pytest.raises(Violation, match="more than at first"):
        checker.look("n1", 7, tmp_path)


def test_queues_and_connections_are_no_longer_than_the_clients_make_them(tmp_path: Path) -> None:
    checker = Bounded.of_clients(10)
    process(tmp_path, 100, descriptors=OWN_DESCRIPTORS + 20)
    checker.look("n1", 7, tmp_path)
    checker.queues("n1", {"queue_depth": OWN_COMMANDS + 50, "waiters": 10})
    for told in ({"queue_depth": OWN_COMMANDS + 51, "waiters": 0}, {"queue_depth": 0, "waiters": 1_000}):
        with pytest.raises(Violation, match=r"n1 has .* (commands in the queue|waiters)"):
            checker.queues("n1", told)
    process(tmp_path, 100, descriptors=OWN_DESCRIPTORS + 21)
    with pytest.raises(Violation, match="descriptors"):
        checker.look("n1", 7, tmp_path)


def test_a_request_that_is_neither_answered_nor_refused() -> None:
    stopped_until_s = {"n1": 0.0, "n2": 50.0}
    checker = RefusedInTime[str](5.0, lambda node, since_s: stopped_until_s[node] >= since_s)
    checker.ended("n1", 10.0, 14.9)
    checker.ended("n2", 49.0, 60.0)
    assert checker.slowest_s == pytest.approx(4.9)
    with pytest.raises(Violation, match=r"n1 neither answered nor refused for 5\.0 s"):
        checker.ended("n1", 10.0, 15.0)
    with pytest.raises(Violation, match="n2 neither"):
        checker.ended("n2", 51.0, 60.0)
