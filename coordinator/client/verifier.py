"""Whether a client has a lease, answered from memory: for providers, who ask before they serve each request.

The leases are listed once and followed by a watch from before the listing on. That alone would not do: a node that is
cut off from the others goes on saying that nothing happens. So the cluster is asked how far it is, by a read that only
a majority can answer, and what is known counts from when that was asked, once the watch has come as far. When that is
longer ago than `ttl`, the answer is no.

A lease counts until the cluster has ended it: released, or expired and swept. Its provider learns of it after that, at
most `ttl` later; give that much to whoever cleans up as the resource's safety buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from coordinator.client import clock
from coordinator.client.errors import Compacted, HoldfastError, NotHeld
from coordinator.client.watch import Event, revision, watch

if TYPE_CHECKING:
    from coordinator.client.client import Client

ASK_AT = 1 / 4
LAGGING_AT = 1 / 2
PAGE = "1000"
KINDS = ("lease_acquired", "lease_released", "lease_expired")
MIN_PROGRESS_MS, MAX_PROGRESS_MS = 100, 2_000


class LeaseVerifier:
    """`async with LeaseVerifier(client, "tmp/", ttl=10) as verifier:` knows all leases on ids with that prefix.

    Entered, it is complete. `ttl` is how old what it knows may become: no more than the leases' own time.
    """

    def __init__(self, client: Client, prefix: str = "", *, ttl: float = 10.0) -> None:
        self._client, self._prefix, self._ttl_s = client, prefix, ttl
        self._holders: dict[str, dict[str, str]] = {}
        """Lease ids by client by resource."""
        self._coming = self._holders
        """What the watch changes: another one while leases are being listed."""
        self._ended: set[str] | None = None
        """While leases are being listed: those that ended meanwhile."""
        self._place, self._reached = "", 0
        self._progress = asyncio.Event()
        self._sure_until = self._heard = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    # --- answers ------------------------------------------------------------------------------------------------------

    def check(self, resource_id: str, client_id: str) -> bool:
        """Whether the client has a lease on it, for all that is known; False also when too little is known."""
        holders = self._holders.get(resource_id)
        return holders is not None and client_id in holders and clock.now() < self._sure_until

    def require(self, resource_id: str, client_id: str) -> None:
        if not self.check(resource_id, client_id):
            known = "" if self.fresh else "; the cluster was not heard for too long to know"
            raise NotHeld(f"{client_id} has no lease on {resource_id}{known}", code="unknown_lease")

    @property
    def fresh(self) -> bool:
        return clock.now() < self._sure_until

    @property
    def age(self) -> float:
        """Seconds since what is known was known to be all."""
        return clock.now() - self._heard

    def last_seen_leased(self, resource_id: str) -> bool:
        """Whether anybody had a lease on it when the cluster was last heard, however long ago; True if it never was."""
        return resource_id in self._holders or not self._heard

    def __len__(self) -> int:
        """Leases."""
        return sum(map(len, self._holders.values()))

    # --- how it is known ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> LeaseVerifier:
        await self._begin()
        self._asking = asyncio.get_running_loop().create_task(self._ask())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for task in (self._asking, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sure_until = 0.0

    async def _begin(self) -> None:
        """Watch first, then list: whatever happens meanwhile is in one of the two."""
        self._place = str(await revision(self._client))
        self._coming, self._ended = {}, set()
        self._follow()
        try:
            after: str | None = ""
            while after is not None:
                query = {"prefix": self._prefix, "limit": PAGE, **({"after": after} if after else {})}
                page = await self._client.call("GET", "/leases", query=query)
                for lease in page["leases"]:
                    if lease["lease_id"] not in self._ended:
                        self._coming.setdefault(lease["resource_id"], {})[lease["client_id"]] = lease["lease_id"]
                after = page["next"]
            await self._confirm(self._client.calls.timeout)
            self._holders = self._coming
        except BaseException:
            self._unfollow()
            raise
        finally:
            self._ended = None

    def _unfollow(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def _follow(self) -> None:
        self._unfollow()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        progress_ms = round(min(MAX_PROGRESS_MS, max(MIN_PROGRESS_MS, ASK_AT * self._ttl_s * 500)))
        while True:
            watching = watch(
                self._client, prefix=self._prefix, kinds=KINDS, after=self._place, progress_ms=progress_ms,
                told=self._told,
            )  # fmt: skip
            try:
                async with contextlib.aclosing(watching) as events:
                    async for event in events:
                        self._apply(event)
            except Compacted:
                return  # to be listed anew
            except HoldfastError:
                pass
            await asyncio.sleep(ASK_AT * self._ttl_s)

    def _told(self, place: str) -> None:
        at, dot, _ = place.partition(".")
        self._place, self._reached = place, int(at) - (1 if dot else 0)
        self._progress.set()

    def _apply(self, event: Event) -> None:
        lease_id = event.lease_id or ""
        if event.kind == "lease_acquired":
            self._coming.setdefault(event.key, {})[event.owner] = lease_id
            return
        if self._ended is not None:
            self._ended.add(lease_id)
        holders = self._coming.get(event.key, {})
        if holders.get(event.owner) == lease_id:
            del holders[event.owner]
            if not holders:
                del self._coming[event.key]

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(ASK_AT * self._ttl_s)
            try:
                if self._watching is None or self._watching.done():
                    await self._begin()
                else:
                    await self._confirm(LAGGING_AT * self._ttl_s)
            except TimeoutError:
                # The node that is watched lags behind, or is cut off. Another goes on from the same place, if what is
                # known is what the watch changes; else the leases are listed anew.
                self._client.calls.move_on()
                if self._coming is self._holders:
                    self._follow()
            except HoldfastError:
                continue

    async def _confirm(self, limit_s: float) -> None:
        """What is known is all there is as of now, once the watch has come to what a majority says is the end."""
        asked = clock.now()
        async with asyncio.timeout(limit_s):
            end = await revision(self._client)
            while self._reached < end:
                self._progress.clear()
                await self._progress.wait()
        self._heard, self._sure_until = asked, clock.valid_until(asked, self._ttl_s, self._client.drift)
