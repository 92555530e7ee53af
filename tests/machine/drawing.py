"""Random commands about few names, so that they meet: for any source of choices (hypothesis, or a seeded random)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coordinator.machine import commands as c
from tests.machine.twin import TICK_MS, Twin, packed, ticks

CLIENTS = ("ann", "bob", "cyd")
RESOURCES = ("r1", "r2", "r3")
BATCH = (*(f"b{number}" for number in range(12)), "r1")
KEYS = ("k1", "k2", "k3")
TICKS = (1, 2, 3, 8, 300)
Choose = Callable[[Sequence[Any]], Any]


def some_lease(twin: Twin, choose: Choose) -> int:
    return int(choose([*sorted(twin.model.leases), 7, (1 << 32) + 5000, (9 << 32) + 1]))


def some_session(twin: Twin, choose: Choose) -> int:
    return int(choose([*sorted(twin.model.sessions), 1 << 33]))


def session_or_none(twin: Twin, choose: Choose) -> int | None:
    return some_session(twin, choose) if choose((True, False, False)) else None


def owner(twin: Twin, choose: Choose, session: int | None) -> str:
    known = twin.model.sessions.get(session or 0)
    return str(known.client if known is not None and choose((True, True, True, False)) else choose(CLIENTS))


def locking(twin: Twin, choose: Choose) -> tuple[Any, ...]:
    session = session_or_none(twin, choose)
    mode, permits = choose((("exclusive", 1), ("exclusive", 1), ("exclusive", 2), ("shared", 1)))
    client = owner(twin, choose, session)
    block = choose((0, ticks(2), ticks(8), ticks(300)))
    return client, ticks(choose(TICKS)), block, mode, permits, session, choose((0, 0, 0, 3 * TICK_MS))


def token_of(twin: Twin, choose: Choose, key: str, client: str) -> int:
    number = twin.model.held(key, client, lock=True)
    held = twin.model.leases[number].token if number is not None else 1
    return int(choose((held, held, held, held + 1, 0)))


def draw_command(twin: Twin, choose: Choose) -> c.Command:
    client, extend = choose(CLIENTS), ticks(choose(TICKS))
    match choose(
        ("acquire",) * 2 + ("batch",) * 2 + ("release", "renew", "heartbeat", "session", "beat", "delete")
        + ("lock",) * 6 + ("many",) * 2 + ("relock",) * 2 + ("unlock",) * 4 + ("break", "cancel")
    ):  # fmt: skip
        case "acquire":
            session = session_or_none(twin, choose)
            lifetime = choose((None, None, ticks(5), ticks(1)))
            return c.AcquireLease(choose(RESOURCES), owner(twin, choose, session), extend, session, lifetime)
        case "batch":
            session, lifetime = session_or_none(twin, choose), choose((None, None, ticks(5)))
            names = choose((RESOURCES, RESOURCES[::-1], RESOURCES[:2], (*RESOURCES[1:], *RESOURCES[:2]), BATCH))
            return c.AcquireLeases(names, owner(twin, choose, session), extend, session, lifetime)
        case "release":
            return c.ReleaseLease(choose((*RESOURCES, *BATCH[:4])), client)
        case "renew":
            number = some_lease(twin, choose)
            known = twin.model.leases.get(number)
            return c.RenewLease(number, known.client if known and choose((True, True, False)) else client, extend)
        case "heartbeat":
            numbers = [some_lease(twin, choose) for _ in range(choose((1, 2, 5)))]
            return c.Heartbeat(client, extend, packed(*numbers))
        case "session":
            return c.CreateSession(client, extend)
        case "beat":
            return c.HeartbeatSession(some_session(twin, choose))
        case "delete":
            return c.DeleteSession(some_session(twin, choose))
        case "lock":
            return c.AcquireLock(choose(KEYS), *locking(twin, choose))
        case "many":
            keys = choose((KEYS, KEYS[::-1], KEYS[:2], KEYS[1:], KEYS[:1]))
            return c.AcquireLocks(keys, *locking(twin, choose))
        case "relock" | "unlock" as what:
            holds = [x for x in twin.model.leases.values() if x.active and x.lock]
            key, client = choose([*((x.resource, x.client) for x in holds), (choose(KEYS), client)])
            token = token_of(twin, choose, key, client)
            return c.ReleaseLock(key, client, token) if what == "unlock" else c.RenewLock(key, client, token, extend)
        case "break":
            return c.BreakLock(choose(KEYS))
        case _:
            return draw_cancel(twin, choose)


def draw_cancel(twin: Twin, choose: Choose) -> c.CancelWaiter:
    """As a node sends it: with the request it waited for, and the last time it asked; or when it had asked before."""
    known = list(twin.waits)[-8:]
    if not known or choose((True, False, False, False)):
        return c.CancelWaiter(choose([*twin.model.waiters, 999_999]))
    request_id = choose(known)
    wait = twin.waits[request_id]
    return c.CancelWaiter(wait.told.waiter_id, request_id, wait.asked - choose((0, 0, 1)))


def draw_again(twin: Twin, choose: Choose) -> tuple[c.Command, bytes] | None:
    """A request that was told to wait, once more."""
    known = [key for key, wait in twin.waits.items() if twin.model.now < wait.until][-8:]
    if not known:
        return None
    request_id = choose(known)
    return twin.waits[request_id].command, request_id
