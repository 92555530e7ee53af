"""The settings of what clients may take: defaults, and mistakes in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.clientlimits import ClientLimits
from coordinator.config import parse_config
from tests.config.test_config import minimal, refusal


def test_without_the_table_the_defaults_hold() -> None:
    assert parse_config(minimal(), Path("/")).clients == ClientLimits()


def test_origins_are_compared_in_small_letters() -> None:
    config = parse_config(minimal(clients={"origins": "https://Ops.example.org  http://b:81"}), Path("/"))
    assert config.clients.allowed_origins == {"https://ops.example.org", "http://b:81"}


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"connections": 0}, "clients.connections"),
        ({"connections": 10}, "clients.connections_per_address"),
        ({"connections": 2_000_000}, "1,000,000"),
        ({"header_seconds": 0}, "clients.header_seconds"),
        ({"body_seconds": 1e9}, "clients.body_seconds"),
        ({"idle_seconds": "5"}, "clients.idle_seconds must be a number"),
        ({"origins": "ops.example.org"}, "scheme://host"),
        ({"origins": "https://ops.example.org/path"}, "without a path"),
        ({"header_second": 1}, "did you mean clients.header_seconds?"),
    ],
)
def test_mistakes_name_the_setting(table: dict[str, object], named: str) -> None:
    assert named in refusal(minimal(clients=table))
