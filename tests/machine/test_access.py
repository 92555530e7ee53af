"""Access tokens and the audit trail in the machine: what each allows, their ends and bounds, and that they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine import access, trail
from coordinator.machine import accesscommands as a
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine import taskcommands as t
from coordinator.machine.access import AccessToken
from coordinator.machine.accessresults import TokenPut, TokenRevoked
from coordinator.machine.codec import Request, decode_command, encode_command
from coordinator.machine.invariants import check
from coordinator.machine.limits import MAX_ACTIONS
from coordinator.machine.machine import Machine
from coordinator.machine.restoring import begin_anew
from coordinator.machine.rules import RULES
from coordinator.machine.tombstonecommands import RemoveHolder
from coordinator.machine.trail import Actor

OPS = Actor("ops", "t9")


def token(*scopes: a.Scope, bound: bool = False, identity: str = "ann") -> AccessToken:
    return AccessToken("t1", bytes(32), identity, scopes, bound, 0)


class Driver:
    def __init__(self) -> None:
        self.machine, self.index, self.now_ms = Machine(), 0, 0

    def do(self, *commands: c.Command, actor: Actor = OPS, namespace: str = "default") -> list[Any]:
        self.index += 1
        raw = [encode_command(command, namespace, None, actor) for command in commands]
        results: Sequence[Any] = self.machine.apply(self.index, self.now_ms, raw)
        check(self.machine.state)
        return list(results)


# --- what a token allows ----------------------------------------------------------------------------------------------


def test_a_right_has_those_below_it() -> None:
    writer = token(a.Scope("n", "write"))
    assert [writer.reaches(right, "n") for right in access.RIGHTS] == [True, True, False]
    assert not writer.reaches("read", "m")
    assert token(a.Scope("*", "read")).reaches("read", "m")


def test_a_prefix_is_of_its_own_scope() -> None:
    mixed = token(a.Scope("n", "read", "a/"), a.Scope("n", "write", "b/"), a.Scope("m", "admin"))
    assert mixed.covers("read", "n", "a/1") and mixed.covers("read", "n", "b/1")
    assert not mixed.covers("write", "n", "a/1") and not mixed.covers("read", "n", "c")
    assert mixed.whole("write", "m") and not mixed.whole("read", "n")


@pytest.mark.parametrize(
    ("client_id", "own"),
    [("ann", True), ("ann/1", True), ("ann/", True), ("anna", False), ("ann-1", False), ("bob", False), ("", False)],
)
def test_a_bound_token_owns_its_name_and_what_is_below_it(client_id: str, own: bool) -> None:
    assert token(a.Scope("*", "admin"), bound=True).owns(client_id) is own
    assert token(a.Scope("*", "admin")).owns(client_id)


# --- the rules --------------------------------------------------------------------------------------------------------

IDS = ("t1", "t2", "t3")
steps = st.lists(
    st.tuples(st.sampled_from(("create", "rotate", "revoke", "wait")), st.sampled_from(IDS), st.integers(0, 30)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_tokens_are_what_a_simple_model_says(moves: list[tuple[str, str, int]]) -> None:
    driver = Driver()
    model: dict[str, tuple[dict[bytes, float], float]] = {}
    for number, (move, token_id, span) in enumerate(moves):
        digest = number.to_bytes(32, "little")
        known = model.get(token_id)
        if move == "wait":
            driver.now_ms += span
            driver.do()
        elif move == "create":
            (result,) = driver.do(a.CreateToken(token_id, digest, "ann", (a.Scope("*", "read"),), False, span or None))
            assert isinstance(result, TokenPut) is (known is None)
            if known is None:
                model[token_id] = {digest: float("inf")}, driver.now_ms + span if span else float("inf")
        elif move == "rotate":
            (result,) = driver.do(a.RotateToken(token_id, digest, span))
            assert isinstance(result, TokenPut) is (known is not None)
            if known is not None:
                newest = max(known[0], key=lambda each: known[0][each])
                model[token_id] = {newest: driver.now_ms + span, digest: float("inf")}, known[1]
        else:
            (result,) = driver.do(a.RevokeToken(token_id))
            assert isinstance(result, TokenRevoked) is (model.pop(token_id, None) is not None)
        _compare(driver.machine, model)
    other = Machine()
    other.restore(driver.machine.freeze().chunks())
    assert other.digest() == driver.machine.digest()
    check(other.state)
    _compare(other, model)


def _compare(machine: Machine, model: dict[str, tuple[dict[bytes, float], float]]) -> None:
    now_ms = machine.now_ms
    seen = {each.token_id: (set(each.digests(now_ms)), each.alive(now_ms)) for each in machine.tokens("", 9)}
    assert seen == {
        token_id: ({each for each, until in digests.items() if until > now_ms}, ends > now_ms)
        for token_id, (digests, ends) in model.items()
    }


def test_the_secret_before_is_good_for_the_overlap_only() -> None:
    driver = Driver()
    driver.do(a.CreateToken("t1", b"1" * 32, "x", (a.Scope("*", "read"),)), a.RotateToken("t1", b"2" * 32, 10))
    (made,) = driver.machine.tokens("", 9)
    assert made.digests(9) == (b"2" * 32, b"1" * 32) and made.digests(10) == (b"2" * 32,)
    driver.do(a.RotateToken("t1", b"3" * 32))
    (made,) = driver.machine.tokens("", 9)
    assert made.digests(0) == (b"3" * 32,)


def test_expired_tokens_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_ACCESS_TOKENS", 2)
    driver, scopes = Driver(), (a.Scope("*", "read"),)
    driver.do(a.CreateToken("t1", bytes(32), "x", scopes, False, 10), a.CreateToken("t2", bytes(32), "x", scopes))
    (full,) = driver.do(a.CreateToken("t3", bytes(32), "x", scopes))
    assert full.code == "capacity_exceeded"
    driver.now_ms = 10
    (made,) = driver.do(a.CreateToken("t3", bytes(32), "x", scopes))
    assert isinstance(made, TokenPut) and [each.token_id for each in driver.machine.tokens("", 9)] == ["t2", "t3"]


def test_a_page_of_tokens_goes_on_after_the_last() -> None:
    driver = Driver()
    driver.do(*(a.CreateToken(each, bytes(32), "x", (a.Scope("*", "read"),)) for each in ("t3", "t1", "t2")))
    assert [each.token_id for each in driver.machine.tokens("", 2)] == ["t1", "t2"]
    assert [each.token_id for each in driver.machine.tokens("t2", 2)] == ["t3"]


# --- the trail --------------------------------------------------------------------------------------------------------


def told(driver: Driver) -> list[tuple[str, str, str, str]]:
    return [(each.identity, each.action, each.namespace, each.subject) for each in driver.machine.actions(None, 99)]


def test_what_is_done_by_force_is_recorded_and_what_is_ones_own_is_not() -> None:
    driver = Driver()
    driver.do(c.PutNamespace(1_000, 1_000, 1_000, 1_000, 9_999), namespace="n")
    driver.do(
        c.PutResources(("r", "s"), "files", "segment"), c.AcquireLock("k", "ann", 60_000),
        c.DeleteResource("s"), c.DeleteResource("r", force=True), c.BreakLock("k"), c.BreakLock("free"),
        RemoveHolder("nobody"), t.RevokeTask("none", 1), namespace="n",
    )  # fmt: skip
    assert told(driver) == [
        ("ops", "lock.break", "n", "k"), ("ops", "resource.delete", "n", "r"), ("ops", "namespace.put", "n", ""),
    ]  # fmt: skip
    assert all((each.token_id, each.outcome) == ("t9", "done") for each in driver.machine.actions(None, 9))


def test_the_trail_is_a_ring() -> None:
    driver, one = Driver(), a.NoteAction("x", "y", "z")
    driver.do(*[one] * (MAX_ACTIONS + 5))
    newest = driver.machine.actions(None, 2)
    assert [each.number for each in newest] == [MAX_ACTIONS + 5, MAX_ACTIONS + 4]
    assert [each.number for each in driver.machine.actions(7, 9)] == [6]
    assert driver.machine.actions(6, 9) == [] and driver.machine.actions(1, 9) == []


def test_a_restore_is_in_the_trail() -> None:
    driver = Driver()
    driver.do(a.NoteAction("cluster.backup", "n1", "begun"))
    begin_anew(driver.machine.state, 1_800_000_000)
    check(driver.machine.state)
    assert [each.action for each in driver.machine.actions(None, 9)] == ["cluster.restore", "cluster.backup"]


# --- on the wire ------------------------------------------------------------------------------------------------------


def test_only_what_is_recorded_carries_who_it_came_from() -> None:
    assert decode_command(encode_command(c.BreakLock("k"), actor=OPS)) == Request(
        None, "default", c.BreakLock("k"), OPS
    )
    quiet = c.AcquireLock("k", "ann", 5)
    assert encode_command(quiet, actor=OPS) == encode_command(quiet)
    assert encode_command(c.BreakLock("k")) == msgpack.packb([None, "default", "lock.break", "k"])


def test_entries_from_before_there_were_tokens_are_obeyed() -> None:
    driver = Driver()
    driver.do(c.AcquireLock("k", "ann", 60_000))
    driver.index += 1
    (result,) = driver.machine.apply(driver.index, 0, [msgpack.packb([None, "default", "lock.break", "k"])])
    assert isinstance(result, r.LockBroken) and told(driver) == [("", "lock.break", "default", "k")]


@pytest.mark.parametrize(
    "verb",
    [["lock.break"], ["lock.break", "a"], ["lock.break", "a", "b", "c"], ["lock.break", "a", 5],
     ["lock.break", "x" * 65, "b"], [["lock.break", "a", "b"], "a", "b"], [5, "a", "b"]],
)  # fmt: skip
def test_who_it_came_from_is_checked(verb: Any) -> None:
    denied = decode_command(msgpack.packb([None, "default", verb, "k"]))
    assert isinstance(denied, r.Denied) and denied.details == {"field": "verb"}


def test_every_recorded_command_is_one_the_machine_knows() -> None:
    assert set(trail.RECORDED) <= set(RULES)
