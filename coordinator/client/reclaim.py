"""A worker that cleans up what a provider's resources leave behind, as long as it runs.

The claim on a clean-up is renewed while its handler runs. When half of its time passed without a confirmation the
handler is cancelled: by the time another worker gets it, this one has stopped. Doing one twice must still do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.client import clock
from coordinator.client.calls import new_request_id
from coordinator.client.errors import Denied, HoldfastError, TooMuch, is_remembered
from coordinator.client.keeper import ATTEMPT_AT, MIN_ATTEMPT_S, Kept

if TYPE_CHECKING:
    from coordinator.client.client import Client

POLL_S = 20.0
PAUSE_S = 1.0
MAX_REASON = 1_024

_log = logging.getLogger("holdfast.client")


@dataclass(frozen=True, slots=True)
class ReclaimItem:
    """One clean-up. `token` grows with every claim of it: what it deletes may refuse a lower one."""

    reclaim_id: str
    resource_id: str
    kind: str
    token: int
    attempt: int
    age_ms: int


Handler = Callable[[ReclaimItem], Awaitable[None]]


class _Claim(Kept):
    def __init__(self, worker: ReclaimWorker, item: ReclaimItem, claim_s: float, confirmed: float) -> None:
        super().__init__(claim_s, confirmed, worker.drift)
        self._worker, self.item = worker, item

    async def renew(self, limit_s: float) -> None:
        asked = clock.now()
        await self._worker.tell("renew", self.item, limit_s, claim_ms=round(self.ttl_s * 1000))
        self.confirm(asked)


class ReclaimWorker:
    def __init__(
        self,
        client: Client,
        provider: str,
        handler: Handler,
        *,
        kinds: Sequence[str] | None = None,
        concurrency: int = 4,
        worker_id: str | None = None,
        claim: float = 30.0,
        grace: float = 5.0,
    ) -> None:
        self._client, self._handler, self.drift = client, handler, client.drift
        self.worker_id = worker_id or client.client_id
        self._concurrency, self._claim_s, self._grace_s = concurrency, claim, grace
        self._asked: dict[str, Any] = {
            "provider": provider,
            "worker_id": self.worker_id,
            "claim_ms": round(claim * 1000),
            "kinds": list(kinds or ()),
        }
        self._running: set[asyncio.Task[None]] = set()
        self._handling: set[asyncio.Future[None]] = set()
        self._unanswered: dict[str, Any] | None = None
        self._stopping = False

    async def run(self) -> None:
        """Until cancelled. Then what is at work has `grace` seconds to end, and the rest is given back."""
        try:
            while True:
                free = self._concurrency - len(self._running)
                if not free:
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for claim in await self._claimed(free):
                    self._start(self._work(claim))
        finally:
            self._stopping = True
            await self._stop()

    # --- claiming -------------------------------------------------------------------------------------------------

    async def _claimed(self, most: int) -> list[_Claim]:
        """Nothing when there was nothing, or nobody could say: then the same is asked again."""
        if self._unanswered is None:
            self._unanswered = {**self._asked, "max": most, "request_id": new_request_id()}
        try:
            claims = await self._ask(POLL_S)
        except TooMuch as error:
            _log.warning("clean-ups of %s: %s", self._asked["provider"], error)
            claims = []
            await asyncio.sleep(PAUSE_S * random.uniform(0.2, 1.0))  # it was answered at once, and would be again
        except Denied as refusal:
            if is_remembered(refusal):  # else an earlier try of it may be granted yet, and is given back at the end
                self._unanswered = None
            raise
        except HoldfastError as error:
            if self._client.calls.closed:
                raise
            _log.warning("clean-ups of %s could not be claimed: %s", self._asked["provider"], error)
            await asyncio.sleep(PAUSE_S * random.uniform(0.2, 1.0))
            return []
        self._unanswered = None
        return claims

    async def _ask(self, wait_s: float) -> list[_Claim]:
        body = {**(self._unanswered or {}), "wait_ms": round(wait_s * 1000)}
        request_id = str(body.pop("request_id"))
        answer = await self._client.calls.call(
            "POST", "/reclaims/claim", body, waits=wait_s, request_id=request_id, timeout=self._client.calls.timeout
        )
        items = [ReclaimItem(**{name: item[name] for name in ReclaimItem.__slots__}) for item in answer.body["items"]]
        # Repeated, an answer may be of a claim that was granted long before this attempt left.
        left_s = answer.body["claim_left_ms"] / 1000
        if items and left_s <= 0:
            _log.warning("clean-ups of %s are left to others: their claim ran out unheard", self._asked["provider"])
            return []
        confirmed = answer.sent + min(0.0, left_s - self._claim_s)
        return [_Claim(self, item, self._claim_s, confirmed) for item in items]

    # --- working --------------------------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, claim: _Claim) -> None:
        limit_s = max(MIN_ATTEMPT_S, ATTEMPT_AT * self._claim_s)
        if clock.now() - claim.confirmed > ATTEMPT_AT * self._claim_s:
            # It was handed out some time after it was asked for, or before. Only a renewal tells how long it is ours.
            try:
                await claim.renew(limit_s)
            except HoldfastError as error:
                _log.warning("the clean-up of %s is left to others: %s", claim.item.resource_id, error)
                return
            if claim.state != "HELD":
                _log.warning("the clean-up of %s is left to others: it was renewed too late", claim.item.resource_id)
                return
        handling = asyncio.ensure_future(self._handler(claim.item))
        self._handling.add(handling)
        self._client.keeper.add(claim)
        claim.on_doubt(handling.cancel)  # type: ignore[arg-type]
        try:
            await asyncio.wait({handling})
            await self._settle(claim, handling)
        finally:
            handling.cancel()
            self._handling.discard(handling)
            self._client.keeper.remove(claim)

    async def _settle(self, claim: _Claim, handling: asyncio.Future[None]) -> None:
        item = claim.item
        if handling.cancelled() and claim.state != "HELD":
            _log.warning("the clean-up of %s was stopped: %s", item.resource_id, claim.lost_because or claim.trouble)
            return
        try:
            if handling.cancelled():
                await self._give_back(item)
            elif (error := handling.exception()) is not None:
                reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
                await self.tell("nack", item, None, reason=reason)
            else:
                await self.tell("ack", item, None)
        except HoldfastError as error:
            _log.warning("the clean-up of %s could not be reported: %s", item.resource_id, error)

    async def _give_back(self, item: ReclaimItem) -> None:
        reason = "the worker stopped" if self._stopping else "the handler was cancelled"
        await self.tell("nack", item, None, reason=reason, retry_in_ms=0)

    async def tell(self, what: str, item: ReclaimItem, limit_s: float | None, **more: Any) -> None:
        body = {"worker_id": self.worker_id, "reclaim_id": item.reclaim_id, "token": item.token, **more}
        await self._client.calls.call("POST", f"/reclaims/{what}", body, timeout=limit_s)

    # --- stopping -------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        unheard = asyncio.ensure_future(self._return_unheard())
        waiting: set[asyncio.Future[None]] = {unheard, *self._running}
        try:
            await asyncio.wait(waiting, timeout=self._grace_s)
            for handling in list(self._handling):
                handling.cancel()
            await asyncio.wait(waiting, timeout=self._client.calls.timeout)
        finally:
            for task in waiting:
                task.cancel()

    async def _return_unheard(self) -> None:
        """What a claim got whose answer was not waited for goes to others at once, not when the claim runs out."""
        if self._unanswered is not None:
            with contextlib.suppress(HoldfastError):
                for claim in await self._ask(0.0):
                    await self.tell("return", claim.item, None)
