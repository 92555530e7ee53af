"""Simulated programs that use the SDK: locks, sessions, leases, watches and queues, over HTTP, on bad wires. What else
they do is in `sdkgraph`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from coordinator.client import (
    Client,
    Compacted,
    Conflict,
    LeaseLost,
    LockBusy,
    LockLost,
    NotHeld,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
)
from coordinator.client.sessions import Session
from coordinator.client.tasks import Task
from coordinator.client.worker import Worker
from tests.checkers.every_event import EventLog, EveryEvent, Told
from tests.checkers.linearizable import Operation
from tests.checkers.one_body import Body, OneBody
from tests.checkers.violation import Violation
from tests.sim.guarded import Guarded
from tests.sim.loop import pass_time
from tests.sim.programs import Program
from tests.sim.sdkgraph import GraphBook, GraphUser
from tests.sim.wires import Wires
from tests.sim.world import World

KEYS = ("k0", "k1", "s0")
"""The last one is locked by sessions."""
RESOURCES = ("r0", "r1")
QUEUE = "jobs"
RULES = {"lease": 1.0, "heartbeat": 0.25, "hold_down": 0.0, "back_off": 0.05, "max_attempts": 1_000}
PREFIXES = ("", "k", QUEUE)
TTLS_S = (0.6, 1.2, 3.0)
PATIENCE_S = 8.0
TIMEOUT_S = 4.0
LITTLE_S = 0.5
"""Who has so little time is often not told what became of what it asked for, and asks again."""
EXPECTED = (LockBusy, LockLost, SessionLost, LeaseLost, NotHeld, OutcomeUnknown, Unavailable)
"""What may become of a call while things go wrong. Anything else is a finding."""


@contextlib.contextmanager
def _left_over() -> Iterator[None]:
    """What this client could not give back is still there, under a session that it has given up."""
    try:
        yield
    except Conflict as error:
        if error.code != "session_mismatch":
            raise


class Hold(Protocol):
    """What both kinds of lock give to a body."""

    @property
    def token(self) -> int: ...
    @property
    def valid_for(self) -> float: ...
    def check(self) -> None: ...


class User:
    """One client over all the lives of its program: one deed after the other, a watch and a worker beside them."""

    def __init__(self, load: SdkLoad, number: int) -> None:
        self._load, self._number, self.name = load, number, f"c{number}"
        self._rng = random.Random(load.world.rng.getrandbits(64))
        self._life = 0
        self.program: Program | None = None
        self.seen = EveryEvent(load.events, self.name, PREFIXES[number % len(PREFIXES)])
        self._prefix = PREFIXES[number % len(PREFIXES)]
        self._place: dict[str, Any] = {"from_revision": 1}
        self.graph = GraphUser(load.graph, self, number, self._rng)
        self.served = self.finished = False
        """It did everything once in peace; it has closed its client."""

    # --- what is done to it ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._life += 1
        load = self._load
        rate = 1 + load.drift * self._rng.choice((-1, 1, self._rng.uniform(-1, 1)))
        address = f"10.2.0.{self._number + 1}"
        self.program = Program(load.world, load.wires, self.name, address, rate, self._rng.uniform(0, 10_000))
        self._spawn(self._live(self.program))

    def stop(self, seconds: float) -> bool:
        if self.program is None:
            return False
        self._load.count("stopped")
        self.program.stop(seconds)
        return True

    def go_on(self) -> None:
        if self.program is not None:
            self.program.go_on()

    def kill(self, down_s: float, *, silently: bool) -> bool:
        if self.program is None:
            return False
        self._load.count("killed")
        self.program.die(silently=silently)
        self._load.one_body.died(self.client_id)
        self.program = None
        self._load.world.at(down_s, self.start)
        return True

    @property
    def client_id(self) -> str:
        return f"{self.name}.{self._life}"

    @property
    def running(self) -> bool:
        return self._load.running

    @property
    def closing(self) -> bool:
        return self._load.closing

    def _spawn(self, doing: Any) -> asyncio.Task[Any]:
        assert self.program is not None
        with self.program.loop.running():
            task = self.program.loop.create_task(doing)
        task.add_done_callback(lambda done: None if done.cancelled() else done.result())
        return task

    @property
    def left(self) -> list[str]:
        """What there is of a program that has closed its client."""
        if self.program is None:
            return []
        wires = self._load.wires.open_at(self.program.place)
        return self.program.loop.left + [f"{wires} connections"] * (wires > 0)

    # --- life -----------------------------------------------------------------------------------------------------

    async def _live(self, program: Program) -> None:
        load = self._load
        timeout_s = LITTLE_S if load.running and self._number == 0 else TIMEOUT_S
        client = Client(load.endpoints, client_id=self.client_id, timeout=timeout_s)
        client.calls.new_connector = program.connector
        async with client:
            watching = self._spawn(self._watch(client))
            worker = client.worker(QUEUE, self._handle, concurrency=2, worker_id=self.client_id, grace=1.0)
            working = self._spawn(self._work(client, worker)) if self._number % 2 else None
            beside = [watching, *map(self._spawn, self.graph.beside(client))]
            await self._do_deeds(client)
            self.served = True
            while not load.closing:
                await pass_time(0.1)
            worker.drain()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside if working is None else [*beside, working])
        self.finished = True

    async def _do_deeds(self, client: Client) -> None:
        graph = self.graph
        deeds = (
            self._use_lock, self._use_session, self._use_lease, self._enqueue,
            graph.use_family, graph.cut_family, graph.keep_copy,
        )  # fmt: skip
        while self._load.running:
            await pass_time(self._rng.expovariate(self._load.rate))
            (deed,) = self._rng.choices(deeds, (10, 3, 2, 8, 5, 2, 4))
            await self._done(deed, client)
        for deed in deeds:
            while not await self._done(deed, client):
                await pass_time(0.1)

    async def _done(self, deed: Callable[[Client], Awaitable[None]], client: Client) -> bool:
        what = deed.__name__.strip("_")
        try:
            await deed(client)
        except (Conflict, *EXPECTED) as error:
            # What it could not give back is still there, under a session that it has given up.
            if not isinstance(error, EXPECTED) and error.code != "session_mismatch":
                raise
            self._load.count(f"{what}: {type(error).__name__}")
            self._load.world.note(self.name, what, f"{type(error).__name__} {error}"[:120])
            return False
        self._load.count(f"{what} done")
        return True

    # --- locks, sessions, leases ----------------------------------------------------------------------------------

    async def _use_lock(self, client: Client) -> None:
        key, ttl_s, wait_s = self._rng.choice(KEYS[:2]), self._rng.choice(TTLS_S), self._patience_s()
        while True:
            try:
                with self._load.acquiring(client.client_id, key) as granted:
                    async with client.lock(key, ttl_s, wait=wait_s) as held:
                        granted(held.token)
                        await self._body(client, key, held, ttl_s)
                return
            except OutcomeUnknown:
                if not self._load.running:
                    raise
                self._load.count("use_lock: OutcomeUnknown")  # and asked again in the same words

    def _patience_s(self) -> float:
        return self._rng.choice((0.0, 0.3, 2.0)) if self._load.running else PATIENCE_S

    async def _use_session(self, client: Client) -> None:
        load, ttl_s = self._load, self._rng.choice(TTLS_S[1:])
        async with client.session(ttl_s) as session:
            async with session.lease(self._rng.choice(RESOURCES)):
                await pass_time(self._rng.uniform(0, 0.2))
            waits_s = self._rng.choice(((), (), (None, 0.0, 0.0, 0.0)))
            rivals = [self._spawn(self._rival(client, session, wait_s)) for wait_s in waits_s]
            try:
                with load.acquiring(client.client_id, KEYS[2]) as granted:
                    async with session.lock(KEYS[2], wait=self._patience_s()) as held:
                        granted(held.token)
                        await self._body(client, KEYS[2], held, ttl_s)
            finally:
                await asyncio.gather(*rivals)

    async def _rival(self, client: Client, session: Session, wait_s: float | None) -> None:
        """Another task of the program wants what its session locks: at once, or after those that came before."""
        for _ in range(8 if wait_s is None else 40):
            with contextlib.suppress(*EXPECTED), _left_over():
                async with session.lock(KEYS[2], wait=wait_s) as held:
                    with self.inside(KEYS[2], client.client_id, held):
                        await asyncio.sleep(0)
                        self._load.count("rivals inside")
            if wait_s is not None:
                await pass_time(self._rng.uniform(0, 0.004))

    async def _use_lease(self, client: Client) -> None:
        ttl_s = self._rng.choice(TTLS_S)
        async with client.lease(self._rng.choice(RESOURCES), ttl=ttl_s) as lease:
            for _ in range(self._rng.choice((1, 3))):
                await pass_time(self._rng.uniform(0, ttl_s))
                self._promised("lease", int(lease.lease_id, 16), lease.valid_for)
                lease.check()

    async def _body(self, client: Client, key: str, held: Hold, ttl_s: float) -> None:
        with self.inside(key, client.client_id, held) as step:
            for _ in range(self._rng.choice((1, 2, 4))):
                await pass_time(self._rng.uniform(0, 0.3))
                if self._load.running and self._rng.random() < 0.1:
                    self.stop(self._rng.uniform(0.2, 2 * ttl_s))
                    await asyncio.sleep(0)
                step()
                held.check()
                await self._write(key, held.token, client.client_id)
                step()

    @contextlib.contextmanager
    def inside(self, key: str, client_id: str, held: Hold) -> Iterator[Callable[[], None]]:
        program, one_body = self.program, self._load.one_body
        assert program is not None
        body = Body(key, client_id, held.token, lambda: program.awake)
        one_body.entered(body)
        self._load.world.note(self.name, "enters", f"{key} token={held.token} for {held.valid_for:.3f} s")

        def step() -> None:
            one_body.step(body, held.valid_for)
            self._promised(key.partition(" ")[0] if " " in key else "lock", held.token, held.valid_for)

        try:
            step()
            yield step
        finally:
            one_body.left(body)
            self._load.world.note(self.name, "leaves", f"{key} token={held.token}")

    def _promised(self, kind: str, number: int, valid_for_s: float) -> None:
        if self.program is not None and valid_for_s > 0:
            self._load.promise(kind, number, self._load.world.now + valid_for_s / self.program.clock.rate)

    async def _write(self, key: str, token: int, client_id: str) -> None:
        """To what the lock protects, which is some way off."""
        load, loop = self._load, asyncio.get_running_loop()
        answered = loop.create_future()

        def arrive() -> None:
            load.count("admitted" if load.guarded.write(key, token, client_id) else "fenced off")
            loop.call_soon(lambda: None if answered.done() else answered.set_result(None))

        load.world.at(self._rng.uniform(0.0, 0.02) if self._rng.random() < 0.9 else self._rng.uniform(0, 2), arrive)
        await answered

    # --- queues ---------------------------------------------------------------------------------------------------

    async def _enqueue(self, client: Client) -> None:
        if not self._load.queue_made:
            await client.queues.put(QUEUE, **RULES)
            self._load.queue_made = True
        payload = self._load.new_payload()
        self._load.enqueued(payload, (await client.queues.enqueue(QUEUE, payload)).task_id)

    async def _work(self, client: Client, worker: Worker) -> None:
        while not self._load.queue_made:
            await pass_time(0.1)
        await worker.run()

    async def _handle(self, task: Task) -> None:
        self._load.handed_out(task.payload, task.task_id)
        with self.inside(f"task {task.task_id}", self.client_id, task) as step:
            await pass_time(self._rng.uniform(0, 0.3))
            if self._load.running and self._rng.random() < 0.05:
                self.stop(self._rng.uniform(0.2, 3.0))
                await asyncio.sleep(0)
            step()
            task.check()
            await self._write(f"task {task.task_id}", task.token, self.client_id)
            self._load.handled(task.payload)

    # --- watching -------------------------------------------------------------------------------------------------

    async def _watch(self, client: Client) -> None:
        while True:
            try:
                watch = client.watch(prefix=self._prefix, patience=PATIENCE_S, **self._place)
                async with contextlib.aclosing(watch) as events:
                    async for event in events:
                        self.seen.hear(Told(event.id, event.kind, event.key, event.owner))
                        self._place = {"after": event.id}
            except Compacted as gone:
                self._load.count("watch compacted")
                self.seen.begins_at(gone.revision)
                self._place = {"from_revision": gone.revision}
            except EXPECTED as error:
                self._load.count(f"watch: {type(error).__name__}")


class SdkLoad:
    def __init__(self, world: World, wires: Wires, *, clients: int, rate: float, drift: float) -> None:
        self.world, self.wires, self.rate, self.drift = world, wires, rate, drift
        names = [f"n{number + 1}" for number in range(len(world.first_members) + 2)]
        self.endpoints = [f"http://{name}:7100" for name in names]
        """Also of two nodes that may come later."""
        self.running = self.closing = self.queue_made = False
        self.history: list[Operation] = []
        self.outcomes: Counter[str] = Counter()
        self.guarded, self.one_body, self.events = Guarded(), OneBody(), EventLog()
        self.promised_s: dict[tuple[str, int], float] = defaultdict(float)
        """Until when, in the world's time, somebody was told that nobody else can have it."""
        self.granted_s: dict[int, float] = {}
        """When, by the log."""
        self.expired: set[tuple[str, int]] = set()
        self._told: set[tuple[str, int]] = set()
        self._task_ids: dict[int, str] = {}
        self._payloads = 0
        self._taken_in: set[int] = set()
        self._handled: set[int] = set()
        self.graph = GraphBook(world)
        self.users = [User(self, number) for number in range(clients)]

    def start(self) -> None:
        self.running = True
        for user in self.users:
            user.start()

    def count(self, what: str) -> None:
        self.outcomes[what] += 1

    def promise(self, kind: str, number: int, until_s: float) -> None:
        if (kind, number) in self.expired and until_s > self.world.now:
            told = f"its client counts on it until {until_s:.4f} s"
            raise Violation(
                "no_early_expiry", f"{kind} {number} has expired by {self.world.now:.4f} s, and {told} (I4)"
            )
        self.promised_s[kind, number] = max(self.promised_s[kind, number], until_s)

    @contextlib.contextmanager
    def acquiring(self, client: str, key: str) -> Iterator[Callable[[int], None]]:
        """One wait for a lock, in the history. Who holds it already, by an answer that was lost, enters it again, or is
        told of it now: that is no grant, for the log has it earlier, and it is there with what nobody was told of."""
        operation = Operation(client, key, "acquire", (), self.world.now)

        def granted(token: int) -> None:
            operation.returned, operation.result = self.world.now, ("granted", token)
            if (key, token) in self._told or self.granted_s[token] < operation.called:
                self.count("got back")
                operation.verb, operation.result = "read", ("held", client, token)
            self._told.add((key, token))
            self.history.append(operation)

        try:
            yield granted
        except LockBusy:
            operation.returned, operation.result = self.world.now, ("busy",)
            self.history.append(operation)
            raise

    # --- tasks ----------------------------------------------------------------------------------------------------

    def new_payload(self) -> int:
        self._payloads += 1
        return self._payloads

    def enqueued(self, payload: int, task_id: str) -> None:
        """Its user was told so; perhaps it is done by then."""
        self._one_task(payload, task_id)
        self._taken_in.add(payload)

    @property
    def longest_s(self) -> float:
        """What closing a client may wait for: a call to its end, and the same to give tasks back."""
        return 4 * TIMEOUT_S

    @property
    def unhandled(self) -> set[int]:
        return self._taken_in - self._handled

    def handed_out(self, payload: int, task_id: str) -> None:
        self._one_task(payload, task_id)

    def _one_task(self, payload: int, task_id: str) -> None:
        known = self._task_ids.setdefault(payload, task_id)
        if known != task_id:
            raise Violation("one_effect", f"what was put in once is in the queue twice: {known} and {task_id}")

    def handled(self, payload: int) -> None:
        self.count("tasks handled")
        self._handled.add(payload)
