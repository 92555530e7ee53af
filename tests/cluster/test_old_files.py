"""A file of the data directory that is lost, or an older one of its kind in its place: nothing acknowledged goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from cluster import lives
from cluster.guards import ALL_ON, Guards
from cluster.levels import levels_of, told
from cluster.lives import _TOLD
from cluster.options import Limits
from cluster.ports import Committed, Outcome
from tests.cluster.mixed import as_before_levels
from tests.hazards.schedule import Directed, without
from tests.reference.register import RegisterMachine
from tests.sim.disk import SimDisk

IDENTITY, LIVES, MEMBERS, LOG = "/data/identity", "/data/identity.lives", "/data/members", "/data/log"
EVERYTHING = "/data"


def _files(disk: SimDisk, path: str) -> dict[str, bytes]:
    return {name: bytes(inode.current) for name, inode in disk._names.items() if name.startswith(path)}


def _replace(disk: SimDisk, path: str, files: dict[str, bytes]) -> None:
    """For good: a power cut does not undo it."""
    for name in _files(disk, path):
        disk.unlink(name)
        disk.sync_directory(name.rpartition("/")[0])
    for name, content in files.items():
        disk.overwrite(name, content)


def _copy(world: Directed, name: str = "n3") -> dict[str, bytes]:
    with world.disk_of(name) as disk:
        return _files(disk, EVERYTHING)


def _written_since(
    *, only_by: tuple[str, ...] = (), same_life: bool = False, guards: Guards = ALL_ON
) -> tuple[Directed, dict[str, bytes]]:
    """n1 leads, n3 has acknowledged what was written since its files were copied; with `only_by` no other node has.

    They were copied before its last start, or since.
    """
    world = Directed(1, guards=guards)
    world.begin("n1")
    world.commit("n1", "put", "old", 1)
    world.run(1)
    if not same_life:
        world.crash("n3", power=False)
    copied = _copy(world)
    world.start("n3")
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    world.run(2)
    if only_by:
        world.split(set(only_by), set(world.sites) - set(only_by))
    for number in range(5):
        world.commit("n1", "put", "kept", number)
    world.run(1)
    return world, copied


def _with_files_of(world: Directed, path: str, files: dict[str, bytes]) -> None:
    world.crash("n3")
    with world.disk_of("n3") as disk:
        before = _files(disk, path)
        _replace(disk, path, {name: content for name, content in files.items() if name.startswith(path)})
        assert before, "there was something to replace"
    world.sites["n3"].damaged = path == LOG
    world.start("n3")
    world.heal()


def _told(world: Directed, kind: str) -> list[tuple[str, str]]:
    """Who said it, of whom."""
    return [(who, fields["peer"]) for _, who, what, fields in world.timeline if what == kind]


def _change(world: Directed, act: Callable[[Callable[[Outcome], None]], Any]) -> None:
    outcomes: list[Outcome] = []
    while not any(isinstance(outcome, Committed) for outcome in outcomes):
        world.call("n1", lambda: act(outcomes.append))
        world.run(0.2)
        assert world.now < 60, outcomes[-1:]


@pytest.mark.parametrize("path", [IDENTITY, LIVES, MEMBERS, LOG])
def test_one_whose_file_is_lost_elects_nobody_without_what_it_acknowledged(path: str) -> None:
    world, _ = _written_since(only_by=("n1", "n3"))
    world.crash("n1")
    _with_files_of(world, path, {})
    world.run(10)
    assert all(world.value(node.options.node_id, "kept") == 4 for node in world.nodes() if node.leadership.ready)
    # With the members in its settings it is what it was; without its votes or its name it takes no part.
    assert (world.leader() is not None) is (path in (MEMBERS, LIVES))
    world.start("n1")
    world.reach(lambda: world.caught_up("n1", "n2"), 10)
    assert world.value("n1", "kept") == world.value("n2", "kept") == 4


def test_one_that_lost_its_identity_is_told_apart_and_the_operator_hears_what_to_do() -> None:
    world, _ = _written_since()
    _with_files_of(world, IDENTITY, {})
    world.run(5)
    told = [fields for _, who, kind, fields in world.timeline if (who, kind) == ("n1", "peer_lost_its_directory")]
    assert [fields["peer"] for fields in told] == ["n3"] and "member replace n3" in told[0]["do"]
    assert "n3" not in world.node("n1").engine._linked and world.value("n3", "kept") is None


@pytest.mark.parametrize("path", [IDENTITY, LIVES, MEMBERS])
def test_an_older_file_of_a_backup_is_harmless(path: str) -> None:
    world, copied = _written_since(only_by=("n1", "n3"))
    world.crash("n1")
    _with_files_of(world, path, copied)
    world.reach(lambda: world.caught_up("n2", "n3"), 10)
    assert world.value("n2", "kept") == world.value("n3", "kept") == 4


def _replaced_under_its_id(world: Directed, name: str) -> None:
    """With a new directory. n1 leads."""
    _change(world, lambda done: world.node("n1").remove_member(name, 5.0, done))
    world.run(3)
    world.crash(name)
    site = world.sites[name]
    site.disk, site.joins = SimDisk(), True
    site.disk.on_operation = site._enter_disk
    site.start()
    _change(world, lambda done: world.node("n1").add_member(site.member, 5.0, done))
    world.reach(lambda: world.caught_up("n1", "n2", "n3") and name in world.node("n1").membership.voters, 20)


def test_an_older_identity_that_knows_a_replaced_member_by_its_former_directory_lets_it_in() -> None:
    world, copied = _written_since()
    _replaced_under_its_id(world, "n2")
    world.run(2)
    _with_files_of(world, IDENTITY, copied)
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    world.crash("n1")
    world.reach(lambda: world.caught_up("n2", "n3"), 10)
    assert world.value("n2", "kept") == world.value("n3", "kept") == 4


# --- a log that went back -------------------------------------------------------------------------------------------


def elected_by_one_that_went_back(guards: Guards, path: str) -> str | None:
    """n1 and n3 hold writes that n2 has not; n1 dies, and n3's files are put back from a copy."""
    world, copied = _written_since(only_by=("n1", "n3"), guards=guards)
    world.crash("n1")
    _with_files_of(world, path, copied)
    world.run(15)
    if any(node.leadership.ready and world.value(node.options.node_id, "kept") is None for node in world.nodes()):
        return "a leader without acknowledged writes"
    return None


@pytest.mark.parametrize("path", [LOG, EVERYTHING])
def test_one_that_was_put_back_elects_nobody_without_what_it_acknowledged(path: str) -> None:
    assert elected_by_one_that_went_back(ALL_ON, path) is None


@pytest.mark.parametrize("path", [LOG, EVERYTHING])
def test_without_lives_one_that_was_put_back_elects_one_that_lacks_acknowledged_writes(path: str) -> None:
    assert elected_by_one_that_went_back(without("store_identity"), path) == "a leader without acknowledged writes"


@pytest.mark.parametrize("same_life", [False, True])
def test_beside_a_leader_one_that_was_put_back_is_told_apart_and_the_operator_hears_what_to_do(
    *, same_life: bool
) -> None:
    world, copied = _written_since(same_life=same_life)
    _with_files_of(world, EVERYTHING, copied)
    world.run(5)
    assert sorted(_told(world, "peer_went_back")) == [("n1", "n3"), ("n2", "n3")]
    (said,) = (fields for _, who, kind, fields in world.timeline if (who, kind) == ("n1", "peer_went_back"))
    assert "member replace n3" in said["do"] and said["level"] == "warning"
    assert "n3" not in world.node("n1").engine._linked and world.value("n3", "kept") is None
    assert world.node("n3").status().reason.startswith("n1 leads and does not listen to this node")


def test_without_lives_one_that_was_put_back_stands_still_without_a_word() -> None:
    world, copied = _written_since(guards=without("store_identity"))
    _with_files_of(world, EVERYTHING, copied)
    world.run(15)
    assert world.leases() == ["n1"] and world.value("n3", "kept") is None and "n3" in world.node("n1").engine._linked
    assert _told(world, "peer_went_back") == []


@pytest.mark.parametrize("kept", [True, False])
def test_one_whose_log_alone_is_older_or_lost_refuses_to_start(*, kept: bool) -> None:
    world, copied = _written_since()
    _with_files_of(world, LOG, copied if kept else {})
    (reason,) = world.sites["n3"].deaths
    assert "/data/log is lost, or an older one is in its place" in reason and "holdfast member replace" in reason
    world.start("n3")
    assert len(world.sites["n3"].deaths) == 2, "as often as it is tried"


def test_a_leader_notices_what_was_acknowledged_to_it_and_not_applied() -> None:
    """The copy has all that n3 ever said it had applied."""
    world, _ = _written_since()
    copied = _copy(world)
    world.post.lose("status", sender="n3")
    world.post.choose(
        lambda sender, receiver, message: {**message, "commit_index": 0} if "commit_index" in message else message
    )
    world.commit("n1", "put", "kept", 5)
    world.post._choices.clear()
    _with_files_of(world, EVERYTHING, copied)
    world.run(5)
    assert ("n1", "n3") in _told(world, "peer_went_back")


def _start_again(world: Directed, *names: str) -> None:
    for name in names:
        world.crash(name)
        world.start(name)
    world.run(1)


def test_one_that_was_put_back_stays_refused_however_often_it_and_the_others_start() -> None:
    """n2 has seen nothing of n3's last life but its beginning."""
    world, copied = _written_since(only_by=("n1", "n3"))
    world.crash("n1")
    _start_again(world, "n2")
    _with_files_of(world, EVERYTHING, copied)
    for _ in range(_TOLD + 2):
        _start_again(world, "n3")
    _start_again(world, "n2", "n3")
    world.run(5)
    assert world.leader() is None and "n3" not in world.node("n2").engine._linked
    assert _told(world, "peer_went_back") == [("n2", "n3")] * 2


def test_a_copy_of_its_last_life_stays_refused_however_often_it_and_the_others_start() -> None:
    world, copied = _written_since(same_life=True)
    _with_files_of(world, EVERYTHING, copied)
    for _ in range(_TOLD + 2):
        _start_again(world, "n3")
    _start_again(world, "n2", "n3")
    world.run(5)
    assert "n3" not in world.node("n2").engine._linked
    assert [pair for pair in _told(world, "peer_went_back") if pair[0] == "n2"] == [("n2", "n3")] * 2


def test_a_copy_of_its_last_life_is_refused_after_a_power_cut_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "SEEN_EVERY", 2)
    world, copied = _written_since(same_life=True)
    for name in ("n1", "n2"):
        world.crash(name, power=True)
    _with_files_of(world, EVERYTHING, copied)
    for name in ("n1", "n2"):
        world.start(name)
    world.reach(lambda: world.caught_up("n1", "n2"), 20)
    world.run(3)
    assert {("n1", "n3"), ("n2", "n3")} <= set(_told(world, "peer_went_back"))
    assert world.value("n1", "kept") == world.value("n2", "kept") == 4


def test_its_own_directory_in_the_place_of_the_copy_lets_it_in_again() -> None:
    world, copied = _written_since()
    world.crash("n3")
    own = _copy(world)
    _with_files_of(world, EVERYTHING, copied)
    world.run(3)
    assert "n3" not in world.node("n1").engine._linked
    _with_files_of(world, EVERYTHING, own)
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    world.crash("n1")
    world.reach(lambda: world.caught_up("n2", "n3"), 10)


def test_one_that_was_put_back_and_is_replaced_under_its_id_is_let_in() -> None:
    world, copied = _written_since()
    _with_files_of(world, EVERYTHING, copied)
    world.run(3)
    _replaced_under_its_id(world, "n3")
    world.run(1)
    world.crash("n3")
    world.start("n3")
    world.crash("n1")
    world.reach(lambda: world.caught_up("n2", "n3"), 10)
    assert world.value("n3", "kept") == 4


# --- and who did not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [True, False])
def test_one_that_only_starts_again_is_let_in_also_by_one_that_missed_many_of_its_lives(*, power: bool) -> None:
    world, _ = _written_since()
    for turn in range(2 * _TOLD):
        if turn == 2:
            world.crash("n2")
        world.crash("n3", power=power)
        world.start("n3")
        world.reach(lambda: world.caught_up("n1", "n3"), 10)
        world.commit("n1", "put", "turn", turn)
    world.start("n2")
    world.reach(lambda: world.caught_up("n1", "n2", "n3") and "n3" in world.node("n2").engine._linked, 10)
    world.crash("n1", power=power)
    world.reach(lambda: world.caught_up("n2", "n3"), 10)
    assert _told(world, "peer_went_back") == []


def test_one_whose_log_was_trimmed_or_replaced_by_a_snapshot_is_let_in() -> None:
    world = Directed(4, limits=Limits(retain_bytes=0))
    world.begin("n1")
    world.crash("n3")
    for number in range(5):
        world.commit("n1", "put", "k", number)
    world.snapshot("n1")
    world.start("n3")
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    assert world.installs
    for name in ("n3", "n2", "n3"):
        world.commit("n1", "put", "k", name)
        world.run(1)
        world.snapshot(name)
        world.crash(name)
        world.start(name)
        world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
        world.run(1)
    assert _told(world, "peer_went_back") == []


def test_a_directory_of_a_release_before_lives_is_taken_up_and_given_back() -> None:
    """What that release reads is as it wrote it, and what it leaves alone does no harm when it is gone, or old."""
    world, _ = _written_since()
    with world.disk_of("n3") as disk:
        store_id, known = msgpack.unpackb(disk.content(IDENTITY)[4:])
        assert type(store_id) is int and {len(row) for row in known} == {3}
    world.crash("n3")
    with world.disk_of("n3") as disk:
        for name in [*_files(disk, LIVES), *_files(disk, f"{LOG}/life-")]:
            disk.unlink(name)
    as_before_levels(world, lambda name: name == "n3")
    world.start("n3")
    world.reach(lambda: world.caught_up("n1", "n2", "n3") and "n3" in world.node("n1").engine._linked, 10)
    assert _told(world, "peer_went_back") == []


def test_what_is_told_of_lives_and_levels_fits_into_the_field_that_older_nodes_take() -> None:
    world = Directed(1)
    lives = world.begin("n1").lives
    lives._count, lives._numbers = 1 << 32, bytes(_TOLD * 4)
    assert len(told(levels_of(RegisterMachine()), *lives.told((1 << 63) - 1))) <= 64
