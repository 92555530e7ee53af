"""Heartbeats of leases of which nothing is said but their expiry go a shorter way: it must come to the same."""

from __future__ import annotations

import pytest

from coordinator.machine import commands as c
from coordinator.machine import heartbeats
from coordinator.machine import results as r
from coordinator.machine.leaserows import (
    BOUNDED,
    FLAGS_SHIFT,
    HELD_WORD,
    OWNED,
    ROW_WORDS,
    STANDING_WORD,
    STATE_SHIFT,
    LeaseTable,
)
from coordinator.machine.state import ACTIVE
from tests.machine.driver import Driver
from tests.machine.test_leases import packed

ODD = ("none", "beyond", "generation", "owner", "expired", "swept", "free", "session", "bounded", "lifetime", "entered",
       "twice", "longer")  # fmt: skip


def odd_lease(driver: Driver, kind: str) -> tuple[int, ...]:
    """A lease that differs from the others in one way; how it is named in the heartbeat."""
    last = driver.machine.state.leases.used - 1
    match kind:
        case "beyond":
            return (1 << 32 | last + 1, 1 << 32 | 0xFFFFFFFF)
        case "generation":
            return (driver.lease("odd").lease_id ^ 1 << 63,)
        case "owner":
            return (driver.lease("odd", "b").lease_id,)
        case "expired" | "swept":
            return (driver.lease("odd", ms=1_000).lease_id,)
        case "free":
            lease_id = driver.lease("odd").lease_id
            driver.do(c.ReleaseLease("odd", "a"))
            return (lease_id, lease_id + (1 << 32))
        case "session":
            return (driver.lease("odd", session_id=driver.session()).lease_id,)
        case "bounded":
            return (driver.lease("odd", max_lifetime_ms=100_000).lease_id,)
        case "lifetime":
            return (driver.lease("odd", max_lifetime_ms=20_000).lease_id,)
        case "entered":
            driver.lock(), driver.lock()
            return (driver.lock().lease_id,)
        case "twice":
            return (driver.lease("odd").lease_id,) * 2
        case "longer":
            return (driver.lease("odd", ms=1_000_000).lease_id,)
    return ()


@pytest.mark.parametrize("client", ["a", "b", "nobody"])
@pytest.mark.parametrize("kind", ODD)
def test_it_is_the_same_with_and_without_the_shorter_way(
    monkeypatch: pytest.MonkeyPatch, kind: str, client: str
) -> None:
    def renewed(*, in_words: bool) -> tuple[r.HeartbeatAnswer, bytes]:
        monkeypatch.setattr(heartbeats, "IN_WORDS", in_words)
        driver = Driver()
        plain = [driver.lease(f"r{number}").lease_id for number in range(3)]
        named = (*plain[:2], *odd_lease(driver, kind), plain[2])
        driver.now_ms += 1_500
        if kind == "swept":
            driver.entry()
        # As if there had been too much to expire before: what an entry does first would sweep a single one.
        state = driver.machine.state
        state.now_ms = driver.now_ms
        namespace = state.namespaces.by_name["default"]
        answer = heartbeats.heartbeat(state, namespace, c.Heartbeat(client, 60_000, packed(*named)))
        assert isinstance(answer, r.HeartbeatAnswer)
        return answer, driver.machine.digest()

    short, long = renewed(in_words=True), renewed(in_words=False)
    assert short == long
    if client == "a" and kind in ("none", "bounded", "entered", "twice", "longer"):
        assert not short[0].failed_ids


def test_the_words_of_a_row_are_its_fields() -> None:
    table = LeaseTable(64)
    slot = [table.allocate() for _ in range(3)][-1]
    table.expiry_ms[slot] = 1 << 61
    table.generation[slot], table.owner[slot] = 0xFFFFFFFE, 7
    table.next[slot], table.state[slot], table.kind[slot], table.restored[slot] = 0xFFFFFFFF, ACTIVE, 0xFF, 1
    table.flags[slot] = OWNED | BOUNDED
    words = table.words[slot * ROW_WORDS : (slot + 1) * ROW_WORDS].tolist()
    assert len(table.words) == ROW_WORDS * len(table.rows)
    assert words[0] == 1 << 61
    assert words[HELD_WORD] == 7 << 32 | 0xFFFFFFFE
    assert words[STANDING_WORD] & heartbeats.STANDING_MASK == ACTIVE << STATE_SHIFT | (OWNED | BOUNDED) << FLAGS_SHIFT


@pytest.mark.parametrize("growing", [False, True])
def test_a_frozen_state_is_kept_from_what_is_renewed(*, growing: bool) -> None:
    """Also the rows that a table moved to when it grew are the ones that are written."""
    driver = Driver()
    names = tuple(f"r{number}" for number in range(100))
    ids = driver.do(c.AcquireLeases(names, "a", 10_000)).lease_ids
    before, frozen = driver.machine.digest(), driver.machine.freeze()
    if growing:
        driver.do(c.AcquireLeases(tuple(f"more{number}" for number in range(1_000)), "b", 10_000))
    driver.now_ms += 1_000
    assert driver.do(c.Heartbeat("a", 60_000, ids)).renewed == 100
    assert frozen.digest() == before
    views = driver.machine.leases("default", [int.from_bytes(ids[:8], "little")])
    assert views[0] is not None
    assert views[0].ttl_ms == 60_000
