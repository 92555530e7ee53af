"""Remembered requests: the same request id applies once and is answered the same, also after a failover.

Requests that changed something are remembered, and, apart from them and for as long as a try of theirs may still be
under way, those that were refused: an earlier try that comes later must not do what its client was told is not done.
But not those that are refused for want of room, whose client is told to ask again.
Bounded in time, in number and in bytes. When there are too many, the oldest go first, on every node in the same order:
of the namespace that has the most, so that none can make another's be forgotten (below the level SHARES, of all).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from hashlib import blake2b
from heapq import heappop, heappush, heapreplace

import numpy as np

from coordinator.machine.limits import (
    MAX_REFUSAL_BYTES,
    MAX_REFUSALS,
    MAX_REQUEST_BYTES,
    MAX_REQUESTS,
    REFUSAL_MEMORY_MS,
    REQUEST_MEMORY_MS,
)
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
from coordinator.machine.values import value

ASK_AGAIN = ("quota_exceeded", "capacity_exceeded")
"""Refusals after which the same request may be made again, under its id."""
FORGET_PER_ENTRY = 1_000
STALE_ALLOWANCE = 64
OVERHEAD_BYTES = 128


@value(frozen=True, slots=True)
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


def _namespace_of(key: bytes) -> int:
    return int.from_bytes(key[:2], "little")


_LISTS = frozenset({
    HeartbeatAnswer, LeasesGranted, ResourcesPut, ReclaimsAnswered, LocksGranted, ReclaimsClaimed, TasksAcquired,
    TasksPut, TasksAnswered, CopiesVerified, WorkerSeen, Denied,
})  # fmt: skip
"""Answers whose size is not nearly always the same."""


def _told_bytes(told: object) -> int:
    """Of what a refusal says: the path of a cycle that it names may be a thousand long names."""
    if isinstance(told, tuple):
        return 64 + sum(map(_told_bytes, told))
    return 64 + (len(told.encode()) if isinstance(told, str) else 0)


def size_of(key: bytes, result: Result) -> int:
    extra = 0
    if type(result) not in _LISTS:
        pass
    elif isinstance(result, Denied):
        extra = _told_bytes(result.message) + sum(map(_told_bytes, result.details.values()))
    elif isinstance(result, HeartbeatAnswer):
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


class _Shares:
    """How many requests each namespace has, or how many bytes of them. The largest is found without a walk in Python:
    in a memory that is full every request asks for it, and there may be thousands of namespaces."""

    def __init__(self) -> None:
        self._column = np.zeros(64, dtype=np.int64)
        self._view = self._column.data
        """The same: of single values quicker."""

    def __getitem__(self, namespace: int) -> int:
        count: int = self._view[namespace]
        return count

    def add(self, namespace: int, by: int) -> None:
        if namespace >= len(self._view):
            self._column = np.concatenate((self._column, np.zeros(namespace + 1, dtype=np.int64)))
            self._view = self._column.data
        self._view[namespace] += by

    def largest(self) -> int:
        """Of equal ones the first."""
        return int(self._column.argmax())


class Requests:
    def __init__(
        self,
        max_requests: int = MAX_REQUESTS,
        max_bytes: int = MAX_REQUEST_BYTES,
        memory_ms: int = REQUEST_MEMORY_MS,
    ) -> None:
        self._max_requests, self._max_bytes, self._memory_ms = max_requests, max_bytes, memory_ms
        self.remembered: dict[bytes, Remembered] = {}
        """Oldest first; that order is part of the state."""
        self.size_bytes = 0
        self._ages: dict[int, deque[tuple[int, bytes]]] = {}
        """By namespace, those that have some or had: serials and keys, oldest first; those of requests forgotten or
        asked anew are skipped, and dropped when they are half of what is there. (Not the order of a dictionary: its
        first key is found by walking over all keys that were ever before it.)"""
        self._counts, self._sizes = _Shares(), _Shares()
        self._heads: list[tuple[int, int]] = []
        """A heap with one serial of each of these namespaces, no younger than its oldest."""
        self._last_serial = 0

    def last_asked(self, key: bytes) -> int:
        found = self.remembered.get(key)
        return 0 if found is None else found.asked

    def recall(self, key: bytes, fingerprint: bytes, now_ms: int, revision: int) -> Result | None:
        found = self.remembered.get(key)
        if found is None or found.expires_ms <= now_ms:
            return None
        if found.fingerprint != fingerprint:
            return Denied("request_id_reused", "this request id was used for another request; use a new one")
        self.remembered[key] = replace(found, asked=revision)
        return found.result

    def remember(
        self, key: bytes, fingerprint: bytes, result: Result, now_ms: int, revision: int, *, shares: bool = False
    ) -> None:
        """`shares`: too many are the fault of the namespace that has the most."""
        self.forget(key)
        self._last_serial += 1
        self._add(key, Remembered(now_ms + self._memory_ms, fingerprint, result, revision, self._last_serial))
        while len(self.remembered) > self._max_requests or self.size_bytes > self._max_bytes:
            self.forget(self._oldest_of(self._largest() if shares else self._with_oldest()))

    def _add(self, key: bytes, entry: Remembered) -> None:
        namespace = _namespace_of(key)
        ages = self._ages.get(namespace)
        if ages is None:
            ages = self._ages[namespace] = deque()
            heappush(self._heads, (entry.serial, namespace))
        self.remembered[key] = entry
        ages.append((entry.serial, key))
        self._counts.add(namespace, 1)
        self._resize(namespace, size_of(key, entry.result))

    def _resize(self, namespace: int, by: int) -> None:
        self.size_bytes += by
        self._sizes.add(namespace, by)

    def _oldest_of(self, namespace: int) -> bytes:
        ages = self._ages[namespace]
        while True:
            serial, key = ages[0]
            if self._is_remembered(serial, key):
                return key
            ages.popleft()

    def _is_remembered(self, serial: int, key: bytes) -> bool:
        """And has not been asked anew since."""
        found = self.remembered.get(key)
        return found is not None and found.serial == serial

    def _with_oldest(self) -> int:
        """The namespace that has the oldest of all; there is one."""
        while True:
            serial, namespace = self._heads[0]
            if not self._counts[namespace]:
                heappop(self._heads)
                del self._ages[namespace]
                continue
            oldest = self.remembered[self._oldest_of(namespace)].serial
            if oldest == serial:
                return namespace
            heapreplace(self._heads, (oldest, namespace))

    def _largest(self) -> int:
        """The namespace that has the most of what there is too much of."""
        many = len(self.remembered) > self._max_requests
        return (self._counts if many else self._sizes).largest()

    def conclude(self, key: bytes, result: Result) -> None:
        """The final answer in the place of `LockWaiting`, for whoever asks again with the same id."""
        found = self.remembered.get(key)
        if found is not None:
            self._resize(_namespace_of(key), size_of(key, result) - size_of(key, found.result))
            self.remembered[key] = replace(found, result=result)

    def forget_old(self, now_ms: int) -> None:
        for _ in range(min(FORGET_PER_ENTRY, len(self.remembered))):
            key = self._oldest_of(self._with_oldest())
            if self.remembered[key].expires_ms > now_ms:
                return
            self.forget(key)

    def forget_namespace(self, namespace: int) -> None:
        prefix = key_of(namespace, b"")
        for key in [key for key in self.remembered if key.startswith(prefix)]:
            self.forget(key)

    def forget(self, key: bytes) -> None:
        found = self.remembered.pop(key, None)
        if found is None:
            return
        namespace = _namespace_of(key)
        self._resize(namespace, -size_of(key, found.result))
        self._counts.add(namespace, -1)
        ages, count = self._ages[namespace], self._counts[namespace]
        if not count:
            ages.clear()
        elif len(ages) > 2 * count + STALE_ALLOWANCE:
            self._ages[namespace] = deque(age for age in ages if self._is_remembered(*age))

    def restore(self, remembered: dict[bytes, Remembered]) -> None:
        for serial, (key, entry) in enumerate(remembered.items(), 1):
            self._add(key, replace(entry, serial=serial))
        self._last_serial = len(remembered)


def refusals() -> Requests:
    """For those that were refused."""
    return Requests(MAX_REFUSALS, MAX_REFUSAL_BYTES, REFUSAL_MEMORY_MS)
