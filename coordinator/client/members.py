"""Where the nodes are: as whoever made the client said, and as the nodes tell themselves.

Any node answers; the leader does so without asking another, so where it is, is learned on the side. So is where nodes
are that have joined since: every answer says whether the members are others than before. What is learned comes beside
what was given, and never in its place: a node that is no member any more is asked last, and only when another has
answered.

Nodes tell of addresses as other nodes reach them. Those are good for a client as well if it was given one of them
itself. If it was given none of them, it comes by another way (a proxy, a mapped port), and learns nothing. Nor is
an address used before the node there has said that it is of the same cluster; who was told of, and could not be asked
that, is asked again when no other answers. Only where it was given an address does a client believe that another
cluster is in the place of the one it knew.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from coordinator.client import clock
from coordinator.client.endpoints import meant_by

LEARN_S = 1.0
LEARN_EVERY_S = 30.0
LEARN_AGAIN_S = 1.0
"""When a node was not reached, an unknown one leads, or there are other members: but not at every call."""
LEARN_AFTER_FAILURE_S = 5.0
"""At most so long after nobody told anything; each time twice as long as before."""
RETURN_S = 5.0
"""A node that failed is not turned to because it leads before it has answered so long after that."""
STREAM_S = 4.0
"""Who reads a stream, and makes no calls, hears of other members by looking so often."""
MOST = 32
"""A cluster has a handful of members; more than so many are not looked at."""


@dataclass(frozen=True, slots=True)
class _Told:
    """By the node at `endpoint`. `changed`: how new the members are; `members`: their addresses, by their ids."""

    endpoint: str
    cluster_id: str
    revision: int
    changed: int
    leader: str
    members: Mapping[str, str]


class Members:
    def __init__(self, given: list[str], session: Callable[[], aiohttp.ClientSession], *, follow: bool) -> None:
        self.given, self.endpoints = tuple(given), list(given)
        self._session, self._follow = session, follow
        self._current = random.randrange(len(given))
        self._leader = self._cluster_id = ""
        self._places: dict[str, str] = {}
        """The endpoints of members, by their ids."""
        self._failed: dict[str, float] = {}
        """When those failed that have not answered RETURN_S after it."""
        self._learning: asyncio.Task[None] | None = None
        self._closed = False
        self._looked = self._heard = -math.inf
        self._again_s = LEARN_AGAIN_S
        self._due = -math.inf if follow else math.inf
        self._revision = 0
        """Of the newest that was told: a node that was removed, or is behind, tells of members that were."""
        self._changed = 0
        """The newest change of the members that was looked at."""
        self._changed_at = ""
        """The endpoint that spoke of a newer one."""
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

    def _turn_to_leader(self) -> bool:
        """Not if it is known to fail: the others must be asked instead."""
        place = self._places.get(self._leader)
        if place is None or place in self._failed:
            return False
        self.turn_to(place)
        return True

    # --- what is noticed on the side ------------------------------------------------------------------------------

    def unreached(self, endpoint: str) -> None:
        """This node was not, or it did not answer: perhaps there are others by now."""
        self._failed[endpoint] = clock.now()
        if self._follow:
            self._look_soon()
            self.look_if_due()

    def heard(self, endpoint: str, said: Mapping[str, str]) -> None:
        """This node answered, with these headers."""
        self._answers(endpoint)
        leader = said.get("X-Holdfast-Leader")
        if leader is None:
            return
        self._heard = clock.now()
        moved = leader not in ("", self._leader)
        self._leader = leader or self._leader
        if moved and not self._turn_to_leader() and (self._follow or len(self.endpoints) > 1):
            self._look_soon()
        newer = _number(said.get("X-Holdfast-Members", "")) > self._changed
        if newer:
            self._changed_at = endpoint
        if self._follow and (newer or not leader):  # one that was removed has no leader, and knows who is there now
            self._look_soon()
        self.look_if_due()

    def streams(self) -> None:
        """Something came by a stream, which has no headers."""
        if self._follow and clock.now() - max(self._heard, self._looked) >= STREAM_S:
            self._look_soon()
        self.look_if_due()

    def _answers(self, endpoint: str) -> None:
        if clock.now() - self._failed.get(endpoint, math.inf) >= RETURN_S:
            del self._failed[endpoint]

    def _look_soon(self) -> None:
        self._due = min(self._due, self._looked + self._again_s * random.uniform(0.75, 1.25))

    def look_if_due(self) -> None:
        """In a task of its own: whoever calls it waits for nothing.

        Not before a node was heard: nobody is known but those that were given.
        """
        if self._closed or self._heard == -math.inf or clock.now() < self._due:
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
        first, self._changed_at = [self._changed_at or self.current], ""
        if (leader := self._places.get(self._leader, "")) in self._failed and leader not in first:
            first.append(leader)  # whether it can be turned to again
        told = await self._told_by(first)
        newest = self._newest(told)
        if newest is None:
            told += await self._told_by([each for each in (*self.endpoints, *self._unknown) if each not in first])
            newest = self._newest(told) or self._in_its_place(told)
        if newest is None:
            self._again_s = min(2 * self._again_s, LEARN_AFTER_FAILURE_S)
            self._due = min(self._due, self._looked + self._again_s)
            return
        self._again_s, self._cluster_id, self._revision = LEARN_AGAIN_S, newest.cluster_id, newest.revision
        self._changed, self._leader = max(self._changed, newest.changed), newest.leader or self._leader
        places = await self._places_of(newest.members)
        for known in places.values():
            self._scheme = self._scheme or known.partition("://")[0]
        if self._follow and self._scheme:
            # It knows one of them by this address, or did: it was given it, or learned it when it knew another.
            missing = {id: f"{self._scheme}://{address}" for id, address in newest.members.items() if id not in places}
            places |= await self._found(missing)
            self._unknown = [endpoint for id, endpoint in missing.items() if id not in places]
        self._take(places)

    def _newest(self, told: Iterable[_Told]) -> _Told | None:
        """By a node of this cluster that has what was told before."""
        ours = [each for each in told if self._cluster_id in ("", each.cluster_id) and each.revision >= self._revision]
        return max(ours, key=lambda each: each.revision, default=None)

    def _in_its_place(self, told: Sequence[_Told]) -> _Told | None:
        """Another cluster, where one was given, and nobody else is left: as after a restore."""
        if any(each.cluster_id == self._cluster_id for each in told):
            return None
        there = [each for each in told if each.endpoint in self.given]
        if there:
            self._revision = self._changed = self._current = 0
            self._cluster_id, self._places, self.endpoints[:] = there[0].cluster_id, {}, self.given
        return self._newest(there)

    async def _told_by(self, endpoints: Iterable[str]) -> list[_Told]:
        """What those tell that answer."""
        all_told = await asyncio.gather(*map(self._ask, endpoints))
        return [told for told in all_told if told is not None]

    async def _ask(self, endpoint: str) -> _Told | None:
        try:
            timeout = aiohttp.ClientTimeout(total=LEARN_S)
            async with self._session().get(f"{endpoint}/api/v1/cluster", timeout=timeout) as response:
                told = await response.json()
            named, leader = str(told.get("cluster_id", "")), str(told.get("leader") or "")
            members = {str(each["id"]): str(each["http"]) for each in told["members"][:MOST] if each["http"]}
            changed = _number(response.headers.get("X-Holdfast-Members", ""))
            found = _Told(endpoint, named, int(told.get("revision", 0)), changed, leader, members)
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError, KeyError, TypeError, AttributeError):
            return None
        self._answers(endpoint)
        return found

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
        there = {told.endpoint for told in await self._told_by(missing.values()) if told.cluster_id == self._cluster_id}
        return {name: endpoint for name, endpoint in missing.items() if endpoint in there}

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
        self._failed = {each: at for each, at in self._failed.items() if each in self.endpoints}
        self.turn_to(now)
        self._turn_to_leader()


def _number(text: str) -> int:
    """0 if it is none that a node would say."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
