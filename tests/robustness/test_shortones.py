"""A short lock, lease or session that any node still has, on any page, is found; and only what was granted counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.checkers.violation import Violation
from tests.robustness import shortones
from tests.robustness.leaseclients import hex_id
from tests.robustness.shortones import ShortOnes
from tests.robustness.slices import Slice

OTHERS = 5
"""Of each kind, which nobody said are short; two are a page."""


def lock(key: str, holder: str) -> dict[str, Any]:
    return {"lock_key": key, "holders": [{"client_id": holder}]}


class Told:
    """Nodes with something in them, which answer in pages; `more`: what the second has besides, at the end."""

    names = ("n1", "n2")

    def __init__(self, more: Mapping[str, dict[str, Any]]) -> None:
        self._more = more

    def _all(self, node: str, kind: str) -> list[dict[str, Any]]:
        found: dict[str, list[dict[str, Any]]] = {
            "locks": [lock(f"kept/{each}", "keeper") for each in range(OTHERS)],
            "leases": [{"resource_id": f"kept/{each}", "client_id": "keeper"} for each in range(OTHERS)],
            "sessions": [session(each, "other", "ACTIVE") for each in range(OTHERS)],
        }
        return found[kind] + ([self._more[kind]] if node == "n2" and kind in self._more else [])

    async def ask(self, node: str, path: str) -> dict[str, Any]:
        url = urlsplit(path)
        kind, query = url.path.rpartition("/")[2], parse_qs(url.query)
        limit, found, after = int(query["limit"][0]), self._all(node, kind), query.get("after", [""])[0]
        if kind == "locks":
            return {"locks": [each for each in found if each["lock_key"] > unquote(after)][:limit]}
        begin = int(after or "0", 16)
        return {
            kind: found[begin : begin + limit],
            "next": f"{begin + limit:x}" if begin + limit < len(found) else None,
        }


def session(number: int, owner: str, state: str) -> dict[str, Any]:
    return {"session_id": hex_id(number), "client_id": owner, "state": state}


def short_ones() -> ShortOnes:
    done = Slice(3, locks=1, owners=1, fleeting=1)
    done.may_end("locks", "z/1", "a", 7, 10.0)
    done.may_end("locks", "z/2", "b", None, 10.0)
    done.may_end("locks", "z/3", "c", 8, 10.0)
    done.given_back("locks", "z/3", "c", 8)
    done.may_end("leases", "z/r of a", "a", 5, 10.0)
    done.may_end("leases", "session 9 of a", "a", 9, 10.0)
    short = ShortOnes()
    short.add(done)
    return short


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortones, "LISTED", 2)
    monkeypatch.setattr(shortones, "LASTS_S", -shortones.ALLOWED_S - 1.0)


def test_only_what_was_granted_and_left_to_end_counts() -> None:
    assert short_ones().left == {"locks": 1, "leases": 1, "sessions": 1}
    untold, nothing = ShortOnes(), Slice(1, locks=1, owners=1, fleeting=6)
    untold.add(nothing)
    assert untold.left.total() == 0


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("locks", lock("z/1", "a")),
        ("locks", lock("z/2", "b")),
        ("leases", {"resource_id": "z/r", "client_id": "a"}),
        ("sessions", session(9, "a", "ACTIVE")),
    ],
)
def test_one_that_stays_on_one_node_is_found_on_its_last_page(kind: str, there: dict[str, Any]) -> None:
    with pytest.raises(Violation, match=r"expired_goes: n2 has 1 short ones .* \(I5\)"):
        asyncio.run(short_ones().end(Told.names, Told({kind: there}).ask, lambda: 0.0))


def test_others_may_stay_and_what_is_over_may_be_told_of() -> None:
    more = {"locks": lock("z/1", "another"), "sessions": session(9, "a", "EXPIRED")}
    asyncio.run(short_ones().end(Told.names, Told(more).ask, lambda: 0.0))


def test_it_may_take_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortones, "LASTS_S", 60.0)
    more = {"locks": lock("z/1", "a")}
    nodes = Told(more)

    async def ask(node: str, path: str) -> dict[str, Any]:
        answer = await nodes.ask(node, path)
        if node == "n2" and "sessions" in path:
            more.clear()
        return answer

    asyncio.run(short_ones().end(Told.names, ask, lambda: 0.0))
    assert not more
