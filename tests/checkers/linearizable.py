"""Is a history linearizable (I10)? The search of Wing and Gong, with Lowe's memory of configurations seen.

Keys are independent, so each key's history is judged by itself (linearizability is compositional). An operation whose
outcome is unknown never returns: it may take effect at any time after its call, or never. The state is one value;
`step` says what an operation does to it and answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.checkers.violation import Violation

FOREVER = float("inf")
MAX_CONFIGURATIONS = 2_000_000
UNKNOWN = object()


@dataclass(slots=True, eq=False)
class Operation:
    """One call on one key: `verb` and `arguments`, when it was called, when it returned and with what."""

    client: str
    key: str
    verb: str
    arguments: tuple[Any, ...]
    called: float
    returned: float = FOREVER
    result: Any = UNKNOWN

    def __str__(self) -> str:
        answer = "?" if self.result is UNKNOWN else repr(self.result)
        end = "…" if self.returned == FOREVER else f"{self.returned:.4f}"
        return f"[{self.called:.4f}, {end}] {self.client} {self.verb} {self.key} {self.arguments} -> {answer}"


def step(state: Any, operation: Operation) -> tuple[Any, Any]:
    """(new state, answer) of the reference register for one operation."""
    match operation.verb, operation.arguments:
        case "read", ():
            return state, state
        case "put", (value,):
            return value, ("ok", value)
        case "append", (value,):
            return (*(state or ()), value), ("ok",)
        case "cas", (old, new):
            return (new, ("ok", new)) if state == old else (state, ("denied", state))
    raise ValueError(f"unknown operation {operation}")


def check(history: Iterable[Operation]) -> None:
    """Raise a Violation for the first key whose operations fit no order."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for key in sorted(by_key):
        furthest = _search(by_key[key])
        if furthest is not None:
            lines = "\n  ".join(str(operation) for operation in furthest)
            raise Violation(
                "linearizable", f"no order explains the operations on {key}; stuck before one of:\n  {lines}"
            )


def is_linearizable(history: Iterable[Operation]) -> bool:
    try:
        check(history)
    except Violation:
        return False
    return True


def _search(operations: Sequence[Operation]) -> list[Operation] | None:
    """None if there is an order; otherwise the operations that could come next where the search got furthest."""
    order = sorted(_relevant(operations), key=lambda operation: operation.called)
    needed = sum(1 << n for n, operation in enumerate(order) if operation.returned != FOREVER)
    seen: set[tuple[int, Any]] = set()
    furthest: tuple[int, list[int]] = (-1, [])
    stack: list[tuple[int, Any]] = [(0, None)]
    while stack:
        done, state = stack.pop()
        if done & needed == needed:
            return None
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if len(seen) > MAX_CONFIGURATIONS:
            raise Violation("linearizable", f"undecided after {MAX_CONFIGURATIONS} configurations")
        candidates = _next(order, done)
        count = (done & needed).bit_count()
        if count > furthest[0]:
            furthest = (count, candidates)
        # Last in, first tried: those that returned first should be tried first, those that never did last.
        for number in sorted(candidates, key=lambda n: order[n].returned, reverse=True):
            operation = order[number]
            after, answer = step(state, operation)
            if operation.result is UNKNOWN or operation.result == answer:
                stack.append((done | 1 << number, after))
    return [order[number] for number in furthest[1]]


def _next(order: Sequence[Operation], done: int) -> list[int]:
    """The operations that may come next: called before any that is not done returned."""
    candidates: list[int] = []
    first_return = FOREVER
    start = (~done & (done + 1)).bit_length() - 1
    for number in range(start, len(order)):
        operation = order[number]
        if operation.called > first_return:
            break
        if not done >> number & 1:
            candidates.append(number)
            first_return = min(first_return, operation.returned)
    return candidates


def _relevant(operations: Sequence[Operation]) -> list[Operation]:
    """Without reads that failed, and without open writes of values that nobody ever saw.

    Values are unique and writes do not look at what they replace, so such a write can be taken out of any order that
    explains the history. Without this, every open write doubles the search.
    """
    seen: set[Any] = set()
    for operation in operations:
        if operation.verb == "cas":
            seen.add(operation.arguments[0])
        if operation.result is not UNKNOWN:
            answer = operation.result if operation.verb == "read" else operation.result[-1]
            seen.update(answer if isinstance(answer, tuple) else (answer,))
    return [
        operation
        for operation in operations
        if operation.result is not UNKNOWN or (operation.verb != "read" and _written(operation) in seen)
    ]


def _written(operation: Operation) -> Any:
    value = operation.arguments[-1]
    return value[-1] if isinstance(value, tuple) else value
