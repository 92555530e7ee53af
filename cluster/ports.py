"""What the cluster asks of the world, and what it answers.

Everything outside the log's own logic (time, chance, files, sockets, threads and the state machine) comes in
through the Protocols below, so that the simulator runs the same code that production runs. Each port states
its ordering duty: who must be called before whom, and what is durable afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

Message = dict[str, Any]
"""One peer-to-peer message: a flat dict of msgpack types with a `type` key."""
Entry = tuple[bytes, int, int]
"""(command, index, term), as the log keeps it."""


# --- outcomes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """The command is applied here and durable on a majority. `result` is what the state machine answered."""

    index: int
    now_ms: int
    result: Any


@dataclass(frozen=True, slots=True)
class Denied:
    """The command did not enter the log and never will. Sending it again is safe."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The command may or may not be applied, now or later. Repeat it only under the same request id."""

    code: str
    message: str


Outcome = Committed | Denied | Unknown


# --- membership -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member:
    """One node of the cluster: its stable id, its addresses, and whether its vote counts."""

    id: str
    peer: str
    http: str
    voter: bool = True
    since: int = 0
    """The index of the entry that added it; 0 for those the cluster began with."""


# --- the state machine ----------------------------------------------------------------------------------------


class Frozen(Protocol):
    """A state as it was at one index. Read from another thread while the machine moves on."""

    def chunks(self) -> Iterator[bytes]:
        """The whole state as bytes, in pieces of any size."""


class StateMachine(Protocol):
    """Deterministic: the same calls in the same order give the same results and the same `freeze()` bytes."""

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> Sequence[Any]:
        """One log entry: one result a command, in order. Called once an index, in order, on every node.

        An exception here is a bug, not an answer: the node stops rather than diverge.
        """

    def freeze(self) -> Frozen:
        """A view of the current state that later `apply` calls do not change. Must return quickly."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the whole state by one that `freeze` wrote."""


class NodeTooOld(Exception):
    """Raised by `apply` and `restore`: only a newer release than this node's can go on. The text says the fix."""


@runtime_checkable
class Levelled(Protocol):
    """What a state machine says if its rules change from one release to the next."""

    @property
    def level(self) -> int:
        """By whose rules it goes: part of the replicated state, and never less than before."""

    @property
    def known_level(self) -> int:
        """Up to which level this node knows the rules; the same for as long as it runs."""


class SnapshotPort(Protocol):
    """Snapshots, as the engine asks for them: what takes the place of the library's serializer."""

    def finished(self) -> tuple[str, int]:
        """('idle' | 'busy' | 'done' | 'failed', id given to `begin`). 'done' and 'failed' are told once."""

    def begin(self, last: Entry, prev: Entry, snapshot_id: int) -> None: ...

    def load(self) -> tuple[Entry, Entry]:
        """Restore the machine from the newest snapshot; (last, prev)."""

    def next_chunk(self, peer: str) -> tuple[bytes, bool, bool] | None: ...

    def accept(self, chunk: tuple[bytes, bool, bool] | None) -> bool: ...

    def cancel(self, peer: str) -> None: ...


# --- time, chance, threads ------------------------------------------------------------------------------------


class Clock(Protocol):
    """A clock that never steps and also counts while the host sleeps (CLOCK_BOOTTIME)."""

    def now(self) -> float:
        """Seconds since some fixed moment of this process."""


class Random(Protocol):
    """The part of `random.Random` the cluster draws from."""

    def random(self) -> float: ...

    def getrandbits(self, k: int, /) -> int: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Runs callbacks on the one thread that owns the node."""

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...

    def run_in_background(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run `work` off the thread, then `done(error or None)` on it. At most a few at a time."""


# --- disk -----------------------------------------------------------------------------------------------------


class File(Protocol):
    """One open file. Offsets are explicit; a write is durable only after the next `fdatasync` returns."""

    def pread(self, size: int, offset: int) -> bytes: ...

    def pwrite(self, data: bytes, offset: int) -> None:
        """Writes all of `data` or raises OSError (short writes are continued)."""

    def fdatasync(self) -> None: ...

    def reserve(self, size: int) -> None:
        """Make it that long, if it is not, with zeros: writing there later is no growing, which takes longer to sync.
        OSError if there is no room, and then nothing has changed that matters."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """The file system. A new name or a rename is durable only after `sync_directory` on its directory."""

    def make_directory(self, path: str) -> None: ...

    def names(self, directory: str) -> list[str]:
        """Sorted names of the files in `directory`."""

    def create(self, path: str) -> File:
        """A new empty file, truncating any older one of that name."""

    def open(self, path: str) -> File:
        """An existing file, for reading and writing. FileNotFoundError if there is none."""

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def lock(self, path: str) -> Lock:
        """Exclusive for as long as this process lives; raises BlockingIOError if another holds it."""

    def free_bytes(self, path: str) -> int: ...


# --- network --------------------------------------------------------------------------------------------------


class Receiver(Protocol):
    """What a transport calls, always on the node's thread."""

    def on_message(self, peer: str, message: Message) -> None: ...

    def on_connected(self, peer: str) -> None: ...

    def on_disconnected(self, peer: str) -> None: ...


class Transport(Protocol):
    """Authenticated links to the other nodes: at most one a peer, FIFO while it lasts, lossy across links."""

    def start(self, receiver: Receiver) -> None:
        """Begin to listen and dial. No callback before this."""

    def set_peers(self, peers: Mapping[str, str]) -> None:
        """The ids and `host:port` addresses that may be linked; links to any other id are closed."""

    def send(self, peer: str, message: Message) -> bool:
        """Hand over to the link now; False if there is no link. Nothing is retried."""

    def buffered_bytes(self, peer: str) -> int:
        """What was handed over and has not left this process yet; 0 without a link."""

    def close(self) -> None: ...
