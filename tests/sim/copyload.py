"""Simulated holders of copies that go offline, are started anew, removed and fenced; and those who make things die."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine import tombstonecommands as t
from coordinator.machine import tombstoneresults as tr
from coordinator.machine.collection import packed
from tests.sim.graphload import GraphLoad
from tests.sim.world import World

NAMES = tuple(f"r{number}" for number in range(8))
HOLDERS = ("h0", "h1", "h2", "h3")
SESSION_MS = 1_500


class Reclaimer:
    """Registers resources, deletes them, and cleans up; now and then removes a holder as an administrator would."""

    def __init__(self, load: CopyLoad, name: str) -> None:
        self._load, self._name = load, name
        self._rng = random.Random(load.world.rng.getrandbits(64))

    def begin(self) -> None:
        if self._load.dying or self._load.running:
            self._load.world.at(self._rng.expovariate(self._load.rate), self._act)

    def _act(self) -> None:
        rng, name = self._rng, self._rng.choice(NAMES)
        verb = rng.choice(("put",) * 6 + ("delete",) * 3 + ("claim",) * 5 + ("remove",))
        command: c.Command = c.ClaimReclaims("disk", self._name, 10, 500)
        if verb == "put" and self._load.running:
            command = c.PutResources(tuple(rng.sample(NAMES, 4)), "disk", "file", None, 0, pinned=True)
        elif verb == "delete" and self._load.running:
            command = c.DeleteResource(name, force=True)
        elif verb == "remove" and self._load.running and rng.random() < 0.5:
            command = t.RemoveHolder(rng.choice(HOLDERS))
        self._load.send(rng, command, self._told)

    def _told(self, result: Any) -> None:
        if isinstance(result, r.ReclaimsClaimed) and result.items:
            ids, tokens = zip(*((item.reclaim_id, item.token) for item in result.items), strict=True)
            self._load.send(self._rng, c.AckReclaims(self._name, packed(ids), packed(tokens)), lambda _: self.begin())
        else:
            self.begin()


class SimHolder:
    """Does what the SDK's holder does: registers before it copies, drops before it acknowledges, verifies when fenced.

    Its disk (`copies`, `token`, `watermark`) outlives its process; what it was about to do does not. Answers that came
    for an earlier life are not heard.
    """

    def __init__(self, load: CopyLoad, name: str, *, in_session: bool) -> None:
        self._load, self.name, self._in_session = load, name, in_session
        self._rng = random.Random(load.world.rng.getrandbits(64))
        self.copies: dict[str, int] = {}
        self.token: int | None = None
        self.serving = False
        self.watermark = 0
        self._session: int | None = None
        self._life = 0

    def begin(self) -> None:
        life = self._life
        self._load.world.at(self._rng.expovariate(self._load.rate), lambda: self._life == life and self._act())

    def _ask(self, command: c.Command, told: Any) -> None:
        life = self._life
        self._load.send(self._rng, command, lambda result: self._life == life and told(result))

    def _act(self) -> None:
        if self._load.running and self._rng.random() < 0.04:
            self._go_offline()
        elif self._in_session and self._session is None:
            self._ask(c.CreateSession(self.name, SESSION_MS), self._opened)
        elif self._in_session and self._rng.random() < 0.3:
            self._ask(c.HeartbeatSession(self._session or 1), self._heartbeat)
        elif not self.serving:
            self._stand()
        elif self._load.running and self._rng.random() < 0.5:
            self._keep(self._rng.choice(NAMES))
        else:
            self._follow()

    def _go_offline(self) -> None:
        """For a moment, or for longer than its session."""
        self._life += 1
        life = self._life
        self._load.count("offline")
        self._load.world.at(self._rng.choice((0.1, 1.0, 3.0)), lambda: self._life == life and self._come_back())

    def _come_back(self) -> None:
        if self._rng.random() < 0.5:
            self._session = None
        self.begin()

    def _opened(self, result: Any) -> None:
        if isinstance(result, r.SessionCreated):
            self._session = result.session_id
            if self.serving:
                # To the new session, with its token: an empty page that is not the last.
                self._ask(t.VerifyCopies(self.name, (), b"", False, self._session, self.token), self._heard)
                return
        self.begin()

    def _heartbeat(self, result: Any) -> None:
        if isinstance(result, r.Denied):
            self._session, self.serving = None, False
        self.begin()

    def _heard(self, result: Any) -> None:
        if isinstance(result, r.Denied) and result.code in ("holder_fenced", "holder_verifying", "holder_known"):
            self._load.count("fenced")
            self.serving = False
        if isinstance(result, r.Denied) and result.code in ("session_expired", "unknown_session"):
            self._session = None
        self.begin()

    # --- copies ---------------------------------------------------------------------------------------------------

    def _keep(self, resource_id: str) -> None:
        def told(result: Any) -> None:
            if isinstance(result, tr.CopyRegistered) and self.serving and result.holder_token == self.token:
                self.copies[resource_id] = result.incarnation
                self._load.count("copied")
            self._heard(result)

        self._ask(t.RegisterCopy(resource_id, self.name, None, self.token), told)

    def _follow(self) -> None:
        """Reads the list on some node, which may be behind, and acknowledges what that one had complete."""
        sites = [
            site for _, site in sorted(self._load.world.sites.items()) if site.node is not None and not site.stopped
        ]
        if not sites:
            self.begin()
            return
        machine = self._rng.choice(sites).machine.machine
        page = machine.copies.tombstones("default", self.watermark, None, self._rng.choice((1, 2, 100)), 0)
        for each in page.tombstones:
            if self.copies.get(each.resource_id) == each.incarnation:
                del self.copies[each.resource_id]
                self._load.count("dropped")
        if not page.tombstones or page.complete_to <= self.watermark:
            self.begin()
            return

        def told(result: Any) -> None:
            if isinstance(result, tr.TombstonesAcked):
                self.watermark = result.watermark
            self._heard(result)

        self._ask(t.AckTombstones(self.name, self.token or 1, page.complete_to), told)

    # --- fenced ---------------------------------------------------------------------------------------------------

    def _stand(self) -> None:
        """Its token may count still, and only the answer was lost that said so: an empty page, not the last, tells."""

        def told(result: Any) -> None:
            if isinstance(result, tr.CopiesVerified) and result.verified:
                self.watermark, self.serving = result.watermark, True
                self.begin()
            elif result is None:
                self.begin()
            else:
                self._verify(list(self.copies.items()), None)

        if self.token is None:
            self._verify(list(self.copies.items()), None)
        else:
            self._ask(t.VerifyCopies(self.name, (), b"", False, self._session, self.token), told)

    def _verify(self, left: list[tuple[str, int]], token: int | None) -> None:
        """Page by page. The last one is empty: by then the token is on disk, and no answer can be lost with it."""
        size = self._rng.choice((1, 3))
        page, rest = left[:size], left[size:]
        numbers = packed([incarnation for _, incarnation in page])

        def told(result: Any) -> None:
            if not isinstance(result, tr.CopiesVerified):
                self._heard(result)
                return
            if token is None:
                self.watermark = result.watermark
            self.token = result.holder_token
            for (resource_id, _), keep in zip(page, result.keep, strict=True):
                self._load.count("kept" if keep else "refused to keep")
                if not keep:
                    del self.copies[resource_id]
            self.serving = result.verified
            if result.verified:
                self._load.count("verified")
                self.begin()
            else:
                self._verify(rest, result.holder_token)

        ids, is_last = tuple(resource_id for resource_id, _ in page), token is not None and not page
        self._ask(t.VerifyCopies(self.name, ids, numbers, is_last, self._session, token), told)


class CopyLoad(GraphLoad):
    def __init__(self, world: World, *, clients: int, rate: float) -> None:
        super().__init__(world, clients=0, rate=rate)
        self.dying = True
        self.happened: Counter[str] = Counter()
        self.holders = [SimHolder(self, name, in_session=place % 2 == 1) for place, name in enumerate(HOLDERS)]
        self._reclaimers = [Reclaimer(self, f"w{number}") for number in range(clients)]

    def start(self) -> None:
        self.running = True
        for actor in (*self._reclaimers, *self.holders):
            actor.begin()

    def count(self, what: str) -> None:
        self.happened[what] += 1
