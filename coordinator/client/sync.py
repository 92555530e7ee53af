"""The same client for code without an event loop: `with SyncClient(endpoints) as client:`

A thread of its own runs the event loop with all heartbeats, at a raised priority where that is allowed. It needs the
interpreter lock for a moment at each step of a renewal. Python code that computes gives it up every
`sys.getswitchinterval()` seconds (5 ms by default), so a ttl of a second is kept easily; call
`sys.setswitchinterval(0.001)` for shorter ones. A C call that keeps the interpreter lock for longer than half of the
ttl loses the lock, as any other pause does, and `held.guard` says so: use a ttl of at least four times the longest such
call, and of forty times if they come one after another, since each step of a renewal waits for the end of one.

What runs in a `with` block cannot be cancelled from outside. So a lock is not given back before its block ends, and the
block is told of the loss, in the way it chooses:

- `held.check()` raises LockLost; `held.valid_for` tells how long nobody else can have been granted it.
- `on_lost=callback` is called in a thread of its own, once, when ownership is in doubt: half of the ttl is left.
- `interrupt=True` raises LockLost in the thread that entered the block, at its next line of Python. That is for blocks
  that only compute: it can hit any line, `finally` and `with` inside the block included, and cannot reach a C call
  before it returns. It never comes after the block has ended.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from coordinator.client.blocking import Blocking, Wrapped
from coordinator.client.blocks import Block, Interrupted
from coordinator.client.client import DEFAULT_TIMEOUT_S, Client
from coordinator.client.errors import HoldfastError, LockLost, Stalled
from coordinator.client.heartbeat_thread import HeartbeatThread, Priority
from coordinator.client.lock import Held, Lock, Mode, State
from coordinator.client.stall import Watched

P = ParamSpec("P")
T = TypeVar("T")


class SyncHeld(Wrapped):
    """One hold of a lock, as `Held`; every property may be read from any thread."""

    def __init__(self, held: Held, thread: HeartbeatThread, client: Client) -> None:
        super().__init__(held)
        self._held, self._thread, self._client = held, thread, client
        self.key, self.keys, self.token, self.tokens = held.key, held.keys, held.token, held.tokens

    @property
    def valid_for(self) -> float:
        return self._held.valid_for

    @property
    def state(self) -> State:
        return self._held.state

    def check(self) -> None:
        """Raises LockLost unless it is HELD: to be called before what must not be done without the lock."""
        self._held.check()

    def verify(self) -> bool | None:
        """Whether the cluster says that the token is the holder's now; None: it could not be asked."""
        return self._thread.run(self._held.verify())

    @contextlib.contextmanager
    def guard(self, work: float) -> Iterator[Watching]:
        """`with connection, held.guard(work=2.0):` raises Stalled out of it when a pause left too little time.

        Entered after the transaction, so left before it: what it raises rolls back. See `stall`.
        """
        self.check()
        stalls, watched = self._client.stalls, Watched(self._held, work)

        async def begin() -> None:
            stalls.add(watched)

        self._thread.run(begin())
        watching = Watching(self, watched)
        try:
            yield watching
            watching.check()
        except Stalled as stalled:
            stalled.details["current"] = self.verify()
            raise
        finally:
            stalls.remove(watched)


class Watching:
    """Work under a guard."""

    def __init__(self, held: SyncHeld, watched: Watched) -> None:
        self._held, self._watched = held, watched

    def check(self) -> None:
        """Raises Stalled after too long a pause, LockLost if the lock is not held."""
        self._held._client.stalls.tick()
        self._watched.check()


class SyncLock:
    """`with client.lock("key", ttl=10) as held:`"""

    def __init__(
        self, lock: Lock, thread: HeartbeatThread, client: Client, on_lost: Callable[[], None] | None, interrupt: bool
    ) -> None:
        self._lock, self._thread, self._client = lock, thread, client
        self._on_lost, self._interrupt = on_lost, interrupt
        self._block: Block[Held] | None = None

    def __enter__(self) -> SyncHeld:
        block = self._block = Block(self._lock, self._on_lost, interrupt=self._interrupt)
        held = SyncHeld(self._thread.enter(block), self._thread, self._client)
        block.begun()
        return held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block = self._block
        if block is None:
            return
        try:
            block.ended()
        except Interrupted as late:  # it came on the way out
            block.ended()
            error = error or late
        try:
            self._thread.run(block.leave())
        except LockLost as lost:
            if error is None or isinstance(error, Interrupted):
                raise lost from None
        # An exception of the body's own goes on.


def _waiting(
    asked: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    """A method of the async client under its own signature, for a thread that waits."""

    @functools.wraps(asked)
    def wait(client: SyncClient, /, *args: P.args, **named: P.kwargs) -> T:
        return client._thread.run(asked(client._client, *args, **named))

    return wait


class SyncClient:
    """`with SyncClient("http://127.0.0.1:7101") as client:`

    Whatever else the async client has is here under the same name: coroutines wait, `async with` is `with`, `async for`
    is `for`. `raise_priority=False` leaves the heartbeat thread's priority alone.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        client_id: str | None = None,
        namespace: str = "default",
        timeout: float = DEFAULT_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        raise_priority: bool = True,
    ) -> None:
        self._thread = HeartbeatThread(priority=raise_priority)

        async def made() -> Client:
            return Client(endpoints, client_id=client_id, namespace=namespace, timeout=timeout, headers=headers)

        try:
            self._client = self._thread.run(made())
        except BaseException:
            self._thread.close()
            raise
        self.client_id = self._client.client_id

    @property
    def priority(self) -> Priority:
        """What the heartbeat thread was allowed."""
        return self._thread.priority

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HoldfastError:
            if kind is None:
                raise

    def close(self) -> None:
        """To be called when no block is running any more; what one holds must neither be given back nor run out."""
        if self._thread.in_use:
            raise HoldfastError("a block of this client is still running: let it end, then close", code="client_in_use")
        with contextlib.suppress(HoldfastError):
            self._thread.run(self._client.close())
            self._thread.run(self._thread.quiet())
        self._thread.close()

    call = _waiting(Client.call)

    def lock(
        self,
        key: str,
        ttl: float = 10.0,
        *,
        wait: float | None = None,
        mode: Mode = "exclusive",
        permits: int = 1,
        lock_delay: float = 0.0,
        on_lost: Callable[[], None] | None = None,
        interrupt: bool = False,
    ) -> SyncLock:
        """Entered, it waits for its turn: without limit, or `wait` seconds (0: not at all), then raises LockBusy."""
        lock = self._client.lock(key, ttl, wait=wait, mode=mode, permits=permits, lock_delay=lock_delay)
        return SyncLock(lock, self._thread, self._client, on_lost, interrupt)

    def locks(
        self,
        keys: Sequence[str],
        ttl: float = 10.0,
        *,
        wait: float | None = None,
        on_lost: Callable[[], None] | None = None,
        interrupt: bool = False,
    ) -> SyncLock:
        """Several keys at once, all or none."""
        return SyncLock(self._client.locks(keys, ttl, wait=wait), self._thread, self._client, on_lost, interrupt)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Blocking(self._client, self._thread).__getattr__(name)
