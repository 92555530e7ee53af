"""The reference state machine: a map of registers with put, compare-and-set and append.

Small enough to be obviously right, rich enough to show lost, doubled and reordered writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgpack


def command(*parts: Any) -> bytes:
    return msgpack.packb(list(parts))


class _FrozenRegisters:
    def __init__(self, state: list[Any]) -> None:
        self._state = state

    def chunks(self) -> Iterator[bytes]:
        body = msgpack.packb(self._state)
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]


class RegisterMachine:
    """Keeps a digest chained over all it applied, so that two nodes at one index can be compared."""

    def __init__(self, *, digest: bool = True) -> None:
        self._digests = digest
        self.values: dict[str, Any] = {}
        self.index = 0
        self.now_ms = 0
        self.digest = b""

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[Any]:
        if index <= self.index or now_ms < self.now_ms:
            raise ValueError(f"entry {index} at {now_ms} ms after entry {self.index} at {self.now_ms} ms")
        self.index, self.now_ms = index, now_ms
        if self._digests:
            body = self.digest + index.to_bytes(8, "big") + b"".join(commands)
            self.digest = hashlib.blake2b(body, digest_size=16).digest()
        return [self._apply_one(msgpack.unpackb(command)) for command in commands]

    def _apply_one(self, parts: list[Any]) -> Any:
        verb, key, *rest = parts
        if verb == "put":
            self.values[key] = rest[0]
            return ["ok", rest[0]]
        if verb == "append":
            self.values[key] = [*(self.values.get(key) or []), rest[0]]
            return ["ok", len(self.values[key])]
        if verb == "cas":
            old, new = rest
            if self.values.get(key) != old:
                return ["denied", self.values.get(key)]
            self.values[key] = new
            return ["ok", new]
        return ["denied", f"unknown verb {verb}"]

    def freeze(self) -> _FrozenRegisters:
        values = {key: list(value) if isinstance(value, list) else value for key, value in self.values.items()}
        return _FrozenRegisters([self.index, self.now_ms, self.digest, sorted(values.items())])

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.index, self.now_ms, self.digest, rows = msgpack.unpackb(b"".join(chunks))
        self.values = dict(rows)
