"""Values: what does not change once it is made.

For the type checker `value` is `dataclass`, and `@value(frozen=True, slots=True)` lets nobody write to a field. At run
time it makes a dataclass that is not frozen: making one of eight fields takes a sixth of the time, and a command and
its answer are a dozen of them on every node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen, slots):
        """Equal and hashed by its fields, as a frozen one is."""
        return dataclass(slots=slots, unsafe_hash=frozen)


def row_of(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the fields of a value in their order. `astuple` also copies all that is in them, and takes thirty
    times as long: states are frozen and digested while others wait."""
    names = [field.name for field in fields(kind)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda made: tuple(getattr(made, name) for name in names)


__all__ = ["row_of", "value"]
