"""A lock that is held only while it is known to be held.

Renewal runs in a task of its own, every third of the lease time. Ownership counts from when the request that confirmed
it was *sent*. When half of the lease time has passed without a confirmation, the body is cancelled: it has the other
half to end before the cluster may grant the lock to anybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from coordinator.client import clock
from coordinator.client.calls import Answer
from coordinator.client.errors import Denied, HoldfastError, LockBusy, LockLost, NotHeld
from coordinator.client.stall import StallGuard

if TYPE_CHECKING:
    from coordinator.client.client import Client

State = Literal["HELD", "SUSPENDED", "LOST", "RELEASED"]
Mode = Literal["exclusive", "shared"]

RENEW_AT = 1 / 3
DOUBT_AT = 1 / 2
LONG_WAIT_S = 600.0
"""The longest wait the cluster takes at once. One without a limit goes to the end of the queue after that."""


class Held:
    """One hold of one lock (or of several, acquired together)."""

    def __init__(
        self, client: Client, keys: tuple[str, ...], tokens: dict[str, int], ttl_s: float, answer: Answer
    ) -> None:
        self._client, self.keys, self.tokens, self._ttl_s = client, keys, tokens, ttl_s
        self._confirmed = self._valid_until = 0.0
        self._confirm([answer])
        self._lost_because = ""
        self._released = False

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
        return 0.0 if self._lost_because or self._released else max(0.0, self._valid_until - clock.now())

    @property
    def state(self) -> State:
        if self._released:
            return "RELEASED"
        if self._lost_because or clock.now() >= self._valid_until:
            return "LOST"
        return "SUSPENDED" if clock.now() >= self._confirmed + DOUBT_AT * self._ttl_s else "HELD"

    def check(self) -> None:
        """Raises LockLost unless it is HELD: to be called before what must not be done without the lock."""
        if self.state != "HELD":
            raise LockLost(self._why(), code="lock_lost")

    def _why(self) -> str:
        return self._lost_because or f"ownership of {self.key} was not confirmed for half of its {self._ttl_s:g} s"

    async def verify(self) -> bool | None:
        """Whether the cluster says that the tokens are the holder's now; None: it could not be asked."""
        try:
            bodies = [{"lock_key": key, "fencing_token": token} for key, token in self.tokens.items()]
            answers = [await self._client.call("POST", "/fencing/check", body) for body in bodies]
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

    async def renew(self) -> None:
        """Confirms ownership for another lease time. NotHeld: somebody else has it, or may have it."""
        left = max(0.05, self._valid_until - clock.now())
        try:
            answers = [
                await self._client.call_renew(key, token, self._ttl_s, left) for key, token in self.tokens.items()
            ]
        except NotHeld as error:
            self._lost_because = str(error)
            raise
        self._confirm(answers)

    def _confirm(self, answers: list[Answer]) -> None:
        """An answer counts from when it was asked for, and for what was left then: it may be of an earlier attempt."""
        ends = [answer.sent + answer.body["ttl_ms"] / 1000 for answer in answers]
        self._confirmed = min(ends) - self._ttl_s
        self._valid_until = clock.valid_until(self._confirmed, self._ttl_s)

    async def release(self) -> None:
        """Gives it back, if it is still held: by its token, so never somebody else's."""
        self._released = True
        for key, token in self.tokens.items():
            with contextlib.suppress(Denied):
                await self._client.call_release(key, token)


class Lock:
    """`async with client.lock("key", ttl=10) as held:`"""

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
        session_id: str | None = None,
    ) -> None:
        self._client, self._keys, self._ttl_s, self._wait = client, keys, ttl, wait
        self._asked: dict[str, Any] = {
            "lease_time_ms": round(ttl * 1000),
            "mode": mode,
            "permits": permits,
            "lock_delay_ms": round(lock_delay * 1000),
        }
        if session_id is not None:
            self._asked["session_id"] = session_id
        self._held: Held | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None
        self._cancelled_by_us = False

    async def acquire(self) -> Held:
        """Waits in the cluster's queue, first in, first out; LockBusy when `wait` seconds were not enough."""
        until = None if self._wait is None else clock.now() + self._wait
        while True:
            piece = LONG_WAIT_S if until is None else min(LONG_WAIT_S, max(0.0, until - clock.now()))
            held = await self._client.call_acquire(self._keys, self._asked, piece, self._ttl_s)
            if isinstance(held, Held):
                return held
            if until is not None and clock.now() >= until - 0.001:
                holder = held.get("holder")
                who = f" {holder} has it" if holder else ""
                raise LockBusy(
                    f"{self._keys[0]} was not free within {self._wait:g} s;{who}", code="lock_held", details=held
                )

    async def __aenter__(self) -> Held:
        self._held = await self.acquire()
        self._body = asyncio.current_task()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(self._held))
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, keeper = self._held, self._keeper
        if held is None or keeper is None:
            return
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
        lost = held.state in ("LOST", "SUSPENDED")
        # Past its validity there is nothing to give back, and who could not confirm it will hardly reach anybody.
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(min(held.valid_for, self._ttl_s / 10) if lost else held.valid_for):
                await held.release()
        if self._cancelled_by_us:
            # Our own cancellation ends here, as LockLost; another's, that came on top, goes on.
            if self._body is not None and self._body.uncancel() == 0 and kind is asyncio.CancelledError:
                raise LockLost(held._why(), code="lock_lost") from error
        elif kind is None and lost:
            raise LockLost(held._why(), code="lock_lost")

    async def _keep(self, held: Held) -> None:
        while True:
            await asyncio.sleep(max(0.0, held.next_renewal - clock.now()))
            renewal = asyncio.ensure_future(held.renew())
            try:
                async with asyncio.timeout(max(0.0, held.in_doubt_at - clock.now())):
                    await renewal
            except (TimeoutError, HoldfastError):
                renewal.cancel()
                if clock.now() < held.in_doubt_at and not held._lost_because:
                    continue
                self._cancelled_by_us = True
                if self._body is not None:
                    self._body.cancel()
                return
