"""The one door to the replicated state: log entries in, one result a command out.

For now no command exists, so each gets a denial; leases, locks, resources and the rest come in behind this door. The
same entries in the same order give the same results and the same frozen bytes on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

FORMAT = 1
"""Of the frozen bytes. A state of another format is refused, not guessed at."""


class FormatError(ValueError):
    """A frozen state that this version cannot read."""


@dataclass(frozen=True, slots=True)
class FrozenMachine:
    """The state at one index. Immutable, so another thread may read it while the machine moves on."""

    index: int
    now_ms: int
    commands: int

    def chunks(self) -> Iterator[bytes]:
        yield msgpack.packb([FORMAT, self.index, self.now_ms, self.commands])


class Machine:
    """The state, and the cluster clock `now_ms`, which never goes back."""

    def __init__(self) -> None:
        self.index = 0
        self.now_ms = 0
        self.commands = 0

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> Sequence[Any]:
        self.index = index
        self.now_ms = max(self.now_ms, now_ms)
        self.commands += len(commands)
        return [{"denied": "unknown_command", "message": "this version knows no commands yet"} for _ in commands]

    def freeze(self) -> FrozenMachine:
        return FrozenMachine(self.index, self.now_ms, self.commands)

    def restore(self, chunks: Iterable[bytes]) -> None:
        state = msgpack.unpackb(b"".join(chunks))
        if not isinstance(state, list) or not state or state[0] != FORMAT:
            raise FormatError(f"this state is not of format {FORMAT}; restore it with the version that wrote it")
        _, self.index, self.now_ms, self.commands = state
