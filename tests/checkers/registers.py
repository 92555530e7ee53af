"""Registers and sequences, as `linearizable` asks of a model: put, compare-and-set, append and read of one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.checkers.linearizable import IMPOSSIBLE, UNKNOWN, Operation


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


class Registers:
    def first(self) -> Any:
        return None

    def after(self, state: Any, operation: Operation) -> Any:
        after, answer = step(state, operation)
        return after if operation.result is UNKNOWN or operation.result == answer else IMPOSSIBLE

    def only_tells(self, operation: Operation) -> bool:
        return operation.verb == "read" or (operation.verb == "cas" and operation.result[0] == "denied")

    def relevant(self, operations: Sequence[Operation]) -> list[Operation]:
        """Without reads that failed, and without open writes of values that nobody ever saw.

        Values are unique and writes do not look at what they replace, so such a write can be taken out.
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
