"""The hand-shake lets in who proves the secret and fits, and nobody else, and tells strangers nothing."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import handshake
from cluster.credentials import Credentials
from cluster.handshake import CODES, Acceptor, Dialer, HandshakeRefused
from cluster.options import OptionsError, Timing

SECRET = b"s" * 32
GENERIC = struct.pack(">H", 9) + msgpack.packb(["refused"])


def credentials(node_id: str, **changes: Any) -> Credentials:
    plain = Credentials(node_id, "blue", SECRET, 7, Timing(), lambda peer: peer in {"n1", "n2"})
    return replace(plain, **changes)


def meet(dialer: Dialer, acceptor: Acceptor) -> None:
    """Carries the messages until both are done; raises what the dialer makes of a refusal."""
    to_dialer = acceptor.feed(dialer.opening())
    proof = dialer.feed(to_dialer)
    try:
        to_dialer = acceptor.feed(proof)
    except HandshakeRefused as refusal:
        dialer.feed(refusal.reply)
        raise
    assert dialer.feed(to_dialer) == b""


def refused_by(acceptor: Acceptor, dialer: Dialer) -> HandshakeRefused:
    """The acceptor's own view of the refusal."""
    with pytest.raises(HandshakeRefused) as caught:
        acceptor.feed(dialer.feed(acceptor.feed(dialer.opening())))
    assert caught.value.code in CODES
    return caught.value


def test_both_prove_themselves_and_share_keys() -> None:
    dialer = Dialer(credentials("n2", incarnation=22), "n1")
    acceptor = Acceptor(credentials("n1", incarnation=2**64 - 1))
    meet(dialer, acceptor)
    there, here = dialer.established, acceptor.established
    assert there is not None
    assert here is not None
    assert (there.peer, there.incarnation) == ("n1", 2**64 - 1)
    assert (here.peer, here.incarnation) == ("n2", 22)
    assert (there.send_key, there.receive_key, there.link_id) == (here.receive_key, here.send_key, here.link_id)
    assert len({there.send_key, there.receive_key, there.link_id}) == 3
    assert SECRET not in repr(there).encode() + repr(dialer.credentials).encode()


def test_it_works_byte_by_byte_and_leaves_the_first_frames() -> None:
    dialer, acceptor = Dialer(credentials("n2"), "n1"), Acceptor(credentials("n1"))
    outbound = dialer.opening()
    for _ in range(2):
        inbound = b"".join(acceptor.feed(outbound[at : at + 1]) for at in range(len(outbound)))
        if acceptor.established is not None:
            inbound += b"first frame"
            dialer.feed(inbound)
        else:
            outbound = b"".join(dialer.feed(inbound[at : at + 1]) for at in range(len(inbound)))
    assert dialer.leftover() == b"first frame"
    with pytest.raises(HandshakeRefused):
        dialer.feed(b"more")


def test_each_meeting_has_its_own_keys() -> None:
    links = set()
    for _ in range(10):
        dialer, acceptor = Dialer(credentials("n2"), "n1"), Acceptor(credentials("n1"))
        meet(dialer, acceptor)
        assert dialer.established is not None
        links.add((dialer.established.link_id, dialer.established.send_key))
    assert len(links) == 10


TYPED = [
    ("wrong_cluster", {"cluster_id": "green"}, "n1"),
    ("wrong_node", {}, "n3"),
    ("unknown_peer", {"node_id": "n9"}, "n1"),
    ("removed", {"node_id": "n8"}, "n1"),
    ("timing_mismatch", {"timing": Timing(election_min=0.6)}, "n1"),
    ("timing_mismatch", {"timing": Timing(drift=0.02)}, "n1"),
]


@pytest.mark.parametrize(("code", "changes", "target"), TYPED)
def test_a_peer_with_the_secret_is_told_why_it_is_refused(code: str, changes: dict[str, Any], target: str) -> None:
    acceptor = Acceptor(credentials("n1", peer_removed=lambda peer: peer == "n8"))
    dialer = Dialer(replace(credentials("n2"), **changes), target)
    refusal = refused_by(acceptor, dialer)
    assert refusal.code == code
    assert ":" in str(refusal)  # what is wrong: what to do
    with pytest.raises(HandshakeRefused) as told:
        dialer.feed(refusal.reply)
    assert told.value.code == code
    assert dialer.established is acceptor.established is None


@pytest.mark.parametrize(("code", "changes", "target"), TYPED)
def test_a_stranger_learns_nothing(code: str, changes: dict[str, Any], target: str) -> None:
    """Whatever it claims, right or wrong, what it gets back has the same form and names no reason."""
    del code
    stranger = credentials("n2", secret=b"guess" * 8)
    answers = []
    for dialer in (Dialer(stranger, "n1"), Dialer(replace(stranger, **changes), target)):
        acceptor = Acceptor(credentials("n1"))
        challenge = acceptor.feed(dialer.opening())
        with pytest.raises(HandshakeRefused) as caught:
            acceptor.feed(dialer.feed(challenge))
        assert caught.value.code == "bad_proof"
        answers.append((len(challenge), caught.value.reply))
        with pytest.raises(HandshakeRefused) as told:
            dialer.feed(caught.value.reply)
        assert told.value.code == "bad_proof"
    assert answers[0] == answers[1]
    assert answers[0][1] == GENERIC


def test_a_bad_proof_ends_it() -> None:
    acceptor = Acceptor(credentials("n1"))
    good = Dialer(credentials("n2"), "n1")
    proof = good.feed(acceptor.feed(good.opening()))
    with pytest.raises(HandshakeRefused):
        acceptor.feed(proof[:-1] + bytes([proof[-1] ^ 1]))
    with pytest.raises(HandshakeRefused):
        acceptor.feed(proof)
    assert acceptor.established is None


def test_an_acceptor_without_the_secret_is_refused() -> None:
    dialer, impostor = Dialer(credentials("n2"), "n1"), Acceptor(credentials("n1", secret=b"g" * 32))
    dialer.feed(impostor.feed(dialer.opening()))
    for answer in (["accepted", b"\0" * 32], ["refused", "removed", "go away", b"\0" * 32], ["accepted"], []):
        fresh = Dialer(credentials("n2"), "n1")
        fresh.feed(Acceptor(credentials("n1")).feed(fresh.opening()))
        with pytest.raises(HandshakeRefused) as caught:
            fresh.feed(frame(msgpack.packb(answer)))
        assert caught.value.code == "bad_proof"


def frame(raw: bytes) -> bytes:
    return struct.pack(">H", len(raw)) + raw


def test_reflecting_the_dialers_own_proof_does_not_work() -> None:
    dialer = Dialer(credentials("n2"), "n1")
    challenge = msgpack.packb([b"c" * 32, 5])
    proof = dialer.feed(frame(challenge))
    [mac] = msgpack.unpackb(proof[2:])
    with pytest.raises(HandshakeRefused) as caught:
        dialer.feed(frame(msgpack.packb(["accepted", mac])))
    assert caught.value.code == "bad_proof"


def test_a_node_led_to_dial_itself_refuses() -> None:
    """An attacker at n1's address relays all to n2's own port: the same secret on both ends, and still no link."""
    dialer = Dialer(credentials("n2"), "n1")
    acceptor = Acceptor(credentials("n2"))
    assert refused_by(acceptor, dialer).code == "wrong_node"
    assert dialer.established is None


def test_a_recorded_handshake_is_worth_nothing() -> None:
    dialer, acceptor = Dialer(credentials("n2"), "n1"), Acceptor(credentials("n1"))
    hello = dialer.opening()
    challenge = acceptor.feed(hello)
    proof = dialer.feed(challenge)
    accepted = acceptor.feed(proof)
    again = Acceptor(credentials("n1"))
    again.feed(hello)
    with pytest.raises(HandshakeRefused) as caught:
        again.feed(proof)
    assert caught.value.code == "bad_proof"
    later = Dialer(credentials("n2"), "n1")
    later.feed(challenge)
    with pytest.raises(HandshakeRefused) as caught:
        later.feed(accepted)
    assert caught.value.code == "bad_proof"


def test_another_version_is_refused_and_cannot_be_talked_down(monkeypatch: pytest.MonkeyPatch) -> None:
    acceptor = Acceptor(credentials("n1"))
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 2)
    newer = Dialer(credentials("n2"), "n1")
    monkeypatch.undo()
    with pytest.raises(HandshakeRefused) as caught:
        acceptor.feed(newer.opening())
    assert (caught.value.code, caught.value.reply) == ("wrong_version", GENERIC)
    # Someone on the way rewrites the 2 to a 1: the transcripts differ, so the proof fails.
    fields = list(msgpack.unpackb(newer.opening()[2:]))
    fields[1] = 1
    fooled = Acceptor(credentials("n1"))
    challenge = fooled.feed(frame(msgpack.packb(fields)))
    with pytest.raises(HandshakeRefused) as caught:
        fooled.feed(newer.feed(challenge))
    assert caught.value.code == "bad_proof"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_altered_byte_on_the_way_prevents_the_link(data: st.DataObject) -> None:
    dialer, acceptor = Dialer(credentials("n2"), "n1"), Acceptor(credentials("n1"))
    which = data.draw(st.integers(0, 3))

    def carry(step: int, message: bytes) -> bytes:
        if step != which:
            return message
        altered = bytearray(message)
        altered[data.draw(st.integers(2, len(message) - 1))] ^= data.draw(st.integers(1, 255))
        return bytes(altered)

    try:
        challenge = acceptor.feed(carry(0, dialer.opening()))
        accepted = acceptor.feed(carry(2, dialer.feed(carry(1, challenge))))
        dialer.feed(carry(3, accepted))
    except HandshakeRefused:
        pass
    assert dialer.established is None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=1100), max_size=4), st.booleans())
def test_random_bytes_are_malformed_and_little_is_kept(chunks: list[bytes], framed: bool) -> None:
    for side in (Acceptor(credentials("n1")), Dialer(credentials("n2"), "n1")):
        try:
            for chunk in chunks:
                side.feed(frame(chunk) if framed else chunk)
                assert len(side._buffer) <= handshake.BUFFER_BYTES
        except HandshakeRefused as refusal:
            assert refusal.code in {"malformed", "bad_proof", "tls_mismatch"}
        assert side.established is None


def test_a_long_message_is_refused_at_its_length() -> None:
    with pytest.raises(HandshakeRefused) as caught:
        Acceptor(credentials("n1")).feed(struct.pack(">H", 1025))
    assert caught.value.code == "malformed"


def test_a_peer_removed_during_the_handshake_is_not_linked() -> None:
    dialer = Dialer(credentials("n2", peer_allowed=lambda peer: False), "n1")
    acceptor = Acceptor(credentials("n1"))
    accepted = acceptor.feed(dialer.feed(acceptor.feed(dialer.opening())))
    with pytest.raises(HandshakeRefused) as caught:
        dialer.feed(accepted)
    assert caught.value.code == "removed"


def test_the_largest_names_fit() -> None:
    long = "ü" * 64
    everybody = {"cluster_id": "c" * 64, "peer_allowed": lambda peer: True}
    meet(Dialer(credentials(long, **everybody), "é" * 64), Acceptor(credentials("é" * 64, **everybody)))
    dialer = Dialer(credentials(long, **everybody), "é" * 64)
    refusal = refused_by(Acceptor(credentials("é" * 64, cluster_id="ñ" * 64)), dialer)
    with pytest.raises(HandshakeRefused) as told:
        dialer.feed(refusal.reply)
    assert told.value.code == refusal.code == "wrong_cluster"


def test_weak_secrets_are_refused_at_start() -> None:
    with pytest.raises(OptionsError, match="openssl rand"):
        credentials("n1", secret=b"short").check()
