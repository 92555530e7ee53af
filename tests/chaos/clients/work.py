"""What every client has: the SDK, where it writes, and a note of everything that it was told."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from coordinator.client import Client, Denied, HoldfastError, Lease, OutcomeUnknown, TooMuch, Unavailable, clock
from tests.chaos.records import Recorder
from tests.chaos.store import Store

T = TypeVar("T")
PAUSE_S = 0.2


@dataclass
class Work:
    """`settle`: nothing new is begun, what is held is kept. `stop`: it is over."""

    name: str
    client: Client
    recorder: Recorder
    store: Store
    settle: asyncio.Event
    stop: asyncio.Event
    directory: Path
    rng: random.Random = field(default_factory=random.Random)

    async def pause(self, seconds: float, until: asyncio.Event | None = None) -> None:
        """Shorter when it is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (until or self.stop).wait()

    def acknowledged(self, kind: str) -> None:
        self.recorder.note("acknowledged", kind=kind)

    @contextlib.contextmanager
    def telling(self, kind: str) -> Iterator[None]:
        """An error of the SDK is what it told, and noted; the client goes on."""
        began = clock.now()
        try:
            yield
        except HoldfastError as error:
            self._told(kind, error, began)

    async def until_done(self, kind: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Asked again until somebody answers; None when that is no, or it is over. For what may be repeated."""
        while not self.stop.is_set():
            began = clock.now()
            try:
                answer = await ask()
            except HoldfastError as error:
                self._told(kind, error, began)
                if isinstance(error, Denied) and not isinstance(error, TooMuch):
                    return None
            else:
                self.acknowledged(kind)
                return answer
            await self.pause(PAUSE_S)
        return None

    def _told(self, kind: str, error: HoldfastError, began: float) -> None:
        """`failed`: nobody answered. `refused`: the answer was no, or what was held is lost."""
        what = "failed" if isinstance(error, Unavailable | OutcomeUnknown) and not was_refused(error) else "refused"
        self.recorder.note(what, kind=kind, error=type(error).__name__, began=began, text=str(error))


def was_refused(error: HoldfastError) -> bool:
    """The answer was no, be it to the last of several tries, which alone does not tell what became of the others."""
    return isinstance(error, Denied) or isinstance(error.__cause__, Denied)


class Promises:
    """Until when the SDK has said of each lease that the cluster counts on it."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self.until: dict[str, float] = {}

    def follow(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        self.look()

    def leave(self, lease: Lease) -> None:
        self._leases.pop(lease.lease_id, None)

    def look(self) -> None:
        for lease_id, lease in self._leases.items():
            now = clock.now()
            if (left_s := lease.valid_for) > 0:
                self.until[lease_id] = max(self.until.get(lease_id, 0.0), now + left_s)

    async def keep_looking(self, work: Work) -> None:
        while not work.stop.is_set():
            self.look()
            await work.pause(PAUSE_S)
