"""Is a history linearizable (I10)? The search of Wing and Gong, with Lowe's memory of configurations seen.

Keys are independent, so each key's history is judged by itself (linearizability is compositional). An operation whose
outcome is unknown never returns: it may take effect at any time after its call, or never. What an operation does to the
state of its key, and which answers fit it, is the business of a model: `registers`, `lockmodel`, `leasemodel`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.checkers.violation import Violation

FOREVER = float("inf")
MAX_CONFIGURATIONS = 2_000_000
UNKNOWN = object()
SHOWN = 30
"""Operations before the one that does not fit."""


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


IMPOSSIBLE = object()


class Model(Protocol):
    """One key's state. States are hashed and compared."""

    def first(self) -> Any:
        """Before any operation."""

    def after(self, state: Any, operation: Operation) -> Any:
        """The state after `operation`, or IMPOSSIBLE where its answer does not fit."""

    def only_tells(self, operation: Operation) -> bool:
        """Whether an operation with this answer changes nothing, in any state that it fits."""

    def relevant(self, operations: Sequence[Operation]) -> list[Operation]:
        """Without those that can be taken out of any order that explains the history: open ones cost much."""


def check(history: Iterable[Operation], model: Model) -> int:
    """Raise a Violation for the first key whose operations fit no order; else how many operations were looked at."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for key in sorted(by_key):
        furthest = _search(model.relevant(by_key[key]), model)
        if furthest is not None:
            lines = "\n  ".join(str(operation) for operation in furthest)
            before = "\n  ".join(str(operation) for operation in _around(by_key[key], furthest))
            raise Violation(
                "linearizable",
                f"no order explains the operations on {key}; stuck before one of:\n  {lines}\nof:\n  {before}",
            )
    return sum(map(len, by_key.values()))


def _around(operations: Iterable[Operation], stuck: Sequence[Operation]) -> list[Operation]:
    """What was called before and after, where the search got furthest; of reads, which are many, the nearest only."""
    last = max((operation.called for operation in stuck), default=FOREVER)
    order = sorted(operations, key=lambda operation: abs(operation.called - last))
    changes = [operation for operation in order if operation.verb != "read"][:SHOWN]
    reads = [operation for operation in order if operation.verb == "read"][: SHOWN // 3]
    return sorted([*changes, *reads], key=lambda operation: operation.called)


def is_linearizable(history: Iterable[Operation], model: Model) -> bool:
    try:
        check(history, model)
    except Violation:
        return False
    return True


Configuration = tuple[int, int, Any]
"""All operations before the first number are done, and of those from there on the ones whose bit is set; the state."""


def _search(operations: Sequence[Operation], model: Model) -> list[Operation] | None:
    """None if there is an order; otherwise the operations that could come next where the search got furthest."""
    order = sorted(operations, key=lambda operation: operation.called)
    tells = [operation.returned != FOREVER and model.only_tells(operation) for operation in order]
    seen: set[Configuration] = set()
    fewest, stuck = len(order) + 1, [0]
    stack: list[tuple[int, Configuration]] = [(_returned(order), (0, 0, model.first()))]
    while stack:
        left, configuration = stack.pop()
        if configuration in seen:
            continue
        seen.add(configuration)
        if len(seen) > MAX_CONFIGURATIONS:
            raise Violation("linearizable", f"undecided after {MAX_CONFIGURATIONS} configurations")
        taken, start, done, state = _take_told(order, tells, model, configuration)
        left -= taken
        if not left:
            return None
        candidates = _next(order, start, done)
        if left < fewest:
            fewest, stuck = left, candidates
        # Last in, first tried: those that returned first should be tried first, those that never did last.
        for number in sorted(candidates, key=lambda n: order[n].returned, reverse=True):
            after = model.after(state, order[number])
            if after is not IMPOSSIBLE:
                moved = _moved(start, done | 1 << (number - start))
                stack.append((left - (order[number].returned != FOREVER), (*moved, after)))
    return [order[number] for number in stuck]


def _take_told(
    order: Sequence[Operation], tells: Sequence[bool], model: Model, configuration: Configuration
) -> tuple[int, int, int, Any]:
    """The same, with all done that may come next, fits, and changes nothing; and how many those are.

    Nothing is lost: in any order that goes on from here such an operation can be moved to this place, where it fits as
    well and makes no difference to the others.
    """
    start, done, state = configuration
    taken, before = 0, -1
    while taken != before:
        before = taken
        for number in _next(order, start, done):
            if tells[number] and model.after(state, order[number]) == state:
                done |= 1 << (number - start)
                taken += 1
        start, done = _moved(start, done)
    return taken, start, done, state


def _returned(operations: Iterable[Operation]) -> int:
    return sum(operation.returned != FOREVER for operation in operations)


def _moved(start: int, done: int) -> tuple[int, int]:
    """The same, with the start behind all that is done."""
    ahead = (~done & (done + 1)).bit_length() - 1
    return start + ahead, done >> ahead


def _next(order: Sequence[Operation], start: int, done: int) -> list[int]:
    """The operations that may come next: called before any that is not done returned."""
    candidates: list[int] = []
    first_return = FOREVER
    for number in range(start, len(order)):
        operation = order[number]
        if operation.called > first_return:
            break
        if not done >> (number - start) & 1:
            candidates.append(number)
            first_return = min(first_return, operation.returned)
    return candidates
