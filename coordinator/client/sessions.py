"""Sessions: one heartbeat keeps every lock and lease that belongs to it, and they end with it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from coordinator.client import clock
from coordinator.client.acquisitions import Acquisition
from coordinator.client.amounts import milliseconds, seconds
from coordinator.client.body import Body
from coordinator.client.calls import Answer
from coordinator.client.errors import HoldfastError, LockBusy, LockLost, NotHeld, SessionLost, denied
from coordinator.client.lease import Lease, Owner
from coordinator.client.leases import MAX_LOOKUP, held
from coordinator.client.lock import LONG_WAIT_S, Mode, State, confirmed_at
from coordinator.client.turns import Turn

if TYPE_CHECKING:
    from coordinator.client.client import Client


class Session(Owner):
    def __init__(self, client: Client, session_id: str, ttl_s: float, confirmed: float) -> None:
        super().__init__(ttl_s, confirmed, client.drift)
        self._client, self.session_id = client, session_id
        self._ended = False
        self._over_at = -math.inf
        """Once it is closed: when it is over at the latest, unless the cluster was heard to end it."""
        self._event = asyncio.Event()
        self._on_lost: list[Callable[[Session], None]] = []
        self._holds: dict[SessionHeld, None] = {}
        self._unseen: list[Lease] = []
        """Leases that are still to be looked at, before all are again."""

    @property
    def state(self) -> State:
        return "RELEASED" if self._ended else super().state

    @property
    def valid_for(self) -> float:
        """Seconds for which the cluster counts on it, whatever happens from now on. Never below 0."""
        return 0.0 if self._ended else super().valid_for

    @property
    def stands(self) -> bool:
        """Whether the cluster may have it: closed, it may until it was heard to end it, or its time is over."""
        return clock.now() < self._over_at if self._ended else super().stands

    def check(self) -> None:
        """Raises SessionLost unless it is HELD."""
        if self.state != "HELD":
            raise SessionLost(f"the session is {self.state}: {self.lost_because or self.trouble}", code="session_lost")

    def on_lost(self, callback: Callable[[Session], None]) -> None:
        """Called once with the session when it is lost, or its client closed; at once if it is already."""
        if self.lost_because:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._on_lost.append(callback)

    async def wait_lost(self) -> str:
        """Returns when it is lost, or closed, with the reason."""
        await self._event.wait()
        return self.lost_because or "it was closed"

    async def close(self) -> None:
        """Ends it, and all that belongs to it. If no node was heard to, it is ended later, and this raises why."""
        if self._ended:
            return
        alive, limit_s = self.stands, self.last_s
        self._client.keeper.remove(self)
        self._ended = True
        if alive:
            self._over_at = clock.now() + self.ttl_s  # a heartbeat may be on its way
        self._event.set()
        for lease in list(self.members.values()):
            self._client.leases.let_go(lease)
        self.doubt()
        try:
            if alive:
                path = f"/sessions/{self.session_id}"
                await self._client.returns.ask("DELETE", path, timeout=limit_s, worth_it=lambda: self.stands)
                self._over_at = -math.inf
        finally:
            self._end_turns()

    def _end_turns(self) -> None:
        """What it held is nobody's any more: others of this client may ask for it."""
        for hold in self._holds:
            hold.end_turn()

    def lose(self, reason: str) -> None:
        if self.lost_because or self._ended:
            return
        super().lose(reason)
        self._end_turns()
        self._event.set()
        for callback in self._on_lost:
            asyncio.get_running_loop().call_soon(callback, self)

    async def renew(self, limit_s: float) -> None:
        asked = clock.now()
        await self._client.calls.call("POST", f"/sessions/{self.session_id}/heartbeat", timeout=limit_s)
        self.confirm(asked)
        with contextlib.suppress(HoldfastError):
            await self._look_after_locks(limit_s / 2)
            await self._look_after_leases(limit_s / 2)

    async def _look_after_locks(self, limit_s: float) -> None:
        """A lock that an administrator broke is gone, and its session lives on: only a look at it tells."""
        holds = [hold for hold in self._holds if not hold.lost_because]
        for start in range(0, len(holds), MAX_LOOKUP):
            piece = holds[start : start + MAX_LOOKUP]
            for hold, active in zip(piece, await self._active(piece, limit_s), strict=True):
                if not active and hold in self._holds:
                    hold.lose("it was broken by an administrator, or released elsewhere")

    async def _look_after_leases(self, limit_s: float) -> None:
        """So is one that was revoked, or whose resource is gone. There may be many: some at a time, each in its turn.

        One that was released here and acquired anew meanwhile is another one, of which the answer says nothing.
        """
        if not self._unseen:
            self._unseen = list(self.members.values())
        piece = self._unseen[-MAX_LOOKUP:]
        if not piece:
            return
        for lease, active in zip(piece, await self._active(piece, limit_s), strict=True):
            if not active and self.members.get(int(lease.lease_id, 16)) is lease:
                lease.lose("the cluster has ended it: it was revoked or released elsewhere, or its resource is gone")
        del self._unseen[-len(piece) :]

    async def _active(self, held: Sequence[SessionHeld | Lease], limit_s: float) -> list[bool]:
        asked = {"lease_ids": [each.lease_id for each in held]}
        answer = await self._client.calls.call("POST", "/leases/lookup", asked, timeout=limit_s)
        return [seen["state"] == "ACTIVE" for seen in answer.body["leases"]]

    def forget(self, hold: SessionHeld) -> None:
        self._holds.pop(hold, None)

    # --- what belongs to it ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """Who asks for something in its name is told at once that it is over: it is lost then, with all it owns."""
        try:
            yield
        except NotHeld as error:
            if error.code in ("unknown_session", "session_expired"):
                self.lose(str(error))
            raise

    async def acquire_lease(self, resource_id: str, *, timeout: float | None = None) -> Lease:
        with self._noticing():
            return await self._client.leases.acquire(resource_id, self.ttl_s, session=self, timeout=timeout)

    async def acquire_leases(
        self, resource_ids: Sequence[str], *, tokens: bool = False, timeout: float | None = None
    ) -> list[Lease]:
        with self._noticing():
            return await self._client.leases.acquire_many(
                resource_ids, self.ttl_s, tokens=tokens, session=self, timeout=timeout
            )

    def lease(self, resource_id: str, *, timeout: float | None = None) -> AbstractAsyncContextManager[Lease]:
        return held(self.acquire_lease, resource_id, timeout=timeout)

    @contextlib.asynccontextmanager
    async def lock(
        self,
        key: str,
        *,
        wait: float | None = None,
        mode: Mode = "exclusive",
        permits: int = 1,
        lock_delay: float = 0.0,
        reentrant: bool = False,
    ) -> AsyncIterator[SessionHeld]:
        """As `client.lock`, but kept by the session: the body is cancelled when the session is in doubt.

        Its client is the holder, and of a semaphore has one permit at most. Tasks that want the same lock take turns,
        except those that say `reentrant`.
        """
        hold = await self.acquire_lock(
            key, wait=wait, mode=mode, permits=permits, lock_delay=lock_delay, reentrant=reentrant
        )
        if hold.state != "HELD":
            # The session came into doubt while it was waited for: the body must not even begin.
            why = hold.why()
            with contextlib.suppress(HoldfastError):
                await hold.release()
            raise LockLost(why, code="lock_lost")
        body = Body()
        hold.on_doubt(body.cancel)
        lost, error = False, None
        try:
            yield hold
            lost = hold.state != "HELD"
        except asyncio.CancelledError as cancelled:
            error = cancelled
        finally:
            body.left, why = True, hold.why()
            try:
                with contextlib.suppress(HoldfastError):
                    await hold.release()
            except asyncio.CancelledError as late:
                if not body.cancelled:
                    raise
                error = error or late
            finally:
                by_another = body.cancelled_by_another()
        if error is not None and (by_another or not body.cancelled):
            raise error
        if lost or error is not None:
            raise LockLost(why, code="lock_lost") from error

    async def acquire_lock(
        self,
        key: str,
        *,
        wait: float | None = None,
        mode: Mode = "exclusive",
        permits: int = 1,
        lock_delay: float = 0.0,
        reentrant: bool = False,
    ) -> SessionHeld:
        """Held until it is released or the session ends. LockBusy when `wait` seconds were not enough."""
        body: dict[str, Any] = {
            "session_id": self.session_id, "mode": mode, "permits": permits, "lease_time_ms": round(self.ttl_s * 1000),
            "lock_delay_ms": milliseconds("lock_delay", lock_delay),
        }  # fmt: skip
        until = None if wait is None else clock.now() + seconds("wait", wait)
        if reentrant:
            return await self._granted(key, body, until)
        try:
            turn = await self._client.turns.take(key, shared=mode == "shared", wait_s=wait)
        except TimeoutError:
            message = f"{key} was not free within {wait:g} s; another task of {self._client.client_id} has it"
            raise LockBusy(message, code="lock_held", details={"holder": self._client.client_id}) from None
        try:
            hold = await self._granted(key, body, until)
        except BaseException:
            turn.end()
            raise
        hold.turn = turn
        if self.lost_because or self._ended:
            turn.end()
        return hold

    async def _granted(self, key: str, body: dict[str, Any], until: float | None) -> SessionHeld:
        begun, over = clock.now(), False
        while True:
            left_s = LONG_WAIT_S if until is None else max(0.0, until - begun)
            piece = min(LONG_WAIT_S, round(left_s, 3))
            asked = self._client.acquisitions.begin((key,), body, piece, lambda: self._client.client_id)
            answer = await self._asked(asked)
            if answer is not None and answer.status != 409:
                hold = SessionHeld(self, key, answer.body["fencing_token"], answer.body["lease_id"])
                self._holds[hold] = None
                return hold
            begun = clock.now()
            error = {"code": "lock_held", "message": f"{key} is not free"} if answer is None else answer.body["error"]
            if error["code"] != "lock_held":
                raise denied(409, error)
            # What was granted earlier and is over by now says nothing of the lock: it is asked once more.
            if until is not None and begun >= until - 0.001 and (over or answer is not None):
                raise LockBusy(error["message"], code="lock_held", details=answer.body if answer is not None else None)
            over = answer is None

    async def _asked(self, acquisition: Acquisition) -> Answer | None:
        """None: it was granted to an attempt whose answer was lost, and is over."""
        try:
            with self._noticing():
                return await self._client.acquisitions.ask(acquisition)
        except NotHeld as error:
            if error.code != "not_holder":
                raise
            return None

    async def release_lock(self, key: str, token: int) -> None:
        """Not only tried: what is left over is held for as long as the session is, and by nobody."""
        await self._client.returns.give_back(
            self._client.client_id, key, token, timeout=self.last_s, worth_it=lambda: self.stands
        )


class SessionHeld:
    """One hold of one lock, as valid as its session."""

    def __init__(self, session: Session, key: str, token: int, lease_id: str) -> None:
        self._session, self.key, self.token, self.lease_id = session, key, token, lease_id
        self.lost_because = ""
        self.turn: Turn | None = None
        self._released = False
        self._on_doubt: Callable[[], None] | None = None

    @property
    def state(self) -> State:
        if self.lost_because:
            return "LOST"
        return "RELEASED" if self._released else self._session.state

    @property
    def valid_for(self) -> float:
        return 0.0 if self._released or self.lost_because else self._session.valid_for

    def check(self) -> None:
        """Raises LockLost unless it is HELD: to be called before what must not be done without the lock."""
        if self.state != "HELD":
            raise LockLost(self.why(), code="lock_lost")

    def why(self) -> str:
        if self.lost_because:
            return f"{self.key} is lost: {self.lost_because}"
        reason = self._session.lost_because or self._session.trouble
        return f"{self.key} is {self.state} with its session: {reason}"

    def on_doubt(self, callback: Callable[[], None]) -> None:
        """Called when it, or its session, is in doubt or lost."""
        self._on_doubt = callback
        self._session.on_doubt(callback)

    def lose(self, reason: str) -> None:
        self.lost_because = self.lost_because or reason
        self._session.forget(self)
        self.end_turn()
        if self._on_doubt is not None:
            self._on_doubt()

    def end_turn(self) -> None:
        """Whoever of the same client waits for it may ask the cluster now."""
        if self.turn is not None:
            self.turn.end()

    async def release(self) -> None:
        self._session.forget(self)
        if self._on_doubt is not None:
            self._session.off_doubt(self._on_doubt)
        try:
            if not self._released:
                alive = self.state in ("HELD", "SUSPENDED")
                if self.state == "LOST":
                    self.lost_because = self.lost_because or self._session.lost_because or self._session.trouble
                self._released = True
                if alive:
                    await self._session.release_lock(self.key, self.token)
        finally:
            self.end_turn()


async def opened(client: Client, ttl: float, timeout: float | None = None) -> Session:
    body = {"client_id": client.client_id, "ttl_ms": milliseconds("ttl", ttl)}
    answer = await client.calls.call("POST", "/sessions", body, timeout=timeout)
    session = Session(client, answer.body["session_id"], ttl, confirmed_at(answer, ttl))
    client.keeper.add(session)
    return session


@contextlib.asynccontextmanager
async def session(client: Client, ttl: float) -> AsyncIterator[Session]:
    """A session for the length of a body. The body goes on when it is lost; SessionLost is raised at its end."""
    open_session = await opened(client, ttl)
    try:
        yield open_session
        lost = open_session.state == "LOST"
    finally:
        with contextlib.suppress(HoldfastError):
            await open_session.close()
    if lost:
        reason = open_session.lost_because or open_session.trouble
        raise SessionLost(f"the session was lost: {reason}", code="session_lost")
