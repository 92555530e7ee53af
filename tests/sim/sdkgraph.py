"""What programs do with the SDK beside locks and tasks: resources in circles and who cleans up after them, shards,
copies.

Every resource has a name of its own, so that what is cleaned up can be held against what was promised: while somebody
has a lease on one of a circle, or a pinned root leads to it, nobody may be told to clean up after any of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from coordinator.client import (
    Client,
    Conflict,
    Gone,
    LeaseLost,
    NotFound,
    NotHeld,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
)
from coordinator.client.holders import Holder
from coordinator.client.leases import Lease
from coordinator.client.reclaim import ReclaimItem
from coordinator.client.shards import ShardWorker
from coordinator.machine.events import Event
from tests.checkers.one_effect import OneEffect
from tests.checkers.violation import Violation
from tests.sim.loop import pass_time
from tests.sim.programs import Program
from tests.sim.world import World

PROVIDER = "disk"
KINDS = ("file", "row")
BUFFERS_S = (0.5, 1.5)
LEASES_S = (0.6, 1.5)
CLAIM_S = 1.5
SESSION_S = 1.5
SHARED = "shares"
SHARDS = tuple(f"part{number}" for number in range(4))
SHARE_RULES = {"lease": 3.0, "heartbeat": 1.0, "hold_down": 0.0}
SHARERS = (1, 2)
TOO_LATE = ("unknown_resource", "resource_reclaiming", "resource_dead", "tombstoned", "unknown_edge")
"""What a program is told that was stopped for longer than what it made was kept."""
FAILED = (LeaseLost, NotHeld, OutcomeUnknown, SessionLost, Unavailable)


class GraphBook:
    """What all programs together were told, and what the log says."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.effects = OneEffect()
        self.registered: dict[str, None] = {}
        """Their providers were told so."""
        self.kept: dict[str, None] = {}
        """A pinned root leads there, by what its program was told; nobody has asked for an end of that."""
        self._undecided: set[str] = set()
        self._promised_s: dict[str, float] = defaultdict(float)
        self._erased: set[int] = set()
        self._gone: set[str] = set()
        self.shards: Counter[str] = Counter()
        """Those that somebody works on."""
        self.shared = False
        self._made = 0
        self.happened: Counter[str] = Counter()

    def new_names(self, count: int) -> tuple[str, ...]:
        self._made += 1
        return tuple(f"g{self._made}/{number}" for number in range(count))

    def promise(self, names: tuple[str, ...], until_s: float) -> None:
        for name in names:
            self._promised_s[name] = max(self._promised_s[name], until_s)
            if name in self._gone and until_s > self.world.now:
                raise Violation("reachable_stays", f"{name} was cleaned up, and a lease keeps it (I6)")

    def keep(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.kept[name] = None
            if name in self._gone:
                raise Violation("reachable_stays", f"{name} was cleaned up, and a pinned root leads to it (I6)")

    def let_go(self, names: tuple[str, ...]) -> None:
        """Somebody asks for it. Whether it is done is not known before it is told."""
        for name in names:
            self.kept.pop(name, None)
            self._undecided.add(name)

    def cut(self, names: tuple[str, ...]) -> None:
        self._undecided.difference_update(names)

    def handed_out(self, item: ReclaimItem) -> None:
        name, now = item.resource_id, self.world.now
        self.happened["clean-ups handed out"] += 1
        self.effects.handed_out(int(item.reclaim_id, 16), item.token)
        if name in self.kept:
            raise Violation("reachable_stays", f"{name} is to be cleaned up, and a pinned root leads to it (I6)")
        if now < self._promised_s[name]:
            until = f"until {self._promised_s[name]:.4f} s"
            raise Violation("reachable_stays", f"{name} is to be cleaned up at {now:.4f} s, and leased {until} (I6)")
        self._gone.add(name)

    def erase(self, item: ReclaimItem) -> None:
        self._erased.add(int(item.reclaim_id, 16))

    def follow(self, event: Event) -> None:
        if event.kind == "reclaim_pending":
            self.effects.condemned(event.number, event.key)
        elif event.kind == "reclaim_done":
            self.effects.acknowledged(event.number, event.fencing_token, "ok")
            if event.number not in self._erased:
                raise Violation("one_effect", f"{event.key} counts as cleaned up, and nobody has done it (I8)")

    @property
    def uncleaned(self) -> list[str]:
        """What nothing keeps any more, and no worker was told to clean up."""
        left = self.registered.keys() - self.kept.keys() - self._undecided - self._gone
        return sorted(left.union(self.effects.unheard))


class Owner(Protocol):
    """The program that does all this."""

    name: str
    program: Program | None

    @property
    def client_id(self) -> str: ...
    @property
    def running(self) -> bool: ...
    @property
    def closing(self) -> bool: ...
    def stop(self, seconds: float) -> bool: ...
    def inside(self, key: str, client_id: str, held: Share) -> AbstractContextManager[Callable[[], None]]: ...


class Share:
    """A shard in somebody's hands."""

    def __init__(self, worker: ShardWorker, token: int) -> None:
        self._worker, self.token = worker, token

    @property
    def valid_for(self) -> float:
        return self._worker.valid_for

    def check(self) -> None:
        """It is cancelled when it must stop."""


class DiskHolder(Holder):
    """The SDK's, with its state file on the simulated disk of its program."""

    def __init__(self, file: dict[str, int], client: Client, *what: Any, **more: Any) -> None:
        super().__init__(client, *what, **more)
        self._stored = file

    def _read(self) -> None:
        self._token, self.watermark = self._stored.get("token"), self._stored.get("watermark", 0)

    def _write(self) -> None:
        if self._token is not None:
            self._stored.update(token=self._token, watermark=self.watermark)


class GraphUser:
    """One program's part in it, over all its lives. Its copies are on its disk."""

    def __init__(self, book: GraphBook, owner: Owner, number: int, rng: random.Random) -> None:
        self._book, self._owner, self._number, self._rng = book, owner, number, rng
        self._families: list[tuple[str, ...]] = []
        self._holder: Holder | None = None
        self._disk: dict[str, str] = {}
        self._file: dict[str, int] = {}
        self.name = f"copies of {owner.name}"

    def beside(self, client: Client) -> Iterator[Coroutine[Any, Any, None]]:
        """What goes on in a life, until it is cancelled."""
        self._holder = None
        if self._number % 2 == 0:
            yield client.reclaim_worker(
                PROVIDER, self._clean, concurrency=2, worker_id=client.client_id, claim=CLAIM_S, grace=1.0
            )
            yield self._hold(client)
        if self._number in SHARERS:
            yield self._share(client)

    # --- resources ------------------------------------------------------------------------------------------------

    async def use_family(self, client: Client) -> None:
        """A circle that a lease keeps for a while, and perhaps a pinned root afterwards."""
        names, ttl_s = self._book.new_names(self._rng.choice((2, 3, 5))), self._rng.choice(LEASES_S)
        try:
            async with client.lease(names[0], ttl=ttl_s) as lease:
                said = {"provider": PROVIDER, "kind": self._rng.choice(KINDS)}
                await client.resources.register_many(names, safety_buffer=self._rng.choice(BUFFERS_S), **said)
                self._book.registered.update(dict.fromkeys(names))
                await client.resources.add_edges(zip(names, (*names[1:], names[0]), strict=True))
                for _ in range(self._rng.choice((1, 2, 3))):
                    self._promise(names, lease)
                    await pass_time(self._rng.uniform(0, ttl_s / 2))
                if self._rng.random() < 0.4:
                    await self._pin(client, names)
                self._promise(names, lease)
        except (NotFound, Conflict, Gone) as error:
            if error.code not in TOO_LATE:
                raise
            self._book.happened["families that came too late"] += 1
        else:
            self._book.happened["families"] += 1

    def _promise(self, names: tuple[str, ...], lease: Lease) -> None:
        program = self._owner.program
        if program is not None and lease.valid_for > 0:
            self._book.promise(names, self._book.world.now + lease.valid_for / program.clock.rate)

    async def _pin(self, client: Client, names: tuple[str, ...]) -> None:
        root = f"root of {self._owner.name}"
        await client.resources.register(root, provider=PROVIDER, kind=KINDS[0], pinned=True)
        await client.resources.add_edge(root, names[-1])
        self._book.keep(names)
        self._families.append(names)

    async def cut_family(self, client: Client) -> None:
        if not self._families:
            return
        names = self._families.pop(0)
        self._book.let_go(names)
        try:
            await client.resources.remove_edge(f"root of {self._owner.name}", names[-1])
        except NotFound as error:
            if error.code not in TOO_LATE:
                raise
        self._book.cut(names)
        self._book.happened["families cut off"] += 1

    async def _clean(self, item: ReclaimItem) -> None:
        self._book.handed_out(item)
        await pass_time(self._rng.uniform(0, 0.3))
        if self._owner.running and self._rng.random() < 0.1:
            self._owner.stop(self._rng.uniform(0.2, 2 * CLAIM_S))
            await asyncio.sleep(0)
        if self._owner.running and self._rng.random() < 0.1:
            raise OSError("it is in use")
        self._book.erase(item)

    # --- shards ---------------------------------------------------------------------------------------------------

    async def _share(self, client: Client) -> None:
        while not self._book.shared:
            try:
                await client.queues.put(SHARED, **SHARE_RULES)
                await client.queues.put_shards(SHARED, SHARDS)
                self._book.shared = True
            except FAILED:
                await pass_time(0.1)

        async def work_on(shard: str, token: int) -> None:
            await self._work_on(worker, shard, token)

        worker = client.shard_worker(SHARED, work_on, self._let_go, worker_id=client.client_id, grace=1.0)
        await worker.run()

    async def _work_on(self, worker: ShardWorker, shard: str, token: int) -> None:
        with self._owner.inside(f"shard {shard}", self._owner.client_id, Share(worker, token)) as step:
            self._book.shards[shard] += 1
            try:
                while True:
                    await pass_time(0.2)
                    step()
            finally:
                self._book.shards[shard] -= 1

    async def _let_go(self, shard: str, token: int) -> None:
        await pass_time(self._rng.uniform(0, 0.1))

    # --- copies ---------------------------------------------------------------------------------------------------

    async def _hold(self, client: Client) -> None:
        """One is a holder for good, with a token in a file. The others are while their sessions last: who dies loses
        the token, and is let in again when the session is over."""
        while True:
            own = {"copies": lambda: dict(self._disk)}
            lasting = DiskHolder(self._file, client, self.name, self._drop, **own)
            passing = client.holder(self.name, self._drop, session_ttl=SESSION_S, **own)
            try:
                async with passing if self._number else lasting as holder:
                    self._holder = holder
                    while True:
                        await pass_time(60.0)
            except Conflict as error:
                if error.code != "holder_known" or not self._number:
                    raise
            except FAILED:
                pass
            await pass_time(0.1)

    async def _drop(self, resource_id: str, incarnation: str) -> None:
        if self._disk.get(resource_id) == incarnation:
            await pass_time(self._rng.uniform(0, 0.05))
            self._disk.pop(resource_id, None)
            self._book.happened["copies dropped"] += 1

    async def keep_copy(self, client: Client) -> None:
        holder = self._holder
        if holder is None or not holder.serving or not self._book.registered:
            return
        name = self._rng.choice(list(self._book.registered)[-8:])

        async def fetch(incarnation: str) -> None:
            await pass_time(self._rng.uniform(0, 0.1))
            self._disk[name] = incarnation

        try:
            await holder.keep(name, fetch)
        except (NotFound, Conflict, Gone) as error:
            if error.code not in TOO_LATE:
                raise
        else:
            self._book.happened["copies made"] += 1

    # --- as `no_resurrection` sees it -----------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        return self._number % 2 == 0

    @property
    def token(self) -> int | None:
        return None if self._holder is None else self._holder._token

    @property
    def serving(self) -> bool:
        program = self._owner.program
        if self._holder is None or program is None or not program.awake:
            return False
        with program.loop.running():  # it asks its own clock
            return self._holder.serving

    @property
    def copies(self) -> Mapping[str, int]:
        return {name: int(incarnation, 16) for name, incarnation in self._disk.items()}
