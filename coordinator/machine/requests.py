"""Remembered requests: the same request id applies once and is answered the same, also after a failover.

Only requests that changed something are remembered: a denied one changed nothing, so repeating it is safe as it is.
Bounded in time, in number and in bytes; the oldest go first, on every node in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

from coordinator.machine.limits import MAX_REQUEST_BYTES, MAX_REQUESTS, REQUEST_MEMORY_MS
from coordinator.machine.results import Denied, HeartbeatAnswer, LeasesGranted, LocksGranted, Result

FORGET_PER_ENTRY = 1_000
OVERHEAD_BYTES = 128


@dataclass(frozen=True, slots=True)
class Remembered:
    expires_ms: int
    fingerprint: bytes
    """Of the command, so that one id for two different commands is noticed."""
    result: Result


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
    elif isinstance(result, LocksGranted):
        extra = 1024 * len(result.grants)
    return OVERHEAD_BYTES + len(key) + extra


class Requests:
    def __init__(self, max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self.remembered: dict[bytes, Remembered] = {}
        """Oldest first; that order is part of the state."""
        self.size_bytes = 0

    def recall(self, key: bytes, fingerprint: bytes, now_ms: int) -> Result | None:
        found = self.remembered.get(key)
        if found is None or found.expires_ms <= now_ms:
            return None
        if found.fingerprint != fingerprint:
            return Denied("request_id_reused", "this request id was used for another request; use a new one")
        return found.result

    def remember(self, key: bytes, fingerprint: bytes, result: Result, now_ms: int) -> None:
        self._forget(key)
        self.remembered[key] = Remembered(now_ms + REQUEST_MEMORY_MS, fingerprint, result)
        self.size_bytes += size_of(key, result)
        while len(self.remembered) > self._max_requests or self.size_bytes > self._max_bytes:
            self._forget(next(iter(self.remembered)))

    def conclude(self, key: bytes, result: Result) -> None:
        """The final answer in the place of `LockWaiting`, for whoever asks again with the same id."""
        found = self.remembered.get(key)
        if found is not None:
            self.size_bytes += size_of(key, result) - size_of(key, found.result)
            self.remembered[key] = replace(found, result=result)

    def forget_old(self, now_ms: int) -> None:
        for _ in range(min(FORGET_PER_ENTRY, len(self.remembered))):
            key = next(iter(self.remembered))
            if self.remembered[key].expires_ms > now_ms:
                return
            self._forget(key)

    def forget_namespace(self, namespace: int) -> None:
        prefix = key_of(namespace, b"")
        for key in [key for key in self.remembered if key.startswith(prefix)]:
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        found = self.remembered.pop(key, None)
        if found is not None:
            self.size_bytes -= size_of(key, found.result)

    def restore(self, remembered: dict[bytes, Remembered]) -> None:
        self.remembered = remembered
        self.size_bytes = sum(size_of(key, entry.result) for key, entry in remembered.items())
