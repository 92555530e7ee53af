"""Clients with a session that owns leases and a lock: one heartbeat keeps all, and with it all is over at once.

A session is written down as a lease on itself. What a heartbeat is told of it is so of all it owns: they are renewed,
or they are over, whatever they were before.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.robustness.asking import Answer
from tests.robustness.fleetingclients import RENEWED_AT, TOO_LATE, TTLS_MS, Waiting, lease_key, lease_told
from tests.robustness.leaseclients import KIND as LEASES
from tests.robustness.leaseclients import hex_id
from tests.robustness.lockclients import KIND as LOCKS
from tests.robustness.pausing import pause
from tests.robustness.slices import Slice

PATH = "/api/v1/sessions"
ENDED = ("session_expired", "unknown_session")
LEASED = 3


class Owned(NamedTuple):
    kind: str
    key: str
    number: int | None


class SessionClient(Waiting):
    async def turn(self, now: Slice) -> None:
        owner, ttl_ms = self.own_name(), self.rng.choice(TTLS_MS)
        answer = await self.change(PATH, {"client_id": owner, "ttl_ms": ttl_ms})
        if answer.status != 200:
            return
        number = int(answer.body["session_id"], 16)
        session = Session(owner, number, ttl_ms, self.until_s(answer.sent_s, ttl_ms))
        now.told(LEASES, (owner, session.key, "acquire", ()), answer, ("leased", number))
        now.may_end(LEASES, session.key, owner, number, session.until_s)
        await self._own_leases(now, session)
        if not session.over:
            await self._own_lock(now, session)
        for _ in range(self.rng.choice((0, 1, 3))):
            if session.over:
                break
            await pause(RENEWED_AT * ttl_ms / 1000)
            await self._beat(now, session)
        await self.rng.choice((self._delete, self._come_late, self._forget))(now, session)

    # --- what it owns -----------------------------------------------------------------------------------------------

    async def _own_leases(self, now: Slice, session: Session) -> None:
        resources = [now.fresh() for _ in range(LEASED)]
        body = {"client_id": session.owner, "lease_duration_ms": session.ttl_ms, "resource_ids": resources}
        asked = {**body, "session_id": hex_id(session.number)}
        answer = await self.change("/api/v1/leases/acquire-batch", asked, LEASED)
        if self._refused(now, session, answer):
            return
        mine = lease_told(now, session.owner, resources, answer, session.until_s)
        session.owned += [Owned(LEASES, key, number) for key, number in mine.items()]
        if answer.outcome == "unknown":
            session.untold += [Owned(LEASES, lease_key(resource, session.owner), None) for resource in resources]

    async def _own_lock(self, now: Slice, session: Session) -> None:
        key = self.rng.choice(now.fleeting)
        body = {"client_id": session.owner, "lease_time_ms": session.ttl_ms, "session_id": hex_id(session.number)}
        token, answer = await self.wait_for(now, key, body, session.until_s)
        if token is not None:
            session.owned.append(Owned(LOCKS, key, token))
        elif not self._refused(now, session, answer):
            session.untold.append(Owned(LOCKS, key, None))

    def _refused(self, now: Slice, session: Session, answer: Answer) -> bool:
        """Because the session is over."""
        if not answer.definite or answer.status == 200 or answer.body["error"]["code"] not in ENDED:
            return False
        now.told(LEASES, (session.owner, session.key, "renew", (session.number,)), answer, ("gone",))
        self._all_over(now, session, answer)
        return True

    # --- its life ---------------------------------------------------------------------------------------------------

    async def _beat(self, now: Slice, session: Session) -> None:
        answer = await self.change(f"{PATH}/{hex_id(session.number)}/heartbeat", None, 1 + len(session.owned))
        if self._refused(now, session, answer) or answer.status != 200:
            return
        session.until_s = self.until_s(answer.sent_s, session.ttl_ms)
        for kind, key, number in (Owned(LEASES, session.key, session.number), *session.owned):
            now.told(kind, (session.owner, key, "renew", (number,)), answer, ("ok",))
            now.may_end(kind, key, session.owner, number, session.until_s)

    async def _delete(self, now: Slice, session: Session) -> None:
        answer = await self.change(f"{PATH}/{hex_id(session.number)}", None, method="DELETE")
        operation = (session.owner, session.key, "release", ())
        for kind, key, number in session.untold:
            now.may_end_early(kind, key, session.owner, number, answer.sent_s)
        if answer.definite:
            now.told(LEASES, operation, answer, ("ok",) if answer.status == 200 else ("gone",))
            self._all_over(now, session, answer)
            if answer.status == 200:
                now.given_back(LEASES, session.key, session.owner, session.number)
        elif answer.outcome == "unknown":
            now.left_open(LEASES, operation, answer.sent_s)
            for kind, key, number in session.owned:
                now.may_end_early(kind, key, session.owner, number, answer.sent_s)

    async def _come_late(self, now: Slice, session: Session) -> None:
        await pause(TOO_LATE * session.ttl_ms / 1000)
        seen = await self.read(f"{PATH}/{hex_id(session.number)}")
        if seen is not None:
            active = seen.status == 200 and seen.body["state"] == "ACTIVE"
            operation = (session.owner, session.key, "read", (session.number,))
            now.told(LEASES, operation, seen, ("active",) if active else ("gone",))
        if not session.over:
            await self._beat(now, session)

    async def _forget(self, now: Slice, session: Session) -> None:
        """Nobody hears of it again."""

    @staticmethod
    def _all_over(now: Slice, session: Session, answer: Answer) -> None:
        """Those were ended with it, at the same moment or, if it was over, before."""
        session.over = True
        for kind, key, number in session.owned:
            now.told(kind, (session.owner, key, "over", (number,)), answer, ("over",))


def session_key(number: int, owner: str) -> str:
    return f"session {number} of {owner}"


class Session:
    def __init__(self, owner: str, number: int, ttl_ms: int, until_s: float) -> None:
        self.owner, self.number, self.ttl_ms, self.until_s = owner, number, ttl_ms, until_s
        self.key = session_key(number, owner)
        self.owned: list[Owned] = []
        self.untold: list[Owned] = []
        """What it may own: if so, it ends with it."""
        self.over = False
