"""Where the nodes are: as whoever made the client said, and as the nodes tell themselves.

Any node answers; the leader does so without asking another, so where it is, is learned on the side. So is where nodes
are that have joined since: every answer says whether the members are others than before. What is learned comes beside
what was given, and never in its place: a node that is no member any more is asked last, and only when another has
answered.

Nodes tell of addresses as other nodes reach them. Those are good for a client as well if it was given one of them
itself. If it was given none of them, it comes by another way (a proxy, a mapped port), and learns nothing. Nor is
an address used before the node there has said that it is of the same cluster; who was told of, and could not be asked
that, is asked again when no other answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import aiohttp

from coordinator.client import clock
from coordinator.client.endpoints import meant_by

LEARN_S = 1.0
LEARN_EVERY_S = 30.0
LEARN_AGAIN_S = 1.0
"""When a node was not reached, an unknown one leads, or there are other members: but not at every call."""
LEARN_AFTER_FAILURE_S = 5.0
MOST = 32
"""A cluster has a handful of members; more than so many are not looked at."""


class Members:
    def __init__(self, given: list[str], session: Callable[[], aiohttp.ClientSession], *, follow: bool) -> None:
        self.given, self.endpoints = tuple(given), list(given)
        self._session, self._follow = session, follow
        self._current = random.randrange(len(given))
        self._leader = self._cluster_id = ""
        self._places: dict[str, str] = {}
        """The endpoints of members, by their ids."""
        self._learning: asyncio.Task[None] | None = None
        self._closed = False
        self._looked = -math.inf
        self._due = -math.inf if follow else math.inf
        self._revision = 0
        """Of the newest that was told: a node that was removed, or is behind, tells of members that were."""
        self._changed = 0
        """The newest change of the members that an answer spoke of."""
        self._scheme = ""
        """Of addresses that nodes tell, once one of them was known here."""
        self._unknown: list[str] = []
        """Endpoints of members that have not answered yet."""

    @property
    def current(self) -> str:
        return self.endpoints[self._current]

    def move_on(self, away_from: str = "") -> None:
        """To the next node. `away_from`: unless another call, that the same node failed, has been there first."""
        if away_from in ("", self.current):
            self._current = (self._current + 1) % len(self.endpoints)

    def turn_to(self, endpoint: str) -> None:
        if endpoint in self.endpoints:
            self._current = self.endpoints.index(endpoint)

    def unreached(self) -> None:
        """A node was not: perhaps there are others by now."""
        if self._follow:
            self._look_soon()
            self.look_if_due()

    def heard(self, said: Mapping[str, str]) -> None:
        """A node answered, with these headers."""
        leader = said.get("X-Holdfast-Leader", "")
        if not leader:
            return
        moved, self._leader = leader != self._leader, leader
        if moved and leader in self._places:
            self.turn_to(self._places[leader])
        elif moved and (self._follow or len(self.endpoints) > 1):
            self._look_soon()
        changed = _number(said.get("X-Holdfast-Members", ""))
        if changed > self._changed:
            self._changed = changed
            if self._follow:
                self._look_soon()
        self.look_if_due()

    def _look_soon(self) -> None:
        self._due = min(self._due, self._looked + LEARN_AGAIN_S)

    def look_if_due(self) -> None:
        """In a task of its own: whoever calls it waits for nothing."""
        if self._closed or not self._leader or clock.now() < self._due:
            return
        if self._learning is None or self._learning.done():
            self._looked = clock.now()
            self._due = self._looked + LEARN_EVERY_S * random.uniform(0.75, 1.25) if self._follow else math.inf
            self._learning = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        self._closed = True
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)

    # --- what the nodes tell --------------------------------------------------------------------------------------

    async def _look(self) -> None:
        current = self.current
        told = await self._newest([current])
        if told is None:
            told = await self._newest([each for each in (*self.endpoints, *self._unknown) if each != current])
        if told is None:
            self._due = min(self._due, self._looked + LEARN_AFTER_FAILURE_S)
            return
        self._cluster_id, self._revision = told["cluster_id"], told["revision"]
        members = {str(each["id"]): str(each["http"]) for each in told["members"][:MOST] if each["http"]}
        places = await self._places_of(members)
        for known in places.values():
            # One of them by this address: it was given it.
            self._scheme = self._scheme or known.partition("://")[0]
        if self._follow and self._scheme:
            missing = {name: f"{self._scheme}://{address}" for name, address in members.items() if name not in places}
            found = await self._found(missing)
            places |= found
            self._unknown = [endpoint for name, endpoint in missing.items() if name not in found]
        self._take(places)

    async def _newest(self, endpoints: Iterable[str]) -> dict[str, Any] | None:
        """What the one of them tells that is furthest, if it is of this cluster and has what was told before."""
        all_told = await asyncio.gather(*map(self._told_by, endpoints))
        new = [
            told
            for told in all_told
            if told is not None and self._cluster_id in ("", told["cluster_id"]) and told["revision"] >= self._revision
        ]
        return max(new, key=lambda told: int(told["revision"]), default=None)

    async def _told_by(self, endpoint: str) -> dict[str, Any] | None:
        try:
            timeout = aiohttp.ClientTimeout(total=LEARN_S)
            async with self._session().get(f"{endpoint}/api/v1/cluster", timeout=timeout) as response:
                told = await response.json()
            _ = [(each["id"], each["http"]) for each in told["members"]]
            named, revision = str(told.get("cluster_id", "")), int(told.get("revision", 0))
            return {"cluster_id": named, "revision": revision, "members": told["members"]}
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError, KeyError, TypeError, AttributeError):
            return None

    async def _places_of(self, members: Mapping[str, str]) -> dict[str, str]:
        """The endpoints that are known of members, under whatever name."""
        ours = {each.partition("://")[2]: place for place, each in enumerate(self.endpoints)}
        if not all(address in ours for address in members.values()):
            # Called otherwise here than there (localhost, 127.0.0.1): what both mean is compared.
            ours |= await meant_by(set(members.values()) - set(ours), ours, LEARN_S)
        endpoints = list(self.endpoints)
        return {name: endpoints[ours[address]] for name, address in members.items() if address in ours}

    async def _found(self, missing: Mapping[str, str]) -> dict[str, str]:
        """Those of them at which a node of this cluster answers."""
        told = await asyncio.gather(*map(self._told_by, missing.values()))
        return {
            name: endpoint
            for (name, endpoint), said in zip(missing.items(), told, strict=True)
            if said is not None and said["cluster_id"] == self._cluster_id
        }

    def _take(self, places: Mapping[str, str]) -> None:
        """Members first, in the order they were given and then learned; then what was given and is no member."""
        if not places:
            return
        now, members = self.current, set(places.values())
        known = [*self.given, *(each for each in self.endpoints if each not in self.given), *sorted(members)]
        order = list(dict.fromkeys(known))
        self.endpoints[:] = [each for each in order if each in members]
        self.endpoints += [each for each in self.given if each not in members]
        self._places, self._current = dict(places), 0
        self.turn_to(now)
        with contextlib.suppress(KeyError):
            self.turn_to(self._places[self._leader])


def _number(text: str) -> int:
    """0 if it is none that a node would say."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
