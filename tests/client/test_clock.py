"""How long a hold is relied on: never longer than the cluster keeps it, whichever way two clocks are off."""

from __future__ import annotations

import pytest

from coordinator.client import clock


@pytest.mark.parametrize("drift", [0.0, 0.001, clock.DRIFT, 0.1])
@pytest.mark.parametrize("ttl_s", [0.3, 10.0, 3600.0])
def test_a_slow_client_stops_before_a_fast_leader_gives_it_to_another(ttl_s: float, drift: float) -> None:
    relied_on_s = clock.valid_until(0.0, ttl_s, drift)  # by the client's clock
    stops, kept = relied_on_s / (1 - drift), ttl_s / (1 + drift)  # in true time, with both as wrong as they may be
    assert kept - 2 * clock.JITTER_S < stops < kept
