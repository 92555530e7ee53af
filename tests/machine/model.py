"""The rules once more, as plainly as they can be said: lists and dictionaries, everything recomputed every time.

It knows nothing of slots, buckets, tables or budgets. Ids and tokens are the machine's own; the model only demands that
they are new.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BUFFER_MS = 30_000


@dataclass
class ModelSession:
    client: str
    ttl: int
    expiry: int
    alive: bool = True
    ended_at: int = 0


@dataclass
class ModelLease:
    resource: str
    client: str
    token: int
    expiry: int
    deadline: int | None
    session: int | None
    active: bool = True
    ended_at: int = 0
    lock: bool = False
    count: int = 1
    mode: str = "exclusive"
    permits: int = 1


@dataclass
class ModelWaiter:
    keys: tuple[str, ...]
    client: str
    ttl: int
    mode: str
    permits: int
    session: int | None
    delay: int
    deadline: int
    many: bool


@dataclass
class Model:
    now: int = 0
    sessions: dict[int, ModelSession] = field(default_factory=dict)
    leases: dict[int, ModelLease] = field(default_factory=dict)
    waiters: dict[int, ModelWaiter] = field(default_factory=dict)
    delays: dict[str, int] = field(default_factory=dict)
    """How long each held key's delay is."""
    delayed: dict[str, int] = field(default_factory=dict)
    """Until when a key is kept free."""
    granted: list[tuple[int, str]] = field(default_factory=list)
    """(waiter, key) in the order granted, since the last look."""
    ended: dict[int, str] = field(default_factory=dict)
    """How each waiter's wait ended: granted or in vain. One that was cancelled never was."""

    # --- questions ------------------------------------------------------------------------------------------------

    def session_lives(self, number: int | None) -> bool:
        return number is None or (number in self.sessions and self.sessions[number].alive)

    def ends(self, lease: ModelLease) -> int | None:
        ends = [lease.expiry] if lease.session is None else [self.sessions[lease.session].expiry]
        return min(ends + ([lease.deadline] if lease.deadline is not None else []))

    def held(self, resource: str, client: str, *, lock: bool) -> int | None:
        for number, lease in self.leases.items():
            if lease.active and (lease.resource, lease.client, lease.lock) == (resource, client, lock):
                return number
        return None

    def references(self, resource: str) -> int:
        return sum(1 for x in self.leases.values() if x.active and not x.lock and x.resource == resource)

    def holders(self, key: str) -> list[ModelLease]:
        return [x for x in self.leases.values() if x.active and x.lock and x.resource == key]

    def queue(self, key: str) -> list[int]:
        return [number for number, waiter in self.waiters.items() if key in waiter.keys]

    def fits(self, key: str, mode: str, permits: int) -> bool:
        holders = self.holders(key)
        if self.delayed.get(key, 0) > self.now:
            return False
        if not holders:
            return True
        if mode == "shared":
            return holders[0].mode == "shared"
        return holders[0].mode == "exclusive" and holders[0].permits == permits and len(holders) < permits

    def can_enter(self, key: str, ask: ModelWaiter) -> bool:
        number = self.held(key, ask.client, lock=True)
        if number is None:
            return self.fits(key, ask.mode, ask.permits)
        hold = self.leases[number]
        return (hold.mode, hold.permits, hold.session) == (ask.mode, ask.permits, ask.session)

    # --- time -----------------------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        if now > self.now:
            for leases in (self.leases, self.sessions):
                for number, thing in list(leases.items()):
                    ended = not (thing.active if isinstance(thing, ModelLease) else thing.alive)
                    if ended and thing.ended_at + BUFFER_MS <= now:
                        del leases[number]
        self.now = now
        for number, session in self.sessions.items():
            if session.alive and session.expiry <= now:
                self.end_session(number, released=False)
        for lease in list(self.leases.values()):
            if lease.active and self.ends(lease) <= now:
                self.end(lease, self.ends(lease), released=False)
        self.settle()

    def end(self, lease: ModelLease, at: int, *, released: bool) -> None:
        if lease.lock and not released and self.delays.get(lease.resource):
            until = at + self.delays[lease.resource]
            if until > self.now:
                self.delayed[lease.resource] = max(until, self.delayed.get(lease.resource, 0))
        lease.active, lease.ended_at = False, self.now
        if released:
            self.leases = {number: x for number, x in self.leases.items() if x is not lease}

    def end_session(self, number: int, *, released: bool) -> None:
        session = self.sessions[number]
        session.alive, session.ended_at = False, min(session.expiry, self.now)
        session.expiry = session.ended_at
        for lease in list(self.leases.values()):
            if lease.active and lease.session == number:
                self.end(lease, self.ends(lease), released=released)

    def settle(self) -> None:
        """Strictly by age, until nothing changes."""
        for number, waiter in list(self.waiters.items()):
            if waiter.deadline <= self.now or not self.session_lives(waiter.session):
                del self.waiters[number]
                self.ended[number] = "in vain"
        changed = True
        while changed:
            changed = False
            for number, waiter in list(self.waiters.items()):
                first = all(self.queue(key)[0] == number for key in waiter.keys)
                if first and all(self.can_enter(key, waiter) for key in waiter.keys):
                    del self.waiters[number]
                    self.ended[number] = "granted"
                    for key in waiter.keys:
                        self.enter(key, waiter, number)
                    changed = True
        self.delayed = {key: until for key, until in self.delayed.items() if until > self.now}

    def enter(self, key: str, ask: ModelWaiter, waiter: int) -> None:
        number = self.held(key, ask.client, lock=True)
        if number is not None:
            hold = self.leases[number]
            hold.count += 1
            hold.expiry = max(hold.expiry, self.now + ask.ttl)
        else:
            delay = max(ask.delay, self.delays[key]) if self.holders(key) else ask.delay
            self.delays[key] = delay
            self.granted.append((waiter, key))
            unnamed = -1 - len(self.granted)
            self.leases[unnamed] = ModelLease(
                key, ask.client, 0, self.now + ask.ttl, None, ask.session, lock=True, mode=ask.mode, permits=ask.permits
            )
