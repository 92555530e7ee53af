"""Who a node is to its peers, and what it shares with them: what either side brings to `cluster.handshake`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.messages import incarnation
from cluster.options import OptionsError, Timing

SECRET_MIN_BYTES = 16


def _nobody(node_id: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who this node is, what it demands of others, and the secret they share."""

    node_id: str
    cluster_id: str
    secret: bytes = field(repr=False)
    incarnation: int
    timing: Timing
    peer_allowed: Callable[[str], bool]
    peer_removed: Callable[[str], bool] = _nobody
    """Only words the refusal of an id that is not allowed: once a member, or never."""
    previous_secret: bytes | None = field(default=None, repr=False)
    """Good as well while the secret is being changed, for whoever has not got the new one yet."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        return (self.secret,) if self.previous_secret is None else (self.secret, self.previous_secret)

    @property
    def pace(self) -> tuple[int, int]:
        """Δ in µs and drift in ppm: whole numbers, so that equal settings are equal on the wire."""
        return round(self.timing.election_min * 1e6), round(self.timing.drift * 1e6)

    def check(self) -> None:
        shortest = min(map(len, self.secrets))
        if shortest < SECRET_MIN_BYTES:
            raise OptionsError(
                f"the cluster secret has {shortest} bytes and needs at least {SECRET_MIN_BYTES}: "
                "make one with `openssl rand -hex 32` and give it to every node"
            )
        if not incarnation(self.incarnation):
            raise OptionsError("incarnation must be a random integer of 64 bits")
