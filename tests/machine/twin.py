"""The machine beside the model: every command goes to both, and afterwards both must tell the same story."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.events import Compacted
from coordinator.machine.invariants import check
from coordinator.machine.limits import REQUEST_MEMORY_MS
from coordinator.machine.machine import Machine
from tests.machine.model import Model, ModelLease, ModelSession, ModelWaiter

Acquiring = c.AcquireLease | c.AcquireLeases | c.AcquireLock | c.AcquireLocks

TICK_MS = 128
"""One timer bucket. All moments are whole ticks and all durations end just before one, so that the machine's sweep
is exact to the tick and can be compared with a model that has no buckets."""


def ticks(count: int) -> int:
    """A duration of `count` ticks that ends before the tick does."""
    return TICK_MS * count - 1


def rises_at(seed: int, steps: int) -> int:
    """At which step the level is raised: half of all seeds stay where they began."""
    return seed * 37 % steps if seed % 2 else -1


def packed(*lease_ids: int) -> bytes:
    return np.array(lease_ids, dtype="<u8").tobytes()


@dataclass
class Wait:
    """A request that was told to wait, and when it was last asked."""

    command: c.AcquireLock | c.AcquireLocks
    told: r.LockWaiting
    until: int
    asked: int


class Twin:
    def __init__(self) -> None:
        self.machine, self.model = Machine(), Model()
        self.index = 0
        self.last_token = 0
        self.log: list[tuple[int, int, list[bytes]]] = []
        self.waits: dict[bytes, Wait] = {}
        """By request id, as long as it is remembered."""
        self.grants: dict[int, dict[str, int]] = {}
        """Tokens by waiter and key."""

    def advance(self, by_ticks: int) -> None:
        self.model.advance(self.model.now + by_ticks * TICK_MS)
        self._apply([])
        self.compare()

    def do(self, command: c.Command, request_id: bytes | None = None) -> r.Result:
        (result,) = self._apply([encode_command(command, request_id=request_id)])
        wait = self.waits.get(request_id or b"")
        if wait is not None and self.model.now < wait.until:
            self._asked_again(wait, result)
        else:
            getattr(self, "_" + type(command).__name__)(command, result)
            if isinstance(result, r.LockWaiting) and request_id is not None:
                self.waits[request_id] = Wait(command, result, self.model.now + REQUEST_MEMORY_MS, self.index)
        self.model.settle()
        self.compare()
        return result

    def _apply(self, commands: list[bytes]) -> list[r.Result]:
        self.index += 1
        self.log.append((self.index, self.model.now, commands))
        return self.machine.apply(self.index, self.model.now, commands)

    # --- one method a command: the model's answer against the machine's --------------------------------------------

    def _RaiseLevel(self, command: c.RaiseLevel, result: r.Result) -> None:  # noqa: N802
        assert result == r.LevelRaised(command.level)

    def _AcquireLease(self, command: c.AcquireLease, result: r.Result) -> None:  # noqa: N802
        if self._refused_session(command, result) or self._refused_mismatch(command, (command.resource_id,), result):
            return
        assert isinstance(result, r.LeaseGranted), result
        number = self.model.held(command.resource_id, command.client_id, lock=False)
        assert result.reacquired == (number is not None)
        lease = self._granted(command, command.resource_id, result.lease_id)
        assert result.fencing_token == lease.token
        assert result.ttl_ms == self.model.ends(lease) - self.model.now
        assert result.expires_ms == self.model.ends(lease)
        assert result.reference_count == self.model.references(command.resource_id)

    def _AcquireLeases(self, command: c.AcquireLeases, result: r.Result) -> None:  # noqa: N802
        if self._refused_session(command, result) or self._refused_mismatch(command, command.resource_ids, result):
            return
        assert isinstance(result, r.LeasesGranted), result
        numbers = np.frombuffer(result.lease_ids, "<u8").tolist()
        asked = zip(command.resource_ids, numbers, strict=True)
        ends = min(self.model.ends(self._granted(command, name, number)) for name, number in asked)
        assert (result.ttl_ms, result.expires_ms) == (ends - self.model.now, ends)

    def _refused_mismatch(
        self, command: c.AcquireLease | c.AcquireLeases, names: tuple[str, ...], result: r.Result
    ) -> bool:
        held = [self.model.held(name, command.client_id, lock=False) for name in names]
        if all(number is None or self.model.leases[number].session == command.session_id for number in held):
            return False
        assert isinstance(result, r.Denied) and result.code == "session_mismatch"
        return True

    def _granted(self, command: c.AcquireLease | c.AcquireLeases, name: str, lease_id: int) -> ModelLease:
        """The lease under this id: the one the client has, extended, or a new one as the machine's event tells."""
        model = self.model
        number = model.held(name, command.client_id, lock=False)
        if number is not None:
            assert lease_id == number
            lease = model.leases[number]
            if lease.session is None:
                self._extend(lease, command.lease_duration_ms)
            return lease
        assert lease_id not in model.leases
        events = self.machine.events_since(self.index - 1)
        assert not isinstance(events, Compacted)
        (event,) = (event for event in events if (event.kind, event.number) == ("lease_acquired", lease_id))
        assert (event.key, event.owner) == (name, command.client_id)
        lifetime = command.max_lifetime_ms
        deadline = None if lifetime is None else model.now + lifetime
        expiry = model.now + min(command.lease_duration_ms, lifetime or command.lease_duration_ms)
        lease = ModelLease(name, command.client_id, event.fencing_token, expiry, deadline, command.session_id)
        model.leases[lease_id] = lease
        return lease

    def _extend(self, lease: ModelLease, ttl: int) -> None:
        wanted = self.model.now + ttl
        lease.expiry = max(lease.expiry, wanted if lease.deadline is None else min(wanted, lease.deadline))

    def _refused_session(self, command: Acquiring, result: r.Result) -> bool:
        session = self.model.sessions.get(command.session_id or 0)
        if command.session_id is None or (session and session.alive and session.client == command.client_id):
            return False
        code = "unknown_session" if session is None else "not_owner" if session.alive else "session_expired"
        assert isinstance(result, r.Denied) and result.code == code, result
        return True

    def _ReleaseLease(self, command: c.ReleaseLease, result: r.Result) -> None:  # noqa: N802
        number = self.model.held(command.resource_id, command.client_id, lock=False)
        if number is None:
            assert isinstance(result, r.Denied) and result.code == "unknown_lease"
            return
        self.model.end(self.model.leases[number], self.model.now, released=True)
        assert result == r.LeaseReleased(self.model.references(command.resource_id))

    def _verdict(self, number: int, client: str, extend: int) -> str | None:
        lease = self.model.leases.get(number)
        if lease is None:
            return "unknown"
        if lease.client != client:
            return "not_owner"
        if not lease.active:
            return "expired"
        if lease.session is not None:
            return "session_owned"
        if lease.deadline is not None and lease.deadline < self.model.now + extend:
            return "lifetime_reached"
        return None

    def _RenewLease(self, command: c.RenewLease, result: r.Result) -> None:  # noqa: N802
        verdict = self._verdict(command.lease_id, command.client_id, command.extend_duration_ms)
        lease = self.model.leases.get(command.lease_id)
        if verdict == "lifetime_reached" and lease is not None and lease.expiry != lease.deadline:
            verdict = None
        if verdict is not None:
            code = {"unknown": "unknown_lease", "expired": "lease_expired"}.get(verdict, verdict)
            assert isinstance(result, r.Denied) and result.code == code, (result, verdict)
            return
        self._extend(lease, command.extend_duration_ms)
        assert result == r.LeaseRenewed(lease.expiry - self.model.now, lease.expiry)

    def _Heartbeat(self, command: c.Heartbeat, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.HeartbeatAnswer)
        failed = []
        for number in np.frombuffer(command.lease_ids, "<u8").tolist():
            verdict = self._verdict(number, command.client_id, command.extend_duration_ms)
            if verdict is not None:
                failed.append((number, verdict))
            if verdict in (None, "lifetime_reached"):
                self._extend(self.model.leases[number], command.extend_duration_ms)
        told = [r.VERDICTS[byte - 1] for byte in result.verdicts]
        assert list(zip(np.frombuffer(result.failed_ids, "<u8").tolist(), told, strict=True)) == failed
        assert result.renewed == len(command.lease_ids) // 8 - len(failed)

    def _CreateSession(self, command: c.CreateSession, result: r.Result) -> None:  # noqa: N802
        assert isinstance(result, r.SessionCreated) and result.session_id not in self.model.sessions
        expiry = self.model.now + command.ttl_ms
        self.model.sessions[result.session_id] = ModelSession(command.client_id, command.ttl_ms, expiry)

    def _live_session(self, number: int, result: r.Result) -> ModelSession | None:
        session = self.model.sessions.get(number)
        if session is not None and session.alive:
            return session
        code = "unknown_session" if session is None else "session_expired"
        assert isinstance(result, r.Denied) and result.code == code
        return None

    def _HeartbeatSession(self, command: c.HeartbeatSession, result: r.Result) -> None:  # noqa: N802
        session = self._live_session(command.session_id, result)
        if session is not None:
            session.expiry = self.model.now + session.ttl
            assert result == r.SessionRenewed(session.ttl, session.expiry)

    def _DeleteSession(self, command: c.DeleteSession, result: r.Result) -> None:  # noqa: N802
        if self._live_session(command.session_id, result) is not None:
            before = sum(1 for x in self.model.leases.values() if x.active and x.session == command.session_id)
            assert result == r.SessionDeleted(before)
            self.model.end_session(command.session_id, released=True)
            self.model.settle()
            del self.model.sessions[command.session_id]

    def _AcquireLock(self, command: c.AcquireLock, result: r.Result) -> None:  # noqa: N802
        self._acquire(command, (command.lock_key,), result)

    def _AcquireLocks(self, command: c.AcquireLocks, result: r.Result) -> None:  # noqa: N802
        self._acquire(command, command.lock_keys, result)

    def _acquire(self, command: c.AcquireLock | c.AcquireLocks, keys: tuple[str, ...], result: r.Result) -> None:
        model = self.model
        if self._refused_session(command, result):
            return
        ask = ModelWaiter(
            keys, command.client_id, command.lease_time_ms, command.mode, command.permits, command.session_id,
            command.lock_delay_ms, model.now + command.block_time_ms, isinstance(command, c.AcquireLocks),
        )  # fmt: skip
        held = [key for key in keys if model.held(key, command.client_id, lock=True) is not None]
        if not all(model.can_enter(key, ask) for key in held):
            assert isinstance(result, r.Denied) and result.code == self._mismatch(ask, held)
        elif all(model.can_enter(key, ask) and (key in held or not model.queue(key)) for key in keys):
            grants = result.grants if isinstance(result, r.LocksGranted) else (result,)
            for key, grant in zip(keys, grants, strict=True):
                assert isinstance(grant, r.LockGranted) and grant.lock_key == key
                model.enter(key, ask, 0)
            self.name_new_holds()
            for grant in grants:
                lease = model.leases[grant.lease_id]
                assert (grant.hold_count, grant.expires_ms) == (lease.count, model.ends(lease))
                assert (grant.fencing_token, grant.ttl_ms) == (lease.token, model.ends(lease) - model.now)
        elif command.block_time_ms and not held:
            assert isinstance(result, r.LockWaiting), result
            assert result.position == max(len(model.queue(key)) for key in keys)
            assert result.waiter_id > max(model.waiters, default=0)
            model.waiters[result.waiter_id] = ask
        else:
            assert isinstance(result, r.LockBusy), result
            assert result.queue_length == len(model.queue(result.lock_key))
            holders = [hold.client for hold in model.holders(result.lock_key)]
            assert result.holder in (holders or [None])

    def _mismatch(self, ask: ModelWaiter, held: list[str]) -> str:
        """Of the first key that the client holds in another way."""
        holds = [self.model.leases[self.model.held(key, ask.client, lock=True) or 0] for key in held]
        hold = next(x for x in holds if (x.mode, x.permits, x.session) != (ask.mode, ask.permits, ask.session))
        if hold.session != ask.session:
            return "session_mismatch"
        return "mode_mismatch" if hold.mode != ask.mode else "permits_mismatch"

    def _asked_again(self, wait: Wait, result: r.Result) -> None:
        """The same wait while it lasts, and its end afterwards."""
        wait.asked = self.index
        match self.model.ended.get(wait.told.waiter_id):
            case None:
                assert result == wait.told
            case "granted":
                grants = result.grants if isinstance(result, r.LocksGranted) else (result,)
                told = {grant.lock_key: grant.fencing_token for grant in grants if isinstance(grant, r.LockGranted)}
                assert told == self.grants[wait.told.waiter_id]
            case _:
                assert isinstance(result, r.LockBusy), result

    def _hold(self, command: c.RenewLock | c.ReleaseLock, result: r.Result) -> ModelLease | None:
        number = self.model.held(command.lock_key, command.client_id, lock=True)
        hold = self.model.leases[number] if number is not None else None
        if hold is not None and hold.token == command.fencing_token:
            return hold
        assert isinstance(result, r.Denied) and result.code == "not_holder"
        return None

    def _RenewLock(self, command: c.RenewLock, result: r.Result) -> None:  # noqa: N802
        hold = self._hold(command, result)
        if hold is not None and hold.session is not None:
            assert isinstance(result, r.Denied) and result.code == "session_owned"
        elif hold is not None:
            self._extend(hold, command.extend_time_ms)
            assert result == r.LockRenewed(hold.expiry - self.model.now, hold.expiry)

    def _ReleaseLock(self, command: c.ReleaseLock, result: r.Result) -> None:  # noqa: N802
        hold = self._hold(command, result)
        if hold is not None:
            hold.count -= 1
            assert result == r.LockReleased(hold.count)
            if not hold.count:
                self.model.end(hold, self.model.now, released=True)

    def _BreakLock(self, command: c.BreakLock, result: r.Result) -> None:  # noqa: N802
        holders = self.model.holders(command.lock_key)
        if not holders:
            assert isinstance(result, r.Denied) and result.code == "unknown_lock"
            return
        assert result == r.LockBroken(len(holders))
        for hold in holders:
            self.model.end(hold, self.model.now, released=False)

    def _CancelWaiter(self, command: c.CancelWaiter, result: r.Result) -> None:  # noqa: N802
        wait = self.waits.get(command.request_id or b"")
        granted = wait is not None and self.model.ended.get(wait.told.waiter_id) == "granted"
        if wait is not None and self.model.now < wait.until and wait.asked > command.asked:
            assert isinstance(result, r.Denied) and result.code == "asked_again"
        elif self.model.waiters.pop(command.waiter_id, None) is not None:
            assert result == r.WaitCancelled()
            self.waits = {key: x for key, x in self.waits.items() if x.told.waiter_id != command.waiter_id}
        elif wait is not None and granted and self.model.now < wait.until:
            assert result == r.WaitCancelled()
            del self.waits[command.request_id or b""]
            self._give_back(wait)
        else:
            assert isinstance(result, r.Denied) and result.code == "unknown_waiter"

    def _give_back(self, wait: Wait) -> None:
        for key, token in self.grants[wait.told.waiter_id].items():
            number = self.model.held(key, wait.command.client_id, lock=True)
            hold = self.model.leases[number] if number is not None else None
            if hold is not None and hold.token == token:
                hold.count -= 1
                if not hold.count:
                    self.model.end(hold, self.model.now, released=True)

    # --- comparing ------------------------------------------------------------------------------------------------

    def name_new_holds(self) -> None:
        """Gives the model's new holds the ids and tokens that the machine's events tell, which must be new."""
        events = self.machine.events_since(self.index - 1)
        assert not isinstance(events, Compacted)
        for event in events:
            if event.kind == "lock_granted" and event.waiter_id:
                self.grants.setdefault(event.waiter_id, {})[event.key] = event.fencing_token
            if event.kind in ("lock_granted", "lease_acquired") and event.fencing_token > self.last_token:
                assert event.fencing_token == self.last_token + 1
                self.last_token = event.fencing_token
                if event.kind == "lock_granted":
                    unnamed = [n for n, x in self.model.leases.items() if n < 0 and x.resource == event.key]
                    number = next(n for n in unnamed if self.model.leases[n].client == event.owner)
                    lease = self.model.leases.pop(number)
                    lease.token = event.fencing_token
                    self.model.leases[event.number] = lease
        self.model.granted.clear()

    def compare(self) -> None:
        self.name_new_holds()
        machine, model = self.machine, self.model
        check(machine.state)
        assert not any(number < 0 for number in model.leases), "the machine did not grant what the model did"
        views = machine.leases("default", list(model.leases))
        for view, (number, lease) in zip(views, model.leases.items(), strict=True):
            assert view is not None, (number, lease)
            assert view.state == ("ACTIVE" if lease.active else "EXPIRED")
            assert (view.client_id, view.resource_id, view.fencing_token) == (lease.client, lease.resource, lease.token)
            assert view.ttl_ms == (model.ends(lease) - model.now if lease.active else 0)
            if not lease.lock:
                assert view.reference_count == model.references(lease.resource)
        assert machine.state.leases.live == len(model.leases)
        assert machine.state.sessions.live == len(model.sessions)
        for number, session in model.sessions.items():
            seen = machine.session("default", number)
            assert seen is not None and seen.ttl_ms == max(0, session.expiry - model.now)
        known = machine.locks("default", "", 1000)
        expected = {x.resource for x in model.leases.values() if x.active and x.lock} | set(model.delayed)
        expected |= {key for waiter in model.waiters.values() for key in waiter.keys}
        assert {lock.lock_key for lock in known} == expected
        for lock in known:
            held = sorted((x.token, x.client, x.count) for x in model.holders(lock.lock_key))
            assert [(h.fencing_token, h.client_id, h.hold_count) for h in lock.holders] == held
            assert [w.waiter_id for w in lock.waiters] == model.queue(lock.lock_key)
            assert lock.delay_left_ms == max(0, model.delayed.get(lock.lock_key, 0) - model.now)
