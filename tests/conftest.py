"""The order of all tests."""

from __future__ import annotations

import pytest

FIRST = (
    "tests/sim",
    "tests/machine/test_scale",
    "tests/api/test_schema",
    "tests/client",
    "tests/processes",
    "tests/cli",
    "tests/rpc",
)
"""What takes longest begins first, so that nothing is left to wait for alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((place for place, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))

    items.sort(key=place)
