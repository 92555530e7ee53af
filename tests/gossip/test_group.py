"""Five gossip nodes as processes: a partition, a holder away through the delete, kills; nothing comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gossip.group import REPOSITORY, Links, Member
from tests.ports import free_address
from tests.waiting import wait_until

LONG_S = 100


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[list[Member], Links]]:
    """g1, g2 and g3 reach g4 and g5 through the gate only, and the other way round."""
    names = [f"g{number}" for number in range(1, 6)]
    addresses = [free_address() for _ in names]
    with Links(addresses) as gate:
        through = [endpoint.removeprefix("http://") for endpoint in gate.endpoints]
        members = []
        for place, name in enumerate(names):
            peers = [
                addresses[other] if (other < 3) == (place < 3) else through[other]
                for other in range(5)
                if other != place
            ]
            members.append(Member(tmp_path, name, addresses[place], peers))
        try:
            for member in members:
                member.start()
            yield members, gate
        finally:
            for member in members:
                member.end(signal.SIGKILL)


def everywhere(members: list[Member], record_id: str, *states: str) -> bool:
    return all(member.has(record_id) in states for member in members)


@pytest.mark.slow
def test_partition_heal_and_a_holder_away_through_the_delete(group: tuple[list[Member], Links]) -> None:
    members, gate = group
    near, far, away = members[:3], members[3], members[4]
    members[0].ask("create", "x", b"content of x")
    members[3].ask("create", "y", b"content of y")
    wait_until(lambda: everywhere(members, "x", "record"), LONG_S, "x on all nodes")
    wait_until(lambda: everywhere(members, "y", "record"), LONG_S, "y on all nodes")

    away.end(signal.SIGKILL)
    gate.cut()
    members[1].ask("delete", "x")
    wait_until(lambda: everywhere(near, "x", "tombstone"), LONG_S, "the tombstone on the near side")
    members[1].end(signal.SIGKILL)
    members[1].start()
    assert members[1].has("x") == "tombstone"
    rounds = members[0].status()["round"]
    wait_until(lambda: members[0].status()["round"] > rounds + 30, LONG_S, "rounds to pass in vain")
    assert everywhere(near, "x", "tombstone"), "nobody keeps or purges while two holders are missing"
    assert members[0].status()["tombstones"]["x"]["waits_for"] == ["g4", "g5"]
    assert far.has("x") == "record"

    gate.mend()
    wait_until(lambda: far.has("x") == "tombstone", LONG_S, "the tombstone on the far side")
    away.start()
    wait_until(lambda: away.has("x") != "record", LONG_S, "the holder that was away to drop its copy")
    wait_until(lambda: everywhere(members, "x", "", "keeper"), LONG_S, "keepers and nothing else")
    wait_until(lambda: [member.has("x") for member in members].count("keeper") == 1, LONG_S, "one keeper")
    assert members[0].has("x") == "keeper"

    rounds = away.status()["round"]
    wait_until(lambda: away.status()["round"] > rounds + 20, LONG_S, "some rounds more")
    assert [member.has("x") for member in members] == ["keeper", "", "", "", ""]
    assert everywhere(members, "y", "record")
    assert [member.end() for member in members] == [0] * 5


def test_a_node_comes_back_with_what_it_had(tmp_path: Path) -> None:
    member = Member(tmp_path, "g1", free_address(), [])
    try:
        member.start()
        member.ask("create", "x", b"1")
        member.ask("create", "y", b"2")
        member.ask("delete", "y")
        member.end(signal.SIGKILL)
        member.start()
        seen = member.status()
        assert seen is not None
        assert seen["incarnation"] == 2
        assert seen["records"] == ["x"]
        assert list(seen["tombstones"]) == ["y"]
    finally:
        member.end(signal.SIGKILL)


def test_a_person_can_put_delete_and_look(tmp_path: Path) -> None:
    member = Member(tmp_path, "g1", free_address(), [])

    def holdfast(*words: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        at = ["--at", member.address, "--secret-file", str(tmp_path / "secret")]
        command = [sys.executable, "-m", "coordinator.cli", "gossip", *words, *at]
        return subprocess.run(command, cwd=REPOSITORY, input=content, capture_output=True, check=False, timeout=120)

    try:
        member.start()
        assert holdfast("put", "x", content=b"hello").stdout == b"x held\n"
        assert holdfast("delete", "x").stdout == b"x deleted\n"
        again = holdfast("put", "x", content=b"hello")
        assert (again.returncode, b"was deleted" in again.stderr) == (1, True)
        assert list(json.loads(holdfast("status", "--json").stdout)["tombstones"]) == ["x"]
        assert b"g1" in holdfast("status").stdout
        (tmp_path / "secret").write_bytes(b"not the secret at all")
        assert holdfast("status").returncode == 75
    finally:
        member.end(signal.SIGKILL)
