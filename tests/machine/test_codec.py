"""Whatever is in the log: a command out of its bounds, of wrong types, or no command at all changes nothing."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine import accesscommands as a
from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine import taskcommands as t
from coordinator.machine import tombstonecommands as s
from coordinator.machine.codec import (
    VERBS,
    Request,
    decode_command,
    decode_result,
    encode_command,
    encode_result,
    parsed_id,
    shown_id,
)
from coordinator.machine.invariants import check
from coordinator.machine.machine import RULES
from tests.machine.test_machine import busy_machine

GOOD: tuple[c.Command, ...] = (
    c.Heartbeat("a", 5, bytes(8)), c.AcquireLease("r", "a", 5), c.AcquireLeases(("r", "s"), "a", 5, None, 7),
    c.RenewLease(1, "a", 5), c.ReleaseLease("r", "a"), c.CreateSession("a", 5), c.HeartbeatSession(1),
    c.DeleteSession(1), c.AcquireLock("k", "a", 5), c.AcquireLocks(("k", "l"), "a", 5), c.RenewLock("k", "a", 1, 5),
    c.ReleaseLock("k", "a", 1), c.BreakLock("k"), c.CancelWaiter(1, b"id", 1), c.PutNamespace(1, 1, 1, 1, 1),
    c.DeleteNamespace(), c.Sweep(5), c.RaiseLevel(2), c.PutResources(("r", "s"), "p", "k"), c.DeleteResource("r"),
    c.PutEdges(("r",), ("s",)), c.DeleteEdge("r", "s"), c.ProposeSet(1, 0, bytes(8), last=True),
    c.SettleSuspects(bytes(8), 1), c.SuspectResources(bytes(8)), c.ClaimReclaims("p", "w", 1, 1_000, ("k",)),
    c.AckReclaims("w", bytes(8), bytes(8)), c.RenewReclaims("w", bytes(8), bytes(8), 1_000),
    c.ReturnReclaims("w", bytes(8), bytes(8), b"id", 1), c.NackReclaim("w", 1, 1, "why"),
    c.RetryReclaims("p", "k", 1), c.PurgeReclaims("p", "k", 1),
    t.PutQueue("q", 1_000, 100, 3, 2, 0, 0, 5, 0, 0, 0, 0), t.StandQueue("q", "paused"), t.DeleteQueue("q"),
    t.PutTasks("q", (t.NewTask(b"x"), t.NewTask(b"", 1, 2, "k", "l", "r"))), t.AcquireTasks(("q", "p"), "w", 5),
    t.RenewTasks("q", "w", bytes(8), bytes(8)), t.CompleteTasks("q", "w", bytes(8), bytes(8)),
    t.ReturnTasks("q", "w", bytes(8), bytes(8), b"id", 1), t.FailTask("q", "w", 1, 1, "why", 5), t.RevokeTask("q", 1),
    t.DropTask("q", 1), t.RetryTasks("q", 1), t.PurgeTasks("q", "dead", 1), t.PutShards("q", ("s",)),
    t.BeatWorker("q", "w", 0, 0, leaving=False), t.LeaveWorker("q", "w"),
    s.RegisterCopy("r", "h", 1, 1), s.VerifyCopies("h", ("r",), bytes(8), True, 1, 1), s.AckTombstones("h", 1, 1),
    s.RemoveHolder("h", 1),
    a.CreateToken("t1", bytes(32), "ann", (a.Scope("n", "write", "p/"), a.Scope("*", "read")), True, 5),
    a.RotateToken("t1", bytes(32), 5), a.RevokeToken("t1"), a.NoteAction("member.add", "n4", "begun"),
)  # fmt: skip

BAD: tuple[Any, ...] = (
    -1, 1 << 63, (1 << 64) - 1, 0, 1.5, True, None, "", "x" * 256, b"", b"1234567", bytes(8 * 100_001),
    [], ["k", "k"], [""], [5], ["x" * 256], {}, "sideways", [["k"]], -(1 << 63), "\x00" * 300,
)  # fmt: skip


def wire(*parts: Any) -> bytes:
    packed: bytes = msgpack.packb(parts)
    return packed


def test_every_command_has_a_verb_a_rule_and_a_sample() -> None:
    commands = set(get_args(c.Command))
    assert commands == {command for command, _ in VERBS.values()} == set(RULES) == {type(good) for good in GOOD}
    for command, checks in VERBS.values():
        assert len(fields(command)) == len(checks)


@pytest.mark.parametrize("good", GOOD, ids=lambda good: type(good).__name__)
def test_a_command_survives_the_wire(good: c.Command) -> None:
    assert decode_command(encode_command(good, "n", b"id")) == Request(b"id", "n", good)


def values_of(command: c.Command) -> tuple[str, list[Any]]:
    verb = next(verb for verb, (kind, _) in VERBS.items() if kind is type(command))
    return verb, [getattr(command, field.name) for field in fields(command)]


@pytest.mark.parametrize("good", GOOD, ids=lambda good: type(good).__name__)
def test_every_field_out_of_bounds_is_named_and_changes_nothing(good: c.Command) -> None:
    machine = busy_machine()
    before, index = machine.digest(), machine.revision
    verb, values = values_of(good)
    refused = 0
    for place, field in enumerate(fields(good)):
        for bad in BAD:
            raw = wire(None, "default", verb, *values[:place], bad, *values[place + 1 :])
            decoded = decode_command(raw)
            if isinstance(decoded, Request):
                continue
            refused += 1
            index += 1
            (result,) = machine.apply(index, machine.now_ms, [raw])
            assert isinstance(result, r.Denied) and result.code == "malformed", result
            assert result.details == {"field": field.name}
    assert refused >= 10 * len(fields(good))
    assert machine.digest() == before
    check(machine.state)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\xc1", b"\x93", wire(), wire(None), wire(None, "default"), wire(None, "default", "nonsense"),
        wire(None, "default", 5), wire(None, 5, "sweep", 1), wire(5, "default", "sweep", 1),
        wire("id", "default", "sweep", 1), wire(b"", "default", "sweep", 1), wire(bytes(129), "default", "sweep", 1),
        wire(None, "", "sweep", 1),
        wire(None, "default", "sweep"), wire(None, "default", "sweep", 1, 1), wire(None, "default", ["sweep"], 1),
        msgpack.packb({"a": 1}), msgpack.packb("text"), msgpack.packb(None), b"\x91" * 5_000, b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff", wire(None, "default", "sweep", 1) + b"\x00", b"\x93\xc0\xa1\xff\xa1s",
        msgpack.packb([None, "default", "sweep", msgpack.ExtType(1, b"x")]),
        msgpack.packb([None, "default", "sweep", msgpack.Timestamp(1)]),
    ],
)  # fmt: skip
def test_what_is_no_command_is_refused_and_changes_nothing(raw: bytes) -> None:
    machine = busy_machine()
    before = machine.digest()
    (result,) = machine.apply(machine.revision + 1, machine.now_ms, [raw])
    assert isinstance(result, r.Denied) and result.code == "malformed"
    assert machine.digest() == before


MACHINE = busy_machine(5)


@settings(max_examples=400, deadline=None)
@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=5)
        | st.binary(max_size=16) | st.sampled_from(sorted(VERBS)) | st.just("default"),
        lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=20,
    ).map(msgpack.packb)
)  # fmt: skip
def test_random_bytes_never_raise(raw: bytes) -> None:
    (result,) = MACHINE.apply(MACHINE.revision + 1, MACHINE.now_ms, [raw])
    if isinstance(decode_command(raw), r.Denied):
        assert isinstance(result, r.Denied)
    check(MACHINE.state)


@pytest.mark.parametrize("number", [0, 1 << 32, (1 << 64) - 1, 0xABCDEF])
def test_an_id_is_shown_as_16_hex_digits(number: int) -> None:
    assert len(shown_id(number)) == 16 and parsed_id(shown_id(number)) == number


@pytest.mark.parametrize(
    "text", ["", "1", "g" * 16, "+000000000000001", "0" * 17, "0x00000000000001", "A" * 16, "١" * 16]
)
def test_other_texts_are_no_ids(text: str) -> None:
    assert parsed_id(text) is None


def test_a_heartbeat_and_a_request_id_at_their_bounds_are_taken() -> None:
    assert isinstance(decode_command(encode_command(c.Heartbeat("a", 5, bytes(800_000)))), Request)
    assert isinstance(decode_command(encode_command(c.Sweep(1), "n" * 255, bytes(128))), Request)
    shared = decode_command(encode_command(c.AcquireLock("k", "a", 5, 0, "shared", 2)))
    assert isinstance(shared, r.Denied) and shared.details == {"field": "permits"}


@pytest.mark.parametrize(
    "result",
    [
        r.Denied("not_holder", "no", {"holder": None}), r.LeaseGranted(1, 2, 3, 4, 5, True),
        r.LeasesGranted(bytes(16), 1, 2), r.HeartbeatAnswer(1, b"", b"", 5), r.SessionDeleted(4), r.WaitCancelled(),
        r.LockWaiting("k", "a", 1, 0, 5), r.LockBusy("k", "a", None, 3),
        r.LocksGranted((r.LockGranted("k", "a", 1, 2, 3, 4, 5), r.LockGranted("l", "a", 2, 2, 3, 4, 5))),
    ],
)  # fmt: skip
def test_a_result_survives_the_wire(result: r.Result) -> None:
    assert decode_result(encode_result(result)) == result
