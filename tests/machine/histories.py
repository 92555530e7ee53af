"""Writes down what a release does: logs, the states after them, the answers, a snapshot. The next one is held to it.

Run it with the sources of the release that is to be written down, before its successor brings a new level:

    git worktree add --detach /tmp/before <release>
    PYTHONPATH=/tmp/before python -P tests/machine/histories.py tests/data

It uses the machine, the models and the drawing of commands of *those* sources, and nothing that came later.
`tests/data/README.md` says what the files are and who reads them.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack

import coordinator
from coordinator.machine import accesscommands as a
from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from coordinator.machine import tombstonecommands as s
from coordinator.machine.codec import encode_command, result_parts
from coordinator.machine.machine import Machine
from coordinator.machine.requests import Requests
from coordinator.machine.trail import Actor
from tests.machine.copyworld import World
from tests.machine.crew import RULES
from tests.machine.drawing import draw_again, draw_command
from tests.machine.tasktwin import TaskTwin, draw
from tests.machine.test_graph_model import Run
from tests.machine.twin import Twin

DIGEST_EVERY = 16
MANY_MS, WAIT_MS = 3_600_000, 60_000
SMALL_MEMORY = (24, 12_000)
"""How many requests, and how many bytes of them, are remembered where it matters which of them go first."""


class Recorded(Machine):
    """A machine that writes down what it is told and what it says."""

    def __init__(self, memory: tuple[int, int] | None = None) -> None:
        super().__init__()
        if memory is not None:
            self.state.requests = Requests(*memory)
        self.memory = memory
        self.entries: list[tuple[int, int, list[bytes]]] = []
        self.digests: list[tuple[int, bytes]] = []
        self.results = blake2b(digest_size=16)

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[Any]:
        results: list[Any] = super().apply(index, now_ms, commands)
        self.entries.append((index, now_ms, list(commands)))
        for result in results:
            self.results.update(msgpack.packb(result_parts(result)))
        if len(self.entries) % DIGEST_EVERY == 0:
            self.digests.append((index, self.digest()))
        return results

    def snapshot(self) -> bytes:
        return b"".join(self.freeze().chunks())

    def history(self) -> dict[str, Any]:
        last = self.entries[-1][0]
        if self.digests[-1][0] != last:
            self.digests.append((last, self.digest()))
        return {
            "entries": self.entries,
            "digests": self.digests,
            "results": self.results.digest(),
            "snapshot": blake2b(self.snapshot(), digest_size=16).digest(),
            "memory": self.memory,
        }


# --- what the models draw -------------------------------------------------------------------------------------------


def locks(seed: int, steps: int) -> Recorded:
    """Leases, sessions, locks and waits; every other request has an id, and some are asked again."""
    chance, twin = random.Random(seed), Twin()
    twin.machine = machine = Recorded()
    for step in range(steps):
        if chance.random() < 0.3:
            twin.advance(chance.choice((1, 1, 1, 2, 3, 10, 240)))
        again = draw_again(twin, chance.choice) if chance.random() < 0.1 else None
        if again is not None:
            twin.do(*again)
        else:
            twin.do(draw_command(twin, chance.choice), b"%d" % step if step % 2 else None)
    return machine


def graph(seed: int, steps: int) -> Recorded:
    run = Run(seed)
    run.twin.machine = machine = Recorded()
    for _ in range(steps):
        run.step()
    return machine


def tasks(seed: int, steps: int) -> Recorded:
    chance, twin = random.Random(seed), TaskTwin()
    twin.machine = machine = Recorded()
    for _ in range(steps):
        if chance.random() < 0.3:
            twin.advance(chance.choice((1, 1, 1, 2, 3, 6, 30)))
        twin.do(draw(twin, chance.choice))
    return machine


def copies(seed: int, steps: int) -> Recorded:
    """No restores: each would begin with another machine."""
    chance, world = random.Random(seed), World()
    world.machine = machine = Recorded()
    world.restore = lambda which, much: None  # type: ignore[method-assign]
    for _ in range(steps):
        world.step(*(chance.randrange(60) for _ in range(3)))
    return machine


# --- what they do not ----------------------------------------------------------------------------------------------


class Told:
    """A machine that is told one entry after the other, of several commands and in several namespaces."""

    def __init__(self, memory: tuple[int, int] | None = None) -> None:
        self.machine = Recorded(memory)
        self.index = self.now_ms = 0

    def entry(self, *commands: c.Command, namespace: str = "default", request_id: bytes | None = None) -> list[Any]:
        self.index, self.now_ms = self.index + 1, self.now_ms + 50
        raw = [encode_command(each, namespace, request_id, Actor("ops", "t1")) for each in commands]
        return self.machine.apply(self.index, self.now_ms, raw)

    def clean_up(self, namespace: str, asking: Sequence[str]) -> None:
        """Everything there is to do for the provider; afterwards each of these namespaces says that it has done it."""
        (claimed,) = self.entry(c.ClaimReclaims("disk", "w", 50, MANY_MS), namespace=namespace)
        ids = struct.pack(f"<{len(claimed.items)}Q", *(item.reclaim_id for item in claimed.items))
        tokens = struct.pack(f"<{len(claimed.items)}Q", *(item.token for item in claimed.items))
        for each in (namespace, *asking):
            self.entry(c.AckReclaims("w", ids, tokens), namespace=each)


ROOM = c.PutNamespace(1_000, 1_000, 1_000, 1_000, 1 << 20)


def memory(seed: int, steps: int) -> Recorded:
    """Requests of several namespaces, many more than are remembered; some are asked again, some large."""
    chance, told = random.Random(seed), Told(SMALL_MEMORY)
    spaces = ("default", "b", "c")
    for space in spaces[1:]:
        told.entry(ROOM, namespace=space)
    for step in range(steps):
        space = chance.choice(("default", *spaces))
        number = step if chance.random() < 0.6 else chance.randrange(step + 1)
        names = tuple(f"{number}/{each}" for each in range(200 if number % 13 == 0 else 1 + number % 2))
        told.now_ms += chance.choice((0, 0, 10_000, 200_000))
        if number % 3:
            told.entry(c.AcquireLeases(names, "ann", 5_000), namespace=space, request_id=b"%d" % number)
        else:
            ask = c.AcquireLock(f"k{number % 4}", f"client {number}", 2_000, 60_000 * (number % 2))
            told.entry(ask, namespace=space, request_id=b"%d" % number)
    return told.machine


def everything(_seed: int = 0, _steps: int = 0) -> Recorded:
    """Something of each kind that a state can have, most of it still there at the end."""
    told = Told()
    told.entry(ROOM, namespace="b")
    told.entry(ROOM, namespace="gone")
    told.entry(c.DeleteNamespace(), namespace="gone")
    for number in range(50):
        told.entry(c.AcquireLease(f"file/{number}", f"client {number % 7}", MANY_MS), request_id=b"f%d" % number)
    first, second = (told.entry(c.CreateSession(name, MANY_MS))[0].session_id for name in ("ann", "bob"))
    told.entry(c.AcquireLeases(("s/1", "s/2"), "ann", MANY_MS, first), c.HeartbeatSession(second))
    told.entry(*(c.AcquireLock(f"lock/{number}", "ann", MANY_MS) for number in range(6)))
    told.entry(c.AcquireLock("pool", "bob", MANY_MS, permits=3), c.AcquireLock("read", "bob", MANY_MS, mode="shared"))
    told.entry(c.AcquireLock("lock/1", "bob", MANY_MS, WAIT_MS, session_id=second), request_id=b"waits")
    told.entry(c.AcquireLocks(("lock/2", "lock/3"), "cyd", MANY_MS, WAIT_MS))
    _resources_and_copies(told)
    _tasks_and_tokens(told)
    told.now_ms += 1_000
    told.entry(c.Sweep(100))
    told.entry(c.BreakLock("pool"), c.ReleaseLease("file/3", "client 3"), c.ReleaseLease("file/4", "nobody"))
    return told.machine


def _resources_and_copies(told: Told) -> None:
    for space in ("default", "b"):
        ids = tuple(f"r{number}" for number in range(12))
        told.entry(c.PutResources(ids, "disk", "file", safety_buffer_ms=0, pinned=True), namespace=space)
        told.entry(c.PutEdges(ids[:5], ids[1:6]), c.PutEdges((ids[5],), (ids[0],), "orphan"), namespace=space)
        (joined,) = told.entry(s.RegisterCopy("r9", "h1"), namespace=space)
        told.entry(s.RegisterCopy("r8", "h1", None, joined.holder_token), namespace=space)
        told.entry(s.RegisterCopy("r8", "h2"), namespace=space)
        told.entry(*(c.DeleteResource(name, force=True) for name in ids[7:]), namespace=space)
        told.entry(namespace=space)
        told.clean_up(space, ("b", "default"))
        told.entry(c.DeleteResource("r6", force=True), namespace=space)


def _tasks_and_tokens(told: Told) -> None:
    told.entry(RULES, namespace="b")
    told.entry(RULES)
    new = [t.NewTask(b"x" * number, number % 3, number % 2 * 100, f"key {number}") for number in range(12)]
    told.entry(t.PutTasks("q", tuple(new)), request_id=b"tasks")
    told.entry(t.PutTasks("q", (t.NewTask(b"", 9, 0, "", "task lock", "r1"),)))
    told.entry(t.AcquireTasks(("q",), "w1", 3), t.AcquireTasks(("q",), "w2", 1), request_id=b"taken")
    told.entry(t.PutShards("q", ("s1", "s2", "s3")), t.BeatWorker("q", "w1", 0, 0, leaving=False))
    told.entry(a.CreateToken("t1", bytes(32), "ops", (a.Scope("*", "admin"),)))
    told.entry(a.CreateToken("t2", bytes(range(32)), "ann", (a.Scope("b", "write", "p/"),), True, MANY_MS))
    told.entry(a.RotateToken("t2", bytes(32), 5_000), a.NoteAction("member.add", "n4", "begun"))


DRAWN: dict[str, tuple[Callable[[int, int], Recorded], int]] = {
    "locks": (locks, 320), "graph": (graph, 420), "tasks": (tasks, 320), "copies": (copies, 260),
    "memory": (memory, 260),
}  # fmt: skip
"""How each is made, and in how many steps."""


def write(directory: Path, seeds: range) -> None:
    directory.mkdir(exist_ok=True)
    last = everything()
    told = {"everything": last.history()}
    for name, (make, steps) in DRAWN.items():
        told |= {f"{name} {seed}": make(seed, steps).history() for seed in seeds}
    (directory / "level1.histories").write_bytes(zlib.compress(msgpack.packb(told), 9))
    (directory / "format6.snapshot").write_bytes(last.snapshot())


if __name__ == "__main__":
    print(f"writing down what {Path(coordinator.__file__).parent} does")
    write(Path(sys.argv[1]), range(int(sys.argv[2]) if len(sys.argv) > 2 else 2))
