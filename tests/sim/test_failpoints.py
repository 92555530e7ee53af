"""Every named point crashes once and fails once, under load, and the cluster is whole again each time."""

from __future__ import annotations

from tests.sim.failpoints import PORTS, RECLAIM, fire_all, points
from tests.sim.graphrun import GraphRun
from tests.sim.registerrun import RegisterRun

RARE = {"send.echo", "receive.echo", "send.stale_term", "receive.stale_term"}
"""Reached when a schedule happens to, not each time."""


def test_there_are_enough_of_them() -> None:
    assert len(points(PORTS) + points(RECLAIM)) >= 40


def test_no_point_of_a_port_loses_an_acknowledged_write() -> None:
    failpoints = fire_all(RegisterRun, PORTS, every_s=0.5)
    assert list(failpoints.wanted) == []
    assert set(failpoints.reached) - set(points(PORTS)) <= RARE, "an operation of a port without a name"


def test_no_point_of_the_reclaim_path_reclaims_what_is_reachable_or_forgets_garbage() -> None:
    assert list(fire_all(GraphRun, RECLAIM, every_s=6.0).wanted) == []
