"""A lock that is held only while it is known to be held.

Renewal runs in a task of its own, every third of the lease time. Ownership counts from when the request that confirmed
it was *sent*. When half of the lease time has passed without a confirmation, the body is cancelled: it has the other
half to end before the cluster may grant the lock to anybody else. Until then a renewal that fails is tried again, at
any node and after short pauses: an outage costs no lock if it is over a pause before, so one of up to a sixth of the
lease time, less an eighth of that, whenever it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from coordinator.client import clock
from coordinator.client.acquisitions import look
from coordinator.client.amounts import milliseconds, seconds
from coordinator.client.body import Body
from coordinator.client.calls import FIRST_PAUSE_S, MAX_PAUSE_S, Answer
from coordinator.client.entries import Entries
from coordinator.client.errors import HoldfastError, LockBusy, LockLost, NotHeld
from coordinator.client.identity import client_of
from coordinator.client.stall import StallGuard

if TYPE_CHECKING:
    from coordinator.client.client import Client

T = TypeVar("T")
State = Literal["HELD", "SUSPENDED", "LOST", "RELEASED"]
Mode = Literal["exclusive", "shared"]

RENEW_AT = 1 / 3
DOUBT_AT = 1 / 2
LAST_AT = 1 / 10
MAX_LAST_S = 1.0
"""How long giving back what is in doubt may take: who could not confirm it is hardly heard."""
AGAIN_AT = 1 / 24
"""The pause after a renewal that was refused for another reason than that it is not held."""
LONG_WAIT_S = 600.0
"""The longest wait the cluster takes at once. One without a limit goes to the end of the queue after that."""


class Held:
    """One hold of one lock (or of several, acquired together). `holder`: whose it is, as the cluster tells others."""

    def __init__(
        self, client: Client, holder: str, keys: tuple[str, ...], tokens: dict[str, int], ttl_s: float, answer: Answer
    ) -> None:
        self._client, self.holder, self.keys, self.tokens, self._ttl_s = client, holder, keys, tokens, ttl_s
        self._confirmed = self._valid_until = 0.0
        self._confirm([answer])
        self._lost_because = self._doubted_because = ""
        self.released = self._let_go = False
        self._renewals: asyncio.Task[None] | None = None
        self._in_doubt, self._over = asyncio.Event(), asyncio.Event()
        self._on_lost: list[Callable[[Held], None]] = []

    @property
    def key(self) -> str:
        return self.keys[0]

    @property
    def token(self) -> int:
        """The fencing token: what the lock protects must refuse any lower one."""
        return self.tokens[self.keys[0]]

    @property
    def valid_for(self) -> float:
        """Seconds for which nobody else can have been granted it, whatever happens from now on. Never below 0."""
        return 0.0 if self._lost_because or self.released else max(0.0, self._valid_until - clock.now())

    @property
    def state(self) -> State:
        if self._lost_because:
            return "LOST"  # also when it was given back after that
        if self.released:
            return "RELEASED"
        if clock.now() >= self._valid_until:
            return "LOST"
        return "SUSPENDED" if self._in_doubt.is_set() or clock.now() >= self.in_doubt_at else "HELD"

    def check(self) -> None:
        """Raises LockLost unless it is HELD: to be called before what must not be done without the lock."""
        if self.state != "HELD":
            raise LockLost(self._why(), code="lock_lost")

    def _why(self) -> str:
        silence = f"ownership of {self.key} was not confirmed for half of its {self._ttl_s:g} s"
        return self._lost_because or self._doubted_because or (f"{self.key} was released" if self.released else silence)

    async def verify(self) -> bool | None:
        """Whether the cluster says that the tokens are the holder's now; None: it could not be asked."""
        try:
            bodies = [{"lock_key": key, "fencing_token": token} for key, token in self.tokens.items()]
            answers = await together([self._client.call("POST", "/fencing/check", body) for body in bodies])
        except HoldfastError:
            return None
        return all(answer["current"] for answer in answers)

    def guard(self, work: float) -> StallGuard:
        """`async with held.guard(work=2.0):` around work of two seconds that a pause must not carry past the lease."""
        return StallGuard(self, self._client.stalls, work)

    # --- renewal --------------------------------------------------------------------------------------------------

    @property
    def next_renewal(self) -> float:
        return self._confirmed + RENEW_AT * self._ttl_s

    @property
    def in_doubt_at(self) -> float:
        return self._confirmed + DOUBT_AT * self._ttl_s

    async def renew(self, limit_s: float | None = None) -> None:
        """Confirms ownership for another lease time. NotHeld: somebody else has it, or may have it.

        `limit_s`: how long that may take; by default, until ownership is in doubt. It is done without being called,
        for blocks and for what was acquired. Once they were told that it is in doubt, it stays so: LockLost.
        """
        if self._in_doubt.is_set():
            raise LockLost(self._why(), code="lock_lost")
        left_s = max(0.05, self.in_doubt_at - clock.now()) if limit_s is None else limit_s
        try:
            answers = await together(
                [
                    self._client.call_renew(self.holder, key, token, self._ttl_s, left_s)
                    for key, token in self.tokens.items()
                ]
            )
        except NotHeld as error:
            self._lost_because = str(error)
            raise
        self._confirm(answers)

    def _confirm(self, answers: list[Answer]) -> None:
        """An answer counts from when it was asked for, and for what was left then: it may be of an earlier attempt."""
        self._confirmed = min(confirmed_at(answer, self._ttl_s) for answer in answers)
        left_s = min(answer.sent + answer.body["ttl_ms"] / 1000 for answer in answers) - self._confirmed
        self._valid_until = clock.valid_until(self._confirmed, left_s, self._client.drift)

    async def release(self) -> None:
        """Gives it back, if it is still held: by its token, so never somebody else's. A second time it does nothing."""
        if self.released:
            return
        lost = self.state in ("LOST", "SUSPENDED")
        if lost:
            self._lost_because = self._why()
        self.released = True
        self._over.set()
        self.let_go()
        with contextlib.suppress(*((HoldfastError, TimeoutError) if lost else ())):
            async with asyncio.timeout(min(LAST_AT * self._ttl_s, MAX_LAST_S) if lost else None):
                await together([self._give_back(key, token) for key, token in self.tokens.items()])

    async def _give_back(self, key: str, token: int) -> None:
        """Also when nobody waits for it any more: whoever comes next need not wait for its end."""
        until = self._valid_until
        await self._client.returns.give_back(
            self.holder, key, token, timeout=None, worth_it=lambda: clock.now() < until
        )

    # --- kept -----------------------------------------------------------------------------------------------------

    def on_lost(self, callback: Callable[[Held], None]) -> None:
        """Called once with the hold when it is in doubt, half of its time before another can have it; at once if it is
        already. Never after it was released."""
        if self._in_doubt.is_set():
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._on_lost.append(callback)

    async def wait_lost(self) -> str:
        """Returns when it is in doubt, lost, or released, with the reason."""
        await self._over.wait()
        return self._why()

    def keep(self) -> asyncio.Task[None]:
        """Renews it from a task of its own, which ends when ownership is in doubt, or it is released."""
        renewals = self._renewals = asyncio.get_running_loop().create_task(self._renew_in_time())
        self._client.kept.add(renewals)
        renewals.add_done_callback(self._renewed_no_more)
        return renewals

    def let_go(self) -> None:
        """Renews it no more; nobody is told."""
        self._let_go = True
        if self._renewals is not None and self._renewals is not asyncio.current_task():
            self._renewals.cancel()

    def _renewed_no_more(self, renewals: asyncio.Task[None]) -> None:
        """However it ended: whoever works under a lock that nobody keeps must not go on."""
        self._client.kept.discard(renewals)
        if self._let_go:
            return
        if renewals.cancelled():
            self._doubted_because = f"nobody renews {self.key} any more: its client is closed"
        self._in_doubt.set()
        self._over.set()
        for callback in self._on_lost:
            asyncio.get_running_loop().call_soon(callback, self)

    async def _renew_in_time(self) -> None:
        """Returns when ownership is in doubt."""
        while True:
            await asyncio.sleep(max(0.0, self.next_renewal - clock.now()))
            try:
                async with asyncio.timeout(max(0.0, self.in_doubt_at - clock.now())):
                    await self.renew()
            except (TimeoutError, HoldfastError):
                left_s = self.in_doubt_at - clock.now()
                if left_s <= 0 or self._lost_because:
                    return
                await asyncio.sleep(min(left_s, AGAIN_AT * self._ttl_s))


def confirmed_at(answer: Answer, ttl_s: float) -> float:
    """From when `ttl_s` of what was granted count: from when it was asked for, or before, if less of them was left.

    Never later, though more may be left of a hold that was taken up: what is asked for is how often it is renewed.
    """
    left_s: float = answer.body["ttl_ms"] / 1000
    return answer.sent + min(0.0, left_s - ttl_s)


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Their answers, when all are there, or what one of them raised; at once, if that is that it is not held."""
    tasks = [asyncio.get_running_loop().create_task(call) for call in calls]
    waiting = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if isinstance(task.exception(), NotHeld):
                    task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Entered:
    """One block."""

    held: Held
    renewals: asyncio.Task[None]
    body: Body


class Lock:
    """`async with client.lock("key", ttl=10) as held:` Tasks may share it: each block has a hold of its own.

    Where a block does not fit: `held = await lock.acquire()`, and `await lock.release()`.
    """

    def __init__(
        self,
        client: Client,
        keys: tuple[str, ...],
        ttl: float,
        *,
        wait: float | None = None,
        mode: Mode = "exclusive",
        permits: int = 1,
        lock_delay: float = 0.0,
        reentrant: bool = False,
    ) -> None:
        self._client, self._keys, self._ttl_s, self._reentrant = client, keys, ttl, reentrant
        self._wait = None if wait is None else seconds("wait", wait)
        self._asked: dict[str, Any] = {
            "lease_time_ms": milliseconds("ttl", ttl),
            "mode": mode,
            "permits": permits,
            "lock_delay_ms": milliseconds("lock_delay", lock_delay),
        }
        self._inside = Entries[_Entered](asyncio.current_task)
        self._acquired: list[tuple[object, Held]] = []

    async def acquire(self, wait: float | Literal["as made"] | None = "as made") -> Held:
        """Waits in the cluster's queue, first in, first out; LockBusy when `wait` seconds were not enough.

        `wait`: as in `client.lock`, whose is the default; 0 does not wait at all. It is renewed until it is released.
        No body is cancelled when it is in doubt: `held.check()`, `held.on_lost` and `held.wait_lost` tell.
        """
        held = await self._granted(self._wait if wait == "as made" else wait)
        held.keep()
        self._acquired = [*self._unreleased(), (asyncio.current_task(), held)]
        return held

    async def release(self) -> None:
        """Gives back what was acquired last, by this task if it did. LockLost: it was in doubt, or lost, before that.

        NotHeld: nothing that was acquired by this object is left.
        """
        left = self._unreleased()
        own = [held for who, held in left if who is asyncio.current_task()] or [held for _, held in left]
        await self.give_back(own[-1] if own else None)

    async def give_back(self, held: Held | None) -> None:
        """What was acquired: see `release`."""
        if held is None:
            raise NotHeld(f"{self._keys[0]} was not acquired by this object, or is released", code="not_acquired")
        if await self._give_back(held):
            raise LockLost(held._why(), code="lock_lost")

    def _unreleased(self) -> list[tuple[object, Held]]:
        return [(who, held) for who, held in self._acquired if not held.released]

    async def locked(self) -> bool:
        """Whether anybody holds it now, or one of several keys: this client or another."""
        for key in self._keys:
            if (await look(self._client.calls, key))["holders"]:
                return True
        return False

    def _holder(self) -> str:
        return self._client.client_id if self._reentrant else self._client.holds.new()

    async def _granted(self, wait: float | None) -> Held:
        wait = None if wait is None else max(0.0, seconds("wait", wait))
        until = None if wait is None else clock.now() + wait
        piece, asked, again = LONG_WAIT_S if wait is None else min(LONG_WAIT_S, wait), None, False
        pause_s = FIRST_PAUSE_S
        while True:
            begun = clock.now()
            holder = self._holder if asked is None else lambda name=asked.holder: name
            asked = self._client.acquisitions.begin(self._keys, self._asked, piece, holder)
            answer = await self._client.call_acquire(asked, self._ttl_s)
            if isinstance(answer, Held):
                if answer.state == "HELD":
                    return answer
                await self._give_back(answer)  # it was confirmed too late: no body may begin under it
                answer = {}
            elif not answer:
                asked = None  # what is left of it is being given back by its name: it must not be entered again
            elif asked.goes_on:
                answer = {}
            # What was granted earlier and is over by now, or was refused then, says nothing of the lock: it is asked
            # once more.
            if until is not None and clock.now() >= until - 0.001 and (answer or again):
                holder_now = answer.get("holder")
                who = f" {client_of(holder_now)} has it" if holder_now else ""
                raise LockBusy(
                    f"{self._keys[0]} was not free within {wait:g} s;{who}", code="lock_held", details=answer
                )
            again = not answer
            if answer and clock.now() < begun + piece / 2:
                # Whoever has one of several keys itself is not let wait for the others: that is how deadlocks begin.
                left_s = piece if until is None else until - clock.now()
                await asyncio.sleep(max(0.0, min(pause_s * random.uniform(0.5, 1.0), left_s)))
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            if until is not None:
                piece = min(LONG_WAIT_S, max(0.0, until - clock.now()))

    async def __aenter__(self) -> Held:
        held = await self._granted(self._wait)
        body = Body()
        renewals = held.keep()
        renewals.add_done_callback(lambda _: body.cancel() if held._in_doubt.is_set() else None)
        self._inside.put(_Entered(held, renewals, body))
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._inside.take()
        held, renewals, body = entered.held, entered.renewals, entered.body
        body.left = True
        held.let_go()
        cancelled = kind is asyncio.CancelledError
        try:
            await asyncio.wait((renewals,))
        except asyncio.CancelledError:
            cancelled = True  # it came on the way out; whose it is, is seen below
        try:
            lost = await self._give_back(held)
        finally:
            by_another = body.cancelled_by_another()
        if by_another:
            if cancelled and kind is not asyncio.CancelledError:
                raise asyncio.CancelledError
        elif not renewals.cancelled() and (mistake := renewals.exception()) is not None:
            raise mistake
        elif lost and (kind is None or (cancelled and body.cancelled)):
            raise LockLost(held._why(), code="lock_lost") from error

    async def _give_back(self, held: Held) -> bool:
        """Whether it was lost. Past its validity there is nothing to give back."""
        lost = held.state in ("LOST", "SUSPENDED")
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(held.valid_for):
                await held.release()
        return lost
