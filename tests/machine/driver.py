"""One machine to talk to in tests: commands in, results out, invariants after each entry."""

from __future__ import annotations

from typing import Any

from coordinator.machine import commands as c
from coordinator.machine import results as r
from coordinator.machine.codec import encode_command
from coordinator.machine.events import Compacted, Event
from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine


class Driver:
    def __init__(self) -> None:
        self.machine = Machine()
        self.index = self.now_ms = 0
        self.log: list[tuple[int, int, list[bytes]]] = []

    def entry(self, *raw: bytes) -> list[r.Result]:
        self.index += 1
        self.log.append((self.index, self.now_ms, list(raw)))
        results = self.machine.apply(self.index, self.now_ms, raw)
        check(self.machine.state)
        return results

    def do(self, command: c.Command, *, namespace: str = "default", request_id: bytes | None = None) -> Any:
        return self.entry(encode_command(command, namespace, request_id))[0]

    def pass_time(self, by_ms: int) -> None:
        """And let one entry apply."""
        self.now_ms += by_ms
        self.entry()

    def events(self, since: int | None = None) -> list[Event]:
        """Of the last entry, or since a revision."""
        events = self.machine.events_since(self.index - 1 if since is None else since)
        assert not isinstance(events, Compacted)
        return events

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events()]

    def lock(self, key: str = "k", client: str = "a", lease_ms: int = 10_000, block_ms: int = 0, **more: Any) -> Any:
        request_id = more.pop("request_id", None)
        return self.do(c.AcquireLock(key, client, lease_ms, block_ms, **more), request_id=request_id)

    def unlock(self, grant: r.LockGranted) -> Any:
        return self.do(c.ReleaseLock(grant.lock_key, grant.client_id, grant.fencing_token))

    def lease(self, resource: str = "r", client: str = "a", ms: int = 10_000, **more: Any) -> Any:
        return self.do(c.AcquireLease(resource, client, ms, **more))

    def session(self, client: str = "a", ttl_ms: int = 5_000) -> int:
        created = self.do(c.CreateSession(client, ttl_ms))
        assert isinstance(created, r.SessionCreated)
        return created.session_id

    def holders(self, key: str = "k") -> list[str]:
        view = self.machine.lock("default", key)
        return [] if view is None else [holder.client_id for holder in view.holders]

    def queue(self, key: str = "k") -> list[str]:
        view = self.machine.lock("default", key)
        return [] if view is None else [waiter.client_id for waiter in view.waiters]

    def code(self, command: c.Command) -> str:
        """Of the denial that `command` gets; nothing may have changed."""
        self.entry()  # what time alone changes
        before = self.machine.digest()
        result = self.do(command)
        assert isinstance(result, r.Denied), result
        assert self.machine.digest() == before, "a denied command changed the state"
        return result.code
