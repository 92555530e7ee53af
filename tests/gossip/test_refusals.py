"""Strangers, repeats, liars and broken bytes: what is refused, and that nothing changes by it."""

from __future__ import annotations

import os
import random

import msgpack
import pytest

from coordinator.gossip import limits
from coordinator.gossip.messages import Gift, Message, Notice, Offer, Want, decode, encode
from coordinator.gossip.replica import Record, Replica, Tombstone
from coordinator.gossip.seal import Busy, Nonces, NotAuthentic, Seal
from coordinator.gossip.tally import Implausible, Shape, Tally
from coordinator.machine.sketch import Sketch

MANY = Tally.of(f"n{number}" for number in range(200))


def lanes(*sketches: Sketch) -> list[object]:
    return [1, [sketch.to_bytes() for sketch in sketches]]


def inflated(precision: int = limits.PRECISION) -> Sketch:
    """Every register as high as a hash can make it: a crowd that is not there."""
    sketch = Sketch(precision)
    width = 64 - precision
    for register in range(1 << precision):
        sketch.add_hash(register << width)
    return sketch


def notice(holders: object, buried: object, *, keeping: bool = False) -> bytes:
    return msgpack.packb([1, "liar", [], [["x", holders, buried, keeping, False]], [], [], []])


LISTED = [0, ["a", "b"]]
SKETCHED = MANY.wire()
WRONG = {
    "not msgpack": b"\xc1",
    "not a message": msgpack.packb({"a": 1}),
    "another version": msgpack.packb([2, "liar", [], [], [], [], []]),
    "nested without end": b"\x91" * 5000,
    "no sender": msgpack.packb([1, "", [], [], [], [], []]),
    "a long sender": msgpack.packb([1, "n" * 65, [], [], [], [], []]),
    "too many items": msgpack.packb([1, "liar", [], [], [], [], ["x"] * (4 * limits.PAGE_ITEMS + 1)]),
    "too many bytes": bytes(limits.MESSAGE_BYTES + 1),
    "a long record id": msgpack.packb([1, "liar", [], [], [], [], ["x" * 201]]),
    "too much content": msgpack.packb([1, "liar", [], [], [], [["x", 1, bytes(limits.CONTENT_BYTES + 1), LISTED]], []]),
    "registers cut short": notice([1, [SKETCHED[1][0][:-1], *SKETCHED[1][1:]]], SKETCHED),
    "registers that are no bytes": notice([1, [1, 2, 3, 4]], SKETCHED),
    "a lane missing": notice([1, SKETCHED[1][:3]], SKETCHED),
    "another precision": notice(lanes(*(Sketch(12) for _ in range(4))), LISTED),
    "more ids than are listed": notice([0, [f"n{number:03}" for number in range(65)]], LISTED),
    "ids out of order": notice([0, ["b", "a"]], LISTED),
    "an id twice": notice([0, ["a", "a"]], LISTED),
    "an inflated set of holders": notice(lanes(*(inflated() for _ in range(4))), LISTED),
    "both sets inflated": notice(*([lanes(*(inflated() for _ in range(4)))] * 2)),
    "more buried than ever held": notice(LISTED, [0, ["a", "b", "c"]]),
    "sketches buried, a list held": notice(LISTED, SKETCHED),
    "a keeper that waits for somebody": notice(LISTED, [0, ["a"]], keeping=True),
}


@pytest.mark.parametrize("raw", WRONG.values(), ids=WRONG.keys())
def test_implausible_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(Implausible):
        decode(raw)


def test_random_bytes_and_broken_messages_never_do_anything_else() -> None:
    chance = random.Random(7)
    good = encode(
        Message(
            "a",
            offers=(Offer("x", MANY),),
            notices=(Notice("y", MANY, MANY, keeping=True, counted=False),),
            wants=(Want("z", 1),),
            gifts=(Gift("w", 2, b"content", Tally.of("ab")),),
        )
    )
    assert encode(decode(good)) == good
    for _ in range(2000):
        raw = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        try:
            decode(bytes(raw[: chance.randrange(1, len(raw) + 1)]))
        except Implausible:
            continue


def test_inflated_holders_of_a_plausible_size_only_keep_the_tombstone() -> None:
    """A liar that adds holders who do not exist: nothing is purged, which is safe and costs the tombstone's room."""
    replica = Replica("b", stable_rounds=2)
    replica.create("x", b"")
    replica.delete("x")
    ghosts = Tally.of([f"ghost-{number}" for number in range(500)]).adding("b")
    replica.receive(Message("a", notices=(Notice("x", ghosts, Tally.of(["b"]), keeping=False, counted=False),)))
    for _ in range(50):
        replica.tick()
    assert not replica.keeps("x")
    assert isinstance(replica.items["x"], Tombstone)


def test_a_lie_about_who_has_buried_purges_early_but_leaves_a_keeper() -> None:
    """Whoever has the secret can lie plausibly. One keeper stays all the same, and meets whoever comes back."""
    nodes = {name: Replica(name, stable_rounds=2) for name in "abc"}
    everyone = Tally.of("abc")
    for name in "ab":
        nodes[name].load([("x", Tombstone(everyone, Tally.of("ab")))])
    nodes["c"].load([("x", Record(b"", everyone))])
    lie = Message("liar", notices=(Notice("x", everyone, everyone, keeping=False, counted=False),))
    for name in "ab":
        nodes[name].receive(lie)
        for _ in range(3):
            nodes[name].tick()
    nodes["b"].receive(nodes["a"].greet("b"))
    assert "x" not in nodes["b"].items
    assert nodes["a"].keeps("x")
    nodes["c"].receive(nodes["a"].receive(nodes["c"].greet("a"), greeting=True))
    assert isinstance(nodes["c"].items["x"], Tombstone)


def test_other_shapes_are_refused() -> None:
    other = Tally.of([f"n{number}" for number in range(100)], Shape(64, 2, 10))
    with pytest.raises(Implausible):
        decode(encode(Message("a", offers=(Offer("x", other),))))


def test_the_largest_honest_message_fits() -> None:
    replica = Replica("b")
    holders = Tally.of(f"n{number:060}" for number in range(3000))
    size = limits.CONTENT_BYTES
    replica.load([(f"{number:0200}", Record(bytes(size), holders)) for number in range(200)])
    wants = tuple(Want(f"{number:0200}", number) for number in range(128))
    offers = tuple(Offer(f"{number:0200}", holders) for number in range(128))
    for message in (replica.greet("a"), replica.receive(Message("a", wants=wants, offers=offers), greeting=True)):
        assert len(encode(message)) <= limits.MESSAGE_BYTES
        assert decode(encode(message)).sender == "b"


# --- the seal ---------------------------------------------------------------------------------------------------------


def test_a_nonce_is_good_once_for_one_asker_and_for_some_rounds() -> None:
    nonces = Nonces(os.urandom, rounds=4)
    nonce = nonces.make("a", 10)
    nonces.check(nonce, "a", 13)
    for asker, now_round in (("b", 10), ("a", 14)):
        with pytest.raises(NotAuthentic):
            nonces.check(nonce, asker, now_round)
    nonces.spend(nonce, 10)
    with pytest.raises(NotAuthentic, match="used before"):
        nonces.check(nonce, "a", 10)
    with pytest.raises(NotAuthentic):
        nonces.check(nonces.make("a", 10)[:-1] + b"\0\0", "a", 10)
    with pytest.raises(NotAuthentic):
        Nonces(os.urandom).check(nonces.make("a", 10), "a", 10)


def test_remembered_nonces_are_bounded_and_forgotten_with_their_rounds() -> None:
    nonces = Nonces(os.urandom, rounds=4, most_used=3)
    for _ in range(3):
        nonces.spend(nonces.make("a", 1), 1)
    with pytest.raises(Busy):
        nonces.spend(nonces.make("a", 2), 2)
    nonces.spend(nonces.make("a", 6), 6)


def test_every_part_is_under_the_mac() -> None:
    seal = Seal(b"a" * 16)
    parts = ("POST", "/p", "a", "b", b"nonce", b"body")
    macs = {seal.request(*parts)}
    for place, part in enumerate(parts):
        other = part + part[:1]
        macs.add(seal.request(*parts[:place], other, *parts[place + 1 :]))
    macs.add(Seal(b"b" * 16).request(*parts))
    macs.add(seal.request("POST", "/pa", "", "b", b"nonce", b"body"))
    assert len(macs) == 9
