"""What can reach a machine: commands, heartbeats, and states to restore. What is refused must leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

from coordinator.http.heartbeats import CLIENT_HEADER, EXTEND_HEADER, _packed
from coordinator.machine import invariants
from coordinator.machine.codec import decode_command, encode_command
from coordinator.machine.results import Denied
from tests.machine.test_machine import busy_machine

_APPLIED_EVERY = 500
_RESTORED_EVERY = 50


class Unchanged:
    """A machine with something in it. Its digest is compared now and then, and at the end; `digests` counts that."""

    def __init__(self, every: int) -> None:
        self.machine = busy_machine()
        self.digests = 0
        self._digest = self.machine.digest()
        self._every, self._tried = every, 0

    def tried(self) -> None:
        self._tried += 1
        if self._tried % self._every == 1:
            self.compare()

    def compare(self) -> None:
        self.digests += 1
        if self.machine.digest() != self._digest:
            raise AssertionError("the state changed")


class Heartbeats:
    """Of a client that has no lease, so that none of them is of anything."""

    def __init__(self) -> None:
        self.unchanged = Unchanged(_APPLIED_EVERY)
        self._asked = SimpleNamespace(headers={CLIENT_HEADER: "nobody", EXTEND_HEADER: "1000"})

    def __call__(self, raw: bytes) -> None:
        beat = _packed(self._asked, raw)  # type: ignore[arg-type]
        machine = self.unchanged.machine
        machine.apply(machine.revision + 1, machine.now_ms, [encode_command(beat)])
        self.unchanged.tried()


class Commands:
    """What is refused changes nothing; what is damaged and good all the same leaves a state that holds together."""

    def __init__(self) -> None:
        self.unchanged, self._used = Unchanged(_APPLIED_EVERY), busy_machine()

    def __call__(self, raw: bytes) -> None:
        refused = isinstance(decode_command(raw), Denied)
        machine = self.unchanged.machine if refused else self._used
        machine.apply(machine.revision + 1, machine.now_ms, [raw])
        if refused:
            self.unchanged.tried()
        elif machine.revision % _APPLIED_EVERY == 0:
            invariants.check(machine.state)


class Restores:
    """Into a machine that has a state already, which it keeps unless the new one is read to its end."""

    def __init__(self, chunks: Callable[[bytes], Iterable[bytes]]) -> None:
        self.unchanged = Unchanged(_RESTORED_EVERY)
        self._chunks, self._kept = chunks, self.unchanged.machine.state

    def __call__(self, raw: bytes) -> None:
        machine = self.unchanged.machine
        try:
            machine.restore(self._chunks(raw))
            machine.digest()  # a state that was taken can be read
        finally:
            # Only one that was taken may be another; the next input finds the first again.
            machine.state = self._kept
            self.unchanged.tried()


def state() -> bytes:
    return b"".join(busy_machine().freeze().chunks())


def cut(raw: bytes) -> Iterator[bytes]:
    for start in range(0, len(raw), 4_096):
        yield raw[start : start + 4_096]
