"""No acknowledged write is lost or doubled, no denied one happens (I9).

The commands of a run are unique, so the committed log itself tells the fate of each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgpack

from cluster.proposer import PAYLOAD_KIND
from tests.checkers.violation import Violation
from tests.reference.register import RegisterMachine


class Durable:
    def __init__(self) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.denied: set[bytes] = set()

    def acknowledge(self, command: bytes, index: int) -> None:
        self.acknowledged[command] = index

    def deny(self, command: bytes) -> None:
        self.denied.add(command)

    def check_log(self, committed: Iterable[tuple[int, bytes]]) -> None:
        """Against all that is committed at this moment."""
        places: dict[bytes, int] = {}
        times: Counter[bytes] = Counter()
        for index, command in _commands(committed):
            places[command] = index
            times[command] += 1
        for command, count in times.items():
            if count > 1:
                raise Violation("durable", f"{_shown(command)} is in the log {count} times")
        for command, index in self.acknowledged.items():
            if places.get(command) != index:
                where = places.get(command, "nowhere")
                raise Violation("durable", f"{_shown(command)} was acknowledged at {index} and is at {where}")
        for command in sorted(self.denied & places.keys()):
            raise Violation("durable", f"{_shown(command)} was denied and is in the log at {places[command]}")

    @staticmethod
    def check_state(name: str, machine: RegisterMachine, committed: Iterable[tuple[int, bytes]]) -> None:
        """A node's state is what the whole committed log gives."""
        model = RegisterMachine()
        for index, payload in committed:
            if payload[:1] == PAYLOAD_KIND:
                model.apply(index, model.now_ms, msgpack.unpackb(payload[1:])[1])
        if (machine.index, machine.values, machine.digest) != (model.index, model.values, model.digest):
            differing = sorted(
                key
                for key in model.values.keys() | machine.values.keys()
                if model.values.get(key) != machine.values.get(key)
            )
            raise Violation("durable", f"{name} at {machine.index} differs from the log at {model.index}: {differing}")


def _commands(committed: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    for index, payload in committed:
        if payload[:1] == PAYLOAD_KIND:
            for command in msgpack.unpackb(payload[1:])[1]:
                yield index, command


def _shown(command: bytes) -> Any:
    return [part if len(repr(part)) < 40 else repr(part)[:40] + "…" for part in msgpack.unpackb(command)]
