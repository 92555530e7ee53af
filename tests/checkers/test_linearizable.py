"""The checker itself: histories known to be good, and histories known to be bad."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.checkers.leasemodel import Leases
from tests.checkers.linearizable import FOREVER, UNKNOWN, Operation, check, is_linearizable
from tests.checkers.lockmodel import Locks
from tests.checkers.registers import Registers, step
from tests.checkers.violation import Violation


def op(called: float, returned: float, verb: str, *arguments: Any, result: Any = None, key: str = "r") -> Operation:
    if returned == FOREVER:
        result = UNKNOWN
    elif result is None and verb in ("put", "append"):
        result = ("ok", arguments[0]) if verb == "put" else ("ok",)
    return Operation("c", key, verb, arguments, called, returned, result)


GOOD = {
    "nothing": [],
    "read of nothing": [op(0, 1, "read", result=None)],
    "one after the other": [op(0, 1, "put", "a"), op(2, 3, "read", result="a")],
    "a read beside a write sees the old value": [op(0, 5, "put", "a"), op(1, 2, "read", result=None)],
    "a read beside a write sees the new value": [op(0, 5, "put", "a"), op(1, 2, "read", result="a")],
    "two writes at once, in the order of their return": [
        op(0, 5, "put", "a"),
        op(0, 4, "put", "b"),
        op(6, 7, "read", result="b"),
    ],
    "an open write that happened late": [
        op(0, FOREVER, "put", "a"),
        op(1, 2, "put", "b"),
        op(3, 4, "read", result="b"),
        op(5, 6, "read", result="a"),
    ],
    "an open write that never happened": [op(0, FOREVER, "put", "a"), op(1, 2, "read", result=None)],
    "an open compare-and-set that was seen": [
        op(0, 1, "put", "a"),
        op(2, FOREVER, "cas", "a", "b"),
        op(3, 4, "read", result="b"),
    ],
    "a refused compare-and-set tells the value": [
        op(0, 1, "put", "a"),
        op(2, 3, "cas", "x", "b", result=("denied", "a")),
    ],
    "appends at once": [
        op(0, 5, "append", 1),
        op(0, 5, "append", 2),
        op(6, 7, "read", result=(2, 1)),
    ],
    "keys are apart": [op(0, 1, "put", "a"), op(2, 3, "read", result=None, key="other")],
}

BAD = {
    "stale read": [op(0, 1, "put", "a"), op(2, 3, "put", "b"), op(4, 5, "read", result="a")],
    "stale read after a newer read": [
        op(0, 9, "put", "a"),
        op(1, 2, "read", result="a"),
        op(3, 4, "read", result=None),
    ],
    "lost write": [op(0, 1, "put", "a"), op(2, 3, "read", result=None)],
    "lost append": [op(0, 1, "append", 1), op(2, 3, "append", 2), op(4, 5, "read", result=(2,))],
    "doubled append": [op(0, 1, "append", 1), op(2, 3, "read", result=(1, 1))],
    "reordered appends": [op(0, 1, "append", 1), op(2, 3, "append", 2), op(4, 5, "read", result=(2, 1))],
    "double compare-and-set": [
        op(0, 1, "put", "a"),
        op(2, 6, "cas", "a", "b", result=("ok", "b")),
        op(2, 6, "cas", "a", "c", result=("ok", "c")),
    ],
    "value from nowhere": [op(0, 1, "read", result="ghost")],
    "an open write seen, then unseen": [
        op(0, FOREVER, "put", "a"),
        op(1, 2, "read", result="a"),
        op(3, 4, "read", result=None),
    ],
    "an open write seen before its call": [op(0, 1, "read", result="a"), op(2, FOREVER, "put", "a")],
    "a write seen after it was overwritten, with an open one beside": [
        op(0, 1, "put", "a"),
        op(0, FOREVER, "put", "x"),
        op(2, 3, "put", "b"),
        op(4, 5, "read", result="x"),
        op(6, 7, "read", result="a"),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_pass(name: str) -> None:
    check(GOOD[name], Registers())


@pytest.mark.parametrize("name", BAD)
def test_bad_histories_are_found(name: str) -> None:
    with pytest.raises(Violation, match="linearizable"):
        check(BAD[name], Registers())


@pytest.mark.parametrize("seed", range(20))
def test_histories_of_a_real_register_pass_and_altered_ones_do_not(seed: int) -> None:
    """Each operation takes effect at a random moment between its call and its return; some never return."""
    rng = random.Random(seed)
    history = _history(rng, 300)
    check(history, Registers())
    reads = [operation for operation in history if operation.verb == "read" and operation.result is not None]
    altered = rng.choice(reads)
    altered.result = "ghost" if not isinstance(altered.result, tuple) else (*altered.result, "ghost")
    assert not is_linearizable(history, Registers())


def _history(rng: random.Random, count: int) -> list[Operation]:
    operations: list[tuple[float, Operation]] = []
    for number in range(count):
        called = number + rng.random()
        effect = called + rng.expovariate(0.5)
        key = rng.choice("rs")
        verb = rng.choice(("read", "append" if key == "s" else rng.choice(("put", "cas"))))
        arguments: tuple[Any, ...] = () if verb == "read" else (number,)
        if verb == "cas":
            arguments = (rng.choice((None, number - 1, number - 2)), number)
        operations.append((effect, Operation("c", key, verb, arguments, called, effect + rng.expovariate(0.5))))
    states: dict[str, Any] = {}
    for _, operation in sorted(operations, key=lambda held: held[0]):
        state, operation.result = step(states.get(operation.key), operation)
        if rng.random() < 0.1:
            operation.returned, operation.result = FOREVER, UNKNOWN
            if rng.random() < 0.5:
                continue
        states[operation.key] = state
    return [operation for _, operation in operations]


def lock(client: str, called: float, returned: float, verb: str, *arguments: Any, result: Any = ("ok",)) -> Operation:
    return Operation(client, "k", verb, arguments, called, returned, UNKNOWN if returned == FOREVER else result)


GOOD_LOCKS = {
    "one after the other": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 2, 3, "release", 1),
        lock("b", 4, 5, "acquire", result=("granted", 2)),
    ],
    "two at once, one is busy": [
        lock("a", 0, 5, "acquire", result=("granted", 1)),
        lock("b", 0, 5, "acquire", result=("busy",)),
    ],
    "the other waited until it was released": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("b", 2, 6, "acquire", result=("granted", 2)),
        lock("a", 3, 4, "release", 1),
    ],
    "an end by itself, then another": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("", 5, 5, "end", 1),
        lock("b", 6, 7, "acquire", result=("granted", 2)),
        lock("a", 8, 9, "renew", 1, result=("not_holder",)),
    ],
    "an open acquire that was seen": [
        lock("a", 0, FOREVER, "acquire"),
        lock("b", 1, 2, "acquire", result=("busy",)),
        lock("b", 3, 4, "read", result=("held", "a", 3)),
        lock("a", 5, 6, "renew", 3),
    ],
    "a token that is checked while it holds, and after": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("s", 2, 3, "check", 1, result=("current",)),
        lock("a", 4, 5, "release", 1),
        lock("s", 4, 6, "check", 1, result=("current",)),
        lock("s", 7, 8, "check", 1, result=("not_current",)),
    ],
    "an open release that happened late": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 2, FOREVER, "release", 1),
        lock("b", 3, 4, "acquire", result=("busy",)),
        lock("b", 5, 6, "acquire", result=("granted", 2)),
    ],
}
GOOD_LOCKS |= {
    "over by itself, nobody knows when, and handed to who waited": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 3, FOREVER, "end", 1),
        lock("b", 2, 6, "acquire", result=("granted", 2)),
        lock("a", 7, 8, "renew", 1, result=("not_holder",)),
    ],
    "it may be over, and is not": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 3, FOREVER, "end", 1),
        lock("a", 5, 6, "renew", 1),
    ],
    "a grant that nobody was told of is over by itself": [
        lock("a", 0, FOREVER, "acquire"),
        lock("b", 1, 2, "acquire", result=("busy",)),
        lock("a", 3, FOREVER, "end", None),
        lock("b", 4, 5, "acquire", result=("granted", 2)),
    ],
    "a grant whose token was not told, and its end": [
        lock("a", 0, 4, "acquire", result=("granted", None)),
        lock("a", 1, FOREVER, "end", None),
        lock("b", 5, 6, "acquire", result=("granted", 2)),
    ],
    "over with its session, or before": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 2, 3, "over", 1, result=("over",)),
        lock("b", 4, 5, "acquire", result=("granted", 2)),
        lock("a", 6, 7, "over", 1, result=("over",)),
        lock("b", 8, 9, "renew", 2),
    ],
    "free by the clock of a node, and renewed": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("b", 3, 4, "read", result=("free", frozenset({"a"}))),
        lock("a", 5, 6, "renew", 1),
    ],
}
BAD_LOCKS = {
    "over too early": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 3, FOREVER, "end", 1),
        lock("b", 1.5, 2.5, "acquire", result=("granted", 2)),
    ],
    "read as free too early": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 3, FOREVER, "end", 1),
        lock("b", 2, 2.5, "read", result=("free",)),
    ],
    "renewed after another was granted it": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 3, FOREVER, "end", 1),
        lock("b", 4, 5, "acquire", result=("granted", 2)),
        lock("a", 6, 7, "renew", 1),
    ],
    "the end of another's hold": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("b", 2, FOREVER, "end", None),
        lock("b", 4, 5, "acquire", result=("granted", 2)),
    ],
    "held after its session was over": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 2, 3, "over", 1, result=("over",)),
        lock("b", 4, 5, "read", result=("held", "a", 1)),
    ],
    "free by the clock of a node, though another holds it": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("b", 3, 4, "read", result=("free", frozenset({"b"}))),
    ],
    "two holders": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("b", 2, 3, "acquire", result=("granted", 2)),
    ],
    "a token again": [
        lock("a", 0, 1, "acquire", result=("granted", 2)),
        lock("a", 2, 3, "release", 2),
        lock("b", 4, 5, "acquire", result=("granted", 2)),
    ],
    "busy though nobody has it": [lock("b", 0, 1, "acquire", result=("busy",))],
    "renewed after it was over": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("", 2, 2, "end", 1),
        lock("a", 3, 4, "renew", 1),
    ],
    "refused though it holds": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 2, 3, "renew", 1, result=("not_holder",)),
    ],
    "a token that is current after its release": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 2, 3, "release", 1),
        lock("s", 4, 5, "check", 1, result=("current",)),
    ],
    "a token that is not current though it holds": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("s", 2, 3, "check", 1, result=("not_current",)),
    ],
    "a stale read": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("a", 2, 3, "release", 1),
        lock("b", 4, 5, "read", result=("held", "a", 1)),
    ],
    "a read that misses a grant": [
        lock("a", 0, 1, "acquire", result=("granted", 1)),
        lock("b", 2, 3, "read", result=("free",)),
    ],
}


@pytest.mark.parametrize("name", GOOD_LOCKS)
def test_good_histories_of_a_lock_pass(name: str) -> None:
    check(GOOD_LOCKS[name], Locks())


@pytest.mark.parametrize("name", BAD_LOCKS)
def test_bad_histories_of_a_lock_are_found(name: str) -> None:
    assert not is_linearizable(BAD_LOCKS[name], Locks())


GOOD_LEASES = {
    "leased, renewed, released": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "renew", 7),
        lock("a", 4, 5, "release"),
        lock("a", 6, 7, "read", 7, result=("gone",)),
        lock("a", 8, 9, "acquire", result=("leased", 8)),
    ],
    "acquired again, it is the same": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "acquire", result=("leased", 7)),
    ],
    "an open acquire whose number is seen later": [
        lock("a", 0, FOREVER, "acquire"),
        lock("a", 1, 2, "acquire", result=("leased", 7)),
    ],
    "over by itself": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("", 2, 2, "end", 7),
        lock("a", 3, 4, "release", result=("gone",)),
    ],
}
GOOD_LEASES |= {
    "over by itself, nobody knows when, and acquired anew": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 3, FOREVER, "end", 7),
        lock("a", 4, 5, "acquire", result=("leased", 8)),
        lock("a", 6, 7, "renew", 7, result=("gone",)),
    ],
    "an open acquire that is over before it was told": [
        lock("a", 0, FOREVER, "acquire"),
        lock("a", 3, FOREVER, "end", None),
        lock("a", 4, 5, "release", result=("gone",)),
    ],
    "over with its session, or before": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "over", 7, result=("over",)),
        lock("a", 2.5, 3.5, "over", 7, result=("over",)),
        lock("a", 4, 5, "read", 7, result=("gone",)),
    ],
}
BAD_LEASES = {
    "gone too early": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 3, FOREVER, "end", 7),
        lock("a", 1.5, 2, "renew", 7, result=("gone",)),
    ],
    "active after it was seen to be over": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 3, FOREVER, "end", 7),
        lock("b", 4, 5, "read", 7, result=("gone",)),
        lock("b", 6, 7, "read", 7, result=("active",)),
    ],
    "active after its session was over": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "over", 7, result=("over",)),
        lock("b", 4, 5, "read", 7, result=("active",)),
    ],
    "two leases of one client": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "acquire", result=("leased", 8)),
    ],
    "a lease that comes back": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "release"),
        lock("a", 4, 5, "acquire", result=("leased", 7)),
    ],
    "gone though nothing ended it": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "renew", 7, result=("gone",)),
    ],
    "a lease that comes back without a number": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "release"),
        lock("a", 4, FOREVER, "acquire"),
        lock("a", 5, 6, "renew", 7),
    ],
    "active after its release": [
        lock("a", 0, 1, "acquire", result=("leased", 7)),
        lock("a", 2, 3, "release"),
        lock("a", 4, 5, "read", 7, result=("active",)),
    ],
}


@pytest.mark.parametrize("name", GOOD_LEASES)
def test_good_histories_of_a_lease_pass(name: str) -> None:
    check(GOOD_LEASES[name], Leases())


@pytest.mark.parametrize("name", BAD_LEASES)
def test_bad_histories_of_a_lease_are_found(name: str) -> None:
    assert not is_linearizable(BAD_LEASES[name], Leases())


@pytest.mark.parametrize("seed", range(10))
def test_many_reads_beside_few_writes_are_decided_quickly(seed: int) -> None:
    """What only tells is taken as soon as it fits: a hundred reads at once and two open writes cost nothing."""
    rng = random.Random(seed)
    history, now = [lock("x", 0.0, FOREVER, "acquire"), lock("y", 0.0, FOREVER, "release", 99)], 0.0
    for token in range(1, 40):
        history.append(lock("a", now, now + 1, "acquire", result=("granted", token)))
        history.append(lock("a", now + 2, now + 3, "release", token))
        for _ in range(100):
            at = now + rng.uniform(1.0, 2.0)
            history.append(lock("b", at - 0.5 * rng.random(), at + rng.random(), "read", result=("held", "a", token)))
        now += 4
    rng.shuffle(history)
    assert check(history, Locks()) == len(history)
    history.append(lock("b", 1.5, 1.6, "read", result=("free",)))
    assert not is_linearizable(history, Locks())
