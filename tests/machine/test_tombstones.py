"""Tombstones in the machine: when one is left, what it refuses, when it goes, and who waits for what."""

from __future__ import annotations

import struct
from typing import Any

from coordinator.machine import commands as c
from coordinator.machine import limits, restoring
from coordinator.machine import results as r
from coordinator.machine import tombstonecommands as t
from coordinator.machine import tombstoneresults as tr
from coordinator.machine.codec import encode_command
from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from tests.machine.driver import Driver


class Holding(Driver):
    def put(self, *resource_ids: str, **more: Any) -> None:
        put = self.do(c.PutResources(resource_ids, "p", "k", safety_buffer_ms=0, pinned=True, **more))
        assert isinstance(put, r.ResourcesPut)

    def copy(self, resource_id: str = "x", holder_id: str = "h", **more: Any) -> tr.CopyRegistered:
        answer = self.do(t.RegisterCopy(resource_id, holder_id, **more))
        assert isinstance(answer, tr.CopyRegistered), answer
        return answer

    def condemn(self, *resource_ids: str) -> list[Any]:
        """Out of use, claimed by a worker, and not acknowledged."""
        for resource_id in resource_ids:
            self.do(c.DeleteResource(resource_id, force=True))
        return list(self.do(c.ClaimReclaims("p", "w", 1_000, 60_000)).items)

    def finish(self, items: list[Any]) -> None:
        ids, tokens = ([getattr(item, name) for item in items] for name in ("reclaim_id", "token"))
        packed = [struct.pack(f"<{len(numbers)}Q", *numbers) for numbers in (ids, tokens)]
        self.do(c.AckReclaims("w", *packed))

    def kill(self, *resource_ids: str) -> int:
        """The revision at which they were gone."""
        self.finish(self.condemn(*resource_ids))
        return self.index

    def standing(self) -> list[str]:
        page = self.machine.copies.tombstones("default", 0, None, 1_000, self.now_ms)
        return [each.resource_id for each in page.tombstones]

    def ack(self, token: int, revision: int, holder_id: str = "h") -> Any:
        return self.do(t.AckTombstones(holder_id, token, revision))

    def verify(self, copies: dict[str, int], token: int | None = None, **more: Any) -> Any:
        packed = struct.pack(f"<{len(copies)}Q", *copies.values())
        last, holder_id = more.pop("last", True), more.pop("holder_id", "h")
        return self.do(t.VerifyCopies(holder_id, tuple(copies), packed, last, holder_token=token, **more))


# --- what a tombstone is left of, and what it refuses -----------------------------------------------------------------


def test_without_holders_nothing_is_remembered() -> None:
    machine = Holding()
    machine.put("x")
    machine.kill("x")
    assert machine.standing() == []
    machine.put("x")


def test_of_what_nobody_copied_nothing_is_remembered() -> None:
    machine = Holding()
    machine.put("x", "y")
    machine.copy("y")
    machine.kill("x")
    assert machine.standing() == []
    machine.put("x")


def test_a_tombstone_refuses_every_way_back() -> None:
    machine = Holding()
    machine.put("x", "y")
    token = machine.copy().holder_token
    revision = machine.kill("x")
    assert "tombstone_created" in machine.kinds()
    ways: tuple[c.Command, ...] = (
        c.PutResources(("z", "x"), "p", "k"),
        c.AcquireLease("x", "a", 1_000),
        c.AcquireLeases(("y", "x"), "a", 1_000),
        c.PutEdges(("y",), ("x",)),
        c.PutEdges(("x",), ("y",)),
        t.RegisterCopy("x", "h", holder_token=token),
        t.RegisterCopy("x", "other"),
    )
    for way in ways:
        assert machine.code(way) == "tombstoned", way
    denied = machine.do(ways[0])
    assert denied.details == {"resource_id": "x", "revision": revision}
    machine.ack(token, machine.index)
    assert "tombstone_purged" in machine.kinds()
    machine.put("x")


def test_it_is_left_when_the_clean_up_is_acknowledged_and_not_before() -> None:
    machine = Holding()
    machine.put("x")
    token = machine.copy().holder_token
    items = machine.condemn("x")
    assert machine.standing() == [], "it is not gone yet, and its own row refuses all"
    assert machine.code(c.PutResources(("x",), "p", "k")) == "resource_reclaiming"
    assert machine.code(t.RegisterCopy("x", "h", holder_token=token)) == "resource_reclaiming"
    machine.finish(items)
    assert machine.standing() == ["x"]


def test_a_dead_letter_that_is_purged_leaves_one_too() -> None:
    machine = Holding()
    machine.put("x")
    machine.copy()
    machine.do(c.DeleteResource("x", force=True))
    for _ in range(limits.MAX_ATTEMPTS):
        (item,) = machine.do(c.ClaimReclaims("p", "w", 1, 1_000)).items
        machine.do(c.NackReclaim("w", item.reclaim_id, item.token, "no", 0))
        machine.pass_time(limits.MAX_BACK_OFF_MS)
    assert machine.do(c.PurgeReclaims("p", "", 10)).moved == 1
    assert machine.standing() == ["x"]


# --- watermarks ---------------------------------------------------------------------------------------------------


def test_it_waits_for_the_last_watermark() -> None:
    machine = Holding()
    machine.put("x", "y")
    tokens = {name: machine.copy("x", name).holder_token for name in ("a", "b", "c")}
    revision = machine.kill("x")
    for name in ("a", "b"):
        machine.ack(tokens[name], revision, name)
        assert machine.standing() == ["x"]
    machine.ack(tokens["c"], revision - 1, "c")
    assert machine.standing() == ["x"]
    page = machine.machine.copies.tombstones("default", 0, None, 10, machine.now_ms)
    (view,) = page.tombstones
    assert (view.holders_estimate, view.acked_estimate) == (3, 2)
    assert (view.waiting, view.waiting_for) == (1, ("c",))
    machine.ack(tokens["c"], revision, "c")
    assert machine.standing() == []


def test_a_newcomer_is_not_waited_for() -> None:
    machine = Holding()
    machine.put("x", "y")
    token = machine.copy("x", "old").holder_token
    revision = machine.kill("x")
    assert machine.copy("y", "new").watermark >= revision
    machine.ack(token, revision, "old")
    assert machine.standing() == []


def test_a_watermark_never_goes_back_nor_ahead() -> None:
    machine = Holding()
    machine.put("x")
    token = machine.copy().holder_token
    assert machine.ack(token, 2) == tr.TombstonesAcked(2, advanced=True)
    assert machine.ack(token, 1) == tr.TombstonesAcked(2, advanced=False)
    # Its own entry has the next index but one (`code` applies an empty entry first): nobody can have seen it.
    assert machine.code(t.AckTombstones("h", token, machine.index + 2)) == "revision_ahead"
    assert machine.ack(token, machine.index).advanced


def test_namespaces_do_not_wait_for_each_other() -> None:
    machine = Holding()
    machine.do(c.PutNamespace(10, 10, 10, 10, 10_000), namespace="other")
    machine.do(c.PutResources(("x",), "p", "k", pinned=True), namespace="other")
    machine.do(t.RegisterCopy("x", "h"), namespace="other")
    machine.put("x")
    token = machine.copy().holder_token
    machine.ack(token, machine.kill("x"))
    assert machine.standing() == []
    denied = machine.do(c.DeleteNamespace(), namespace="other")
    assert denied.code == "namespace_in_use"


def test_a_purge_takes_several_entries_when_it_is_large() -> None:
    machine = Holding()
    count = 5 * limits.MAX_EXPIRIES_PER_ENTRY
    ids = [f"x{number}" for number in range(count)]
    machine.put(*ids)
    token = machine.copy("x0").holder_token
    machine.entry(*(encode_command(t.RegisterCopy(each, "h", holder_token=token)) for each in ids))
    machine.entry(*(encode_command(c.DeleteResource(each, force=True)) for each in ids))
    machine.do(c.Sweep(1_000))
    revision = machine.kill()
    machine.ack(token, revision)
    left = len(machine.standing())
    assert left == count - limits.MAX_EXPIRIES_PER_ENTRY
    assert machine.machine.due(machine.now_ms)
    assert machine.machine.counts().backlog > 0
    assert machine.do(c.PutResources((ids[-1],), "p", "k")).code == "tombstoned", "it refuses until it is gone"
    swept = machine.do(c.Sweep(1_000))
    assert machine.standing() == [] and swept.backlog == 0
    assert not machine.machine.due(machine.now_ms)


def test_pages_are_complete_up_to_what_they_say() -> None:
    machine = Holding()
    machine.put("a", "b", "c", "d")
    token = machine.copy("a").holder_token
    for resource_id in "bcd":
        machine.copy(resource_id, holder_token=token)
    first = machine.kill("a")
    second = machine.kill("b", "c")
    third = machine.kill("d")
    read = machine.machine.copies.tombstones
    page = read("default", 0, None, 2, 0)
    assert [each.resource_id for each in page.tombstones] == ["a", "b"]
    assert page.complete_to == second - 1, "c is of the same revision as b, and not on the page"
    page = read("default", 0, page.after, 2, 0)
    assert [each.resource_id for each in page.tombstones] == ["c", "d"]
    assert page.after is None and page.complete_to == machine.index >= third
    assert [each.resource_id for each in read("default", first, None, 10, 0).tombstones] == ["b", "c", "d"]
    machine.ack(token, first)
    assert [each.resource_id for each in read("default", 0, None, 10, 0).tombstones] == ["b", "c", "d"]


# --- holders that go and come back --------------------------------------------------------------------------------


def test_a_holder_must_show_its_token() -> None:
    machine = Holding()
    machine.put("x", "y")
    token = machine.copy().holder_token
    assert machine.code(t.RegisterCopy("y", "h")) == "holder_known"
    assert machine.code(t.RegisterCopy("y", "h", holder_token=token + 7)) == "holder_fenced"
    assert machine.code(t.RegisterCopy("y", "nobody", holder_token=token)) == "holder_fenced"
    assert machine.code(t.AckTombstones("h", token + 7, 1)) == "holder_fenced"
    assert machine.code(t.RemoveHolder("h", token + 7)) == "holder_fenced"
    assert machine.code(t.RemoveHolder("nobody")) == "unknown_holder"
    assert machine.code(t.VerifyCopies("h", (), b"", True)) == "holder_known"
    assert machine.code(t.VerifyCopies("new", ("x",), bytes(16), True)) == "malformed"
    assert machine.copy("y", holder_token=token).joined is False


def test_a_removed_holder_is_fenced_until_it_has_verified() -> None:
    machine = Holding()
    machine.put("x", "y")
    stale = machine.copy("x")
    fresh = machine.copy("y", holder_token=stale.holder_token)
    machine.kill("x")
    machine.do(t.RemoveHolder("h"))
    assert {"holder_removed", "tombstone_purged"} <= set(machine.kinds())
    machine.put("x")
    old = stale.holder_token
    assert machine.code(t.RegisterCopy("y", "h", holder_token=old)) == "holder_fenced"
    assert machine.code(t.AckTombstones("h", old, 1)) == "holder_fenced"
    assert machine.code(t.VerifyCopies("h", (), b"", True, holder_token=old)) == "holder_fenced"
    told = machine.verify({"x": stale.incarnation, "y": fresh.incarnation})
    assert told.keep == b"\0\1", "x lives again, but it is another x"
    assert told.verified and told.holder_token > old
    assert machine.kinds() == ["holder_verified"]
    machine.kill("y")
    assert machine.standing() == ["y"], "the copy that it kept is counted again"


def test_what_dies_between_two_pages_is_not_lost_on_it() -> None:
    machine = Holding()
    machine.put("x", "y")
    incarnation = machine.copy("x").incarnation
    machine.do(t.RemoveHolder("h"))
    told = machine.verify({"x": incarnation}, last=False)
    assert told.keep == b"\1" and not told.verified
    token = told.holder_token
    assert machine.code(t.RegisterCopy("y", "h", holder_token=token)) == "holder_verifying"
    assert machine.code(t.AckTombstones("h", token, 1)) == "holder_verifying"
    revision = machine.kill("x")
    assert machine.standing() == ["x"]
    told = machine.verify({}, token)
    assert told.verified and told.watermark < revision
    machine.ack(token, revision)
    assert machine.standing() == []


def test_a_verification_that_was_broken_off_may_begin_again() -> None:
    machine = Holding()
    machine.put("x")
    incarnation = machine.copy("x").incarnation
    machine.do(t.RemoveHolder("h"))
    first = machine.verify({"x": incarnation}, last=False)
    second = machine.verify({"x": incarnation})
    assert second.verified and second.holder_token > first.holder_token
    assert machine.code(t.VerifyCopies("h", (), b"", True, holder_token=first.holder_token)) == "holder_fenced"


def test_a_holder_goes_with_its_session() -> None:
    machine = Holding()
    machine.put("x")
    session = machine.session("s", 1_000)
    token = machine.copy(session_id=session).holder_token
    machine.kill("x")
    machine.pass_time(999)
    assert machine.standing() == ["x"]
    machine.pass_time(1)
    assert machine.code(t.AckTombstones("h", token, 1)) == "holder_fenced", "whether or not a sweep has seen it"
    machine.pass_time(2 << limits.TIMER_SHIFT)
    removed = [event for event in machine.events() if event.kind == "holder_removed"]
    assert [(event.key, event.owner) for event in removed] == [("h", "session")]
    assert machine.standing() == []
    assert machine.code(t.AckTombstones("h", token, 1)) == "holder_fenced"


def test_a_holder_may_move_to_another_session() -> None:
    machine = Holding()
    machine.put("x")
    first, second = machine.session("s", 1_000), machine.session("s", 60_000)
    token = machine.copy(session_id=first).holder_token
    machine.copy(session_id=second, holder_token=token)
    machine.pass_time(limits.SAFETY_BUFFER_MS + 2_000)
    (view,) = machine.machine.copies.holders("default", "", 10, machine.now_ms)
    assert (view.holder_id, view.session_id) == ("h", second)
    machine.do(c.DeleteSession(second))
    assert machine.machine.copies.holders("default", "", 10, machine.now_ms) == []
    assert machine.code(t.RegisterCopy("x", "k", session_id=second)) in ("session_expired", "unknown_session")


# --- bounds, snapshots, restores ----------------------------------------------------------------------------------


def test_a_tombstone_has_its_place_before_it_is_needed() -> None:
    machine = Holding()
    machine.do(c.PutNamespace(10, 10, 10, 10, 10_000, holders=2, tombstones=1))
    machine.put("x", "y")
    token = machine.copy("x", "a").holder_token
    assert machine.code(t.RegisterCopy("y", "a", holder_token=token)) == "quota_exceeded"
    machine.copy("x", "b")
    assert machine.code(t.RegisterCopy("x", "c")) == "quota_exceeded"
    assert machine.code(t.VerifyCopies("c", (), b"", True)) == "quota_exceeded"
    machine.kill("x")
    assert machine.standing() == ["x"], "never dropped for want of room"
    assert machine.code(t.RegisterCopy("y", "a", holder_token=token)) == "quota_exceeded"


def test_a_snapshot_has_all_of_it() -> None:
    machine = Holding()
    machine.put("x", "y", "z")
    token = machine.copy("x", "a").holder_token
    machine.copy("y", "a", holder_token=token)
    machine.copy("x", "b", session_id=machine.session("s", 9_000))
    machine.verify({}, last=False, holder_id="c")
    machine.kill("x")
    twin = Machine()
    twin.restore(machine.machine.freeze().chunks())
    check(twin.state)
    assert twin.digest() == machine.machine.digest()
    for args in (("default", 0, None, 10, 0), ("default", 0, None, 1, 0)):
        assert twin.copies.tombstones(*args) == machine.machine.copies.tombstones(*args)
    assert twin.copies.holders("default", "", 10, 0) == machine.machine.copies.holders("default", "", 10, 0)
    machine.machine = twin
    machine.ack(token, machine.index, "a")
    machine.pass_time(9_000 + (2 << limits.TIMER_SHIFT))
    assert machine.standing() == ["x"], "c has begun to verify, and is waited for"
    machine.do(t.RemoveHolder("c"))
    assert machine.standing() == []


def test_holders_of_an_ended_session_go_in_the_same_order_after_a_snapshot() -> None:
    """More of them than one entry removes, and filed in another order than that of their names."""
    machine = Holding()
    machine.put("x")
    session, count = machine.session("s", 1_000), limits.MAX_EXPIRIES_PER_ENTRY + 50
    tokens = {f"h{at}": machine.copy("x", f"h{at}", session_id=session).holder_token for at in range(count)}
    for name in ("h3", "h1", "h0", "h120"):
        machine.ack(tokens[name], machine.index, name)
    twin = Machine()
    twin.restore(machine.machine.freeze().chunks())
    at_ms = machine.now_ms + 1_000 + (2 << limits.TIMER_SHIFT)
    for index in range(machine.index + 1, machine.index + 4):
        for each in (machine.machine, twin):
            each.apply(index, at_ms, [])
            check(each.state)
        assert twin.digest() == machine.machine.digest()
    assert not twin.state.copies.holders


def test_after_a_restore_from_a_backup_every_holder_is_fenced() -> None:
    machine = Holding()
    machine.put("x", "y")
    copy = machine.copy("x")
    machine.copy("y", holder_token=copy.holder_token)
    machine.kill("y")
    restoring.begin_anew(machine.machine.state, 1_000_000_000)
    machine.index = machine.machine.state.revision
    assert machine.code(t.AckTombstones("h", copy.holder_token, 1)) == "holder_fenced"
    assert machine.verify({"x": copy.incarnation}).keep == b"\1"
    assert machine.standing() == []


def test_the_bytes_of_a_tombstone_are_bounded_and_told() -> None:
    machine = Holding()
    machine.put("x")
    machine.entry(*(encode_command(t.RegisterCopy("x", f"holder-{number}")) for number in range(400)))
    machine.kill("x")
    counts = machine.machine.copies.counts(machine.now_ms)
    (view,) = machine.machine.copies.tombstones("default", 0, None, 10, machine.now_ms).tombstones
    assert view.size_bytes <= counts.most_bytes + len("x")
    assert abs(view.holders_estimate - 400) < 400 * 5 * 0.0325
    assert len(view.waiting_for) == limits.MAX_WAITED_FOR
    assert (view.waiting, counts.tombstones, counts.holders) == (400, 1, 400)
