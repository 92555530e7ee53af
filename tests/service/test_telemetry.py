"""What a node counts about itself, where the numbers are more than counters."""

from __future__ import annotations

from coordinator.machine import results as r
from coordinator.telemetry import RECENT_S, Recent, Telemetry


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_of_refused_renewals_is_of_the_last_minute() -> None:
    clock = Clock()
    recent = Recent(clock)
    assert recent.refused_part == 0
    recent.count(0, 10)
    assert recent.refused_part == 1
    clock.now += RECENT_S / 2
    recent.count(30, 0)
    assert recent.refused_part == 0.25
    clock.now += RECENT_S / 2
    assert recent.refused_part == 0, "what was refused a minute ago is still told of"
    recent.count(10, 40)
    assert recent.refused_part == 0.5
    clock.now += 10 * RECENT_S
    assert recent.refused_part == 0


def test_of_a_busy_hour_a_minute_is_kept() -> None:
    clock = Clock()
    recent = Recent(clock)
    for _ in range(3_600):
        clock.now += 1
        recent.count(3, 1)
        recent.count(3, 1)
    assert recent.refused_part == 0.25
    assert len(recent._seconds) <= RECENT_S


def test_every_renewal_counts_in_both() -> None:
    telemetry = Telemetry()
    telemetry.answered(r.HeartbeatAnswer(7, bytes(16), b"\x01\x01", 0), 0.001)
    telemetry.renewal_denied()
    assert (telemetry.renewals, telemetry.renewal_failures) == (7, 3)
    assert telemetry.recent_renewals.refused_part == 0.3
