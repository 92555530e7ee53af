"""Values: what does not change once it is made.

For the type checker `value` is `dataclass`, and `@value(frozen=True, slots=True)` lets nobody write to a field. At run
time it makes a dataclass that is not frozen: making one of eight fields takes a sixth of the time, and a command and
its answer are a dozen of them on every node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen, slots):
        """Equal and hashed by its fields, as a frozen one is."""
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["value"]
