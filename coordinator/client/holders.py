"""A holder of copies: it registers what it copies, drops what has died, and says so; nothing dead is served for long.

A holder follows the tombstones of its namespace in the background. For each it calls `on_tombstone`, and acknowledges
when that is done; what it has not acknowledged is told again after a restart. A holder that was removed meanwhile, by
an administrator or with its session, is fenced. It does not serve until the cluster has been asked about every copy it
has, and those of what is not alive any more were dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from coordinator.client.errors import HoldfastError, NotHeld
from coordinator.client.resources import quoted
from coordinator.client.watch import revision

if TYPE_CHECKING:
    from coordinator.client.client import Client
    from coordinator.client.sessions import Session

PAGE = 1_000
PAUSE_S = 1.0
POLL_S = 15.0
"""The list is looked at so often even if the watch is silent."""

OnTombstone = Callable[[str, str], Awaitable[None] | None]
Copies = Callable[[], Mapping[str, str]]
Fetch = Callable[[str], Awaitable[None]]

_log = logging.getLogger("holdfast.client")


class NotDropped(HoldfastError):
    """`on_tombstone` failed. What it did not process is not acknowledged, and comes again."""


class Holder:
    """`client.holder(...)`"""

    def __init__(
        self,
        client: Client,
        holder_id: str,
        on_tombstone: OnTombstone,
        *,
        copies: Copies | None = None,
        state_file: str | os.PathLike[str] | None = None,
        session_ttl: float | None = None,
    ) -> None:
        self._client, self.holder_id, self._on_tombstone = client, holder_id, on_tombstone
        self._kept: dict[str, str] = {}
        self._copies: Copies = copies or (lambda: self._kept)
        self._file = None if state_file is None else Path(state_file)
        self._session_ttl = session_ttl
        self._session: Session | None = None
        self._token: int | None = None
        self.watermark = 0
        self._standing = False
        self._watches = self._watches_asked = 0
        """Begun ever; begun when it was last asked whether it is a holder: before a watch began, nobody was told."""
        self._fetching: dict[str, asyncio.Event] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # --- its life -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Holder:
        self._read()
        try:
            await self._stand()
        except BaseException:
            with contextlib.suppress(HoldfastError):
                await self._end_session()  # nobody is inside who could
            raise
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It stays a holder: tombstones wait for it, unless it has a session, which ends here."""
        await self._stop_following()
        await self._end_session()

    async def leave(self) -> None:
        """It has dropped every copy and will not be back: nothing waits for it any more."""
        # First: whoever follows would see that it was removed, and join again.
        await self._stop_following()
        if self._token is None:
            return
        query = {"holder_token": str(self._token)}
        await self._client.calls.call("DELETE", f"/holders/{quoted(self.holder_id)}", query=query)
        self._token = None
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    async def _stop_following(self) -> None:
        self._standing = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nobody follows any more, so nothing may be served.
            self._standing = False
            _log.error("holder %s follows no tombstones any more", self.holder_id, exc_info=error)

    @property
    def serving(self) -> bool:
        """Whether copies may be served: as far as it knows, it is a holder in good standing."""
        return self._standing and (self._session is None or self._session.state == "HELD")

    def check(self) -> None:
        """Raises NotHeld unless copies may be served."""
        if not self.serving:
            raise NotHeld(f"{self.holder_id} is not a holder in good standing at the moment", code="holder_fenced")

    # --- copies ---------------------------------------------------------------------------------------------------

    async def keep(self, resource_id: str, fetch: Fetch | None = None, *, timeout: float | None = None) -> str:
        """Registers a copy, then has `fetch` make it; the incarnation it is of, to be stored with it.

        While `fetch` runs a tombstone of the resource waits: so a copy is never stored after its tombstone was told.
        Gone is raised for a resource that is being reclaimed, or has died.
        """
        self.check()
        while (running := self._fetching.get(resource_id)) is not None:
            await running.wait()
        done = self._fetching[resource_id] = asyncio.Event()
        token = self._token
        try:
            incarnation = await self._registered(resource_id, timeout)
            if fetch is not None:
                await fetch(incarnation)
            self._kept[resource_id] = incarnation
        finally:
            del self._fetching[resource_id]
            done.set()
        if token != self._token or not self.serving:
            # Fenced while it was fetched: the verification may not have seen this copy.
            await self._drop(resource_id, incarnation)
            raise NotHeld(f"{self.holder_id} was fenced while it copied {resource_id}", code="holder_fenced")
        return incarnation

    async def _registered(self, resource_id: str, timeout: float | None) -> str:
        body = {"holder_id": self.holder_id, "holder_token": self._token}
        try:
            answer = await self._client.calls.call(
                "POST", f"/resources/{quoted(resource_id)}/holders", body, timeout=timeout
            )
        except NotHeld:
            self._fenced()
            raise
        return str(answer.body["incarnation"])

    async def _drop(self, resource_id: str, incarnation: str) -> None:
        running = self._fetching.get(resource_id)
        if running is not None:
            await running.wait()
        try:
            told = self._on_tombstone(resource_id, incarnation)
            if inspect.isawaitable(told):
                await told
        except Exception as error:
            message = f"the copy of {resource_id} could not be dropped: {type(error).__name__}: {error}"
            raise NotDropped(message, code="not_dropped") from error
        if self._kept.get(resource_id) == incarnation:
            del self._kept[resource_id]

    # --- standing -------------------------------------------------------------------------------------------------

    def _fenced(self) -> None:
        self._standing = False
        self._wake.set()

    async def _stand(self) -> None:
        """Makes sure that it is a holder; if it is not any more, every copy is verified or dropped first."""
        self._standing = False
        body: dict[str, Any] = {}
        if self._session_ttl is not None:
            body["session_id"] = (await self._open_session()).session_id
        if self._token is None or not await self._known(body):
            await self._verify(body)
        self._standing = True

    async def _known(self, body: Mapping[str, Any]) -> bool:
        """Whether its token counts, and it has verified all it has: asked by a page that is empty and not the last."""
        asked = {**body, "copies": [], "holder_token": self._token}
        try:
            told = (await self._client.calls.call("POST", self._verifying, asked)).body
        except NotHeld as error:
            _log.warning("holder %s: %s", self.holder_id, error)
            return False
        self.watermark = told["watermark"]
        return bool(told["verified"])

    @property
    def _verifying(self) -> str:
        return f"/holders/{quoted(self.holder_id)}/verify"

    async def _verify(self, body: dict[str, Any]) -> None:
        copies = [{"resource_id": name, "incarnation": number} for name, number in self._copies().items()]
        # The last page is an empty one: by then the token is on disk, and no answer can be lost with it.
        pages = [copies[start : start + PAGE] for start in range(0, len(copies), PAGE)] or [[]]
        for page in pages:
            told = (await self._client.calls.call("POST", self._verifying, {**body, "copies": page})).body
            if "holder_token" not in body:
                body["holder_token"] = self._token = told["holder_token"]
                self.watermark = told["watermark"]
                self._write()
            for copy in told["copies"]:
                if copy["verdict"] == "drop":
                    await self._drop(copy["resource_id"], copy["incarnation"])
        await self._client.calls.call("POST", self._verifying, {**body, "copies": [], "last": True})

    async def _open_session(self) -> Session:
        """A new one: the old one is lost, or it is not known whether it is the one the cluster knows."""
        await self._end_session()
        self._session = await self._client.open_session(self._session_ttl or 30.0)
        self._session.on_lost(lambda _: self._fenced())
        return self._session

    async def _end_session(self) -> None:
        if self._session is not None:
            await self._session.close()

    # --- following ------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            self._wake.clear()
            try:
                begun = self._watches
                if self._standing and begun != self._watches_asked:
                    self._standing = await self._known({})
                self._watches_asked = begun
                if not self.serving:
                    await self._stand()
                await self.catch_up()
            except NotHeld as error:
                _log.warning("holder %s is fenced: %s", self.holder_id, error)
                self._standing = False
                await asyncio.sleep(PAUSE_S * random.uniform(0.0, 0.1))
                continue
            except (HoldfastError, OSError) as error:
                _log.warning(
                    "holder %s could not follow tombstones: %s", self.holder_id, error, exc_info=error.__cause__
                )
                await asyncio.sleep(PAUSE_S * random.uniform(0.2, 1.0))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()

    async def catch_up(self) -> int:
        """Processes and acknowledges every tombstone there is now; how many there were."""
        count, query = 0, {"after_revision": str(self.watermark), "limit": str(PAGE)}
        while True:
            page = (await self._client.calls.call("GET", "/tombstones", query=query)).body
            for tombstone in page["tombstones"]:
                await self._drop(tombstone["resource_id"], tombstone["incarnation"])
            count += len(page["tombstones"])
            if page["tombstones"] and page["complete_to"] > self.watermark:
                await self._ack(page["complete_to"])
            if page["next"] is None:
                return count
            query["after"] = page["next"]

    async def _ack(self, revision: int) -> None:
        body = {"holder_id": self.holder_id, "holder_token": self._token, "revision": revision}
        self.watermark = (await self._client.calls.call("POST", "/tombstones/ack", body)).body["watermark"]
        self._write()

    async def _watch(self) -> None:
        """Wakes the follower when something died, or this holder was removed. The list tells what; this only when.

        What happened before a watch began is asked for once it is known where it begins.
        """
        kinds = ("tombstone_created", "holder_removed")
        while True:
            try:
                first = await revision(self._client) + 1
                self._watches += 1
                self._wake.set()
                async with contextlib.aclosing(self._client.watch(kinds=kinds, from_revision=first)) as events:
                    async for event in events:
                        if event.kind == "holder_removed" and event.key == self.holder_id:
                            self._standing = self._standing and event.owner == "replaced"
                        self._wake.set()
            except HoldfastError as error:
                _log.warning("holder %s cannot watch: %s", self.holder_id, error)
                await asyncio.sleep(PAUSE_S)

    # --- over a restart -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._file is None or not self._file.exists():
            return
        kept = json.loads(self._file.read_text())
        if kept["holder_id"] != self.holder_id:
            raise ValueError(f"{self._file} is the state of {kept['holder_id']}, not of {self.holder_id}")
        self._token, self.watermark = kept["holder_token"], kept["watermark"]

    def _write(self) -> None:
        """All or nothing: a crash leaves the old file or the new one."""
        if self._file is None:
            return
        kept = {"holder_id": self.holder_id, "holder_token": self._token, "watermark": self.watermark}
        beside = self._file.with_name(self._file.name + ".new")
        with beside.open("w") as file:
            json.dump(kept, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._file)
