"""Remembered requests: the same request id applies once and is answered the same, also after a failover.

Only requests that changed something are remembered: a denied one changed nothing, so repeating it is safe as it is.
Bounded in time, in number and in bytes; the oldest go first, on every node in the same order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from hashlib import blake2b

from coordinator.machine.limits import MAX_REQUEST_BYTES, MAX_REQUESTS, REQUEST_MEMORY_MS
from coordinator.machine.results import (
    Denied,
    HeartbeatAnswer,
    LeasesGranted,
    LocksGranted,
    ReclaimsAnswered,
    ReclaimsClaimed,
    ResourcesPut,
    Result,
)
from coordinator.machine.taskresults import TasksAcquired, TasksAnswered, TasksPut, WorkerSeen
from coordinator.machine.tombstoneresults import CopiesVerified

FORGET_PER_ENTRY = 1_000
OVERHEAD_BYTES = 128


@dataclass(frozen=True, slots=True)
class Remembered:
    expires_ms: int
    fingerprint: bytes
    """Of the command, so that one id for two different commands is noticed."""
    result: Result
    asked: int
    """The last revision that asked for it: who cancels what it asked for earlier must not take it from a retry."""
    serial: int = 0
    """Which entry of the queue of ages is this one's."""


def fingerprint_of(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=8).digest()


def key_of(namespace: int, request_id: bytes) -> bytes:
    return namespace.to_bytes(2, "little") + request_id


def size_of(key: bytes, result: Result) -> int:
    extra = 0
    if isinstance(result, HeartbeatAnswer):
        extra = len(result.failed_ids) + len(result.verdicts)
    elif isinstance(result, LeasesGranted):
        extra = len(result.lease_ids)
    elif isinstance(result, ResourcesPut):
        extra = len(result.resource_ids)
    elif isinstance(result, ReclaimsAnswered):
        extra = len(result.verdicts)
    elif isinstance(result, LocksGranted):
        extra = 1024 * len(result.grants)
    elif isinstance(result, ReclaimsClaimed):
        extra = 1024 * len(result.items)
    elif isinstance(result, TasksAcquired):
        extra = sum(256 + len(task.payload) for task in result.tasks)
    elif isinstance(result, TasksPut):
        extra = 48 * len(result.task_ids)
    elif isinstance(result, TasksAnswered):
        extra = len(result.verdicts)
    elif isinstance(result, CopiesVerified):
        extra = len(result.keep)
    elif isinstance(result, WorkerSeen):
        extra = 512 * (len(result.shards) + len(result.revoking))
    return OVERHEAD_BYTES + len(key) + extra


class Requests:
    def __init__(self, max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self.remembered: dict[bytes, Remembered] = {}
        """Oldest first; that order is part of the state."""
        self.size_bytes = 0
        self._ages: deque[tuple[int, bytes]] = deque()
        """Serials and keys, oldest first; those of requests forgotten or asked anew are skipped. (Not the order
        of the dictionary: its first key is found by walking over all keys that were ever before it.)"""
        self._last_serial = 0

    def recall(self, key: bytes, fingerprint: bytes, now_ms: int, revision: int) -> Result | None:
        found = self.remembered.get(key)
        if found is None or found.expires_ms <= now_ms:
            return None
        if found.fingerprint != fingerprint:
            return Denied("request_id_reused", "this request id was used for another request; use a new one")
        self.remembered[key] = replace(found, asked=revision)
        return found.result

    def remember(self, key: bytes, fingerprint: bytes, result: Result, now_ms: int, revision: int) -> None:
        self.forget(key)
        self._last_serial += 1
        self.remembered[key] = Remembered(now_ms + REQUEST_MEMORY_MS, fingerprint, result, revision, self._last_serial)
        self._ages.append((self._last_serial, key))
        self.size_bytes += size_of(key, result)
        while len(self.remembered) > self._max_requests or self.size_bytes > self._max_bytes:
            self.forget(self._oldest())

    def _oldest(self) -> bytes:
        """Of what is remembered, which is something."""
        while True:
            serial, key = self._ages[0]
            found = self.remembered.get(key)
            if found is not None and found.serial == serial:
                return key
            self._ages.popleft()

    def conclude(self, key: bytes, result: Result) -> None:
        """The final answer in the place of `LockWaiting`, for whoever asks again with the same id."""
        found = self.remembered.get(key)
        if found is not None:
            self.size_bytes += size_of(key, result) - size_of(key, found.result)
            self.remembered[key] = replace(found, result=result)

    def forget_old(self, now_ms: int) -> None:
        for _ in range(min(FORGET_PER_ENTRY, len(self.remembered))):
            key = self._oldest()
            if self.remembered[key].expires_ms > now_ms:
                return
            self.forget(key)

    def forget_namespace(self, namespace: int) -> None:
        prefix = key_of(namespace, b"")
        for key in [key for key in self.remembered if key.startswith(prefix)]:
            self.forget(key)

    def forget(self, key: bytes) -> None:
        found = self.remembered.pop(key, None)
        if found is not None:
            self.size_bytes -= size_of(key, found.result)

    def restore(self, remembered: dict[bytes, Remembered]) -> None:
        self.remembered = {
            key: replace(entry, serial=serial) for serial, (key, entry) in enumerate(remembered.items(), 1)
        }
        self._last_serial = len(remembered)
        self._ages = deque((entry.serial, key) for key, entry in self.remembered.items())
        self.size_bytes = sum(size_of(key, entry.result) for key, entry in remembered.items())
