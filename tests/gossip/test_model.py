"""The simulation of bench/tombstones.py: its model of our rule is the real replicas' trial for trial, and the paper's
rule fails where docs/TOMBSTONES.md says it does."""

from __future__ import annotations

import random

import pytest

from bench import gossip_masks
from bench.gossip_rules import OurNetwork, PaperNetwork
from bench.gossip_scenarios import SCENARIOS
from bench.gossip_sets import Hashes
from bench.tombstones import portion

NUMBERS = {scenario.name: number for number, scenario in enumerate(SCENARIOS)}


@pytest.mark.parametrize("name", ["single", "early", "bridged", "concurrent", "sparse"])
@pytest.mark.parametrize("away", [0, 2])
def test_the_model_does_what_the_replicas_do(name: str, away: int) -> None:
    modelled, real = (portion((NUMBERS[name], rule, away, 100, 3)) for rule in ("ours", "replicas"))
    for one, other in zip(modelled, real, strict=True):
        one.bytes_a_round = other.bytes_a_round = 0
    assert modelled == real


def test_ours_never_purges_early_nor_leaves_nobody() -> None:
    for name in ("early", "bridged"):
        for outcome in portion((NUMBERS[name], "ours", 2, 0, 40)):
            assert (outcome.premature, outcome.returned, outcome.left) == (0, 0, 0)
            assert outcome.keepers > 0


def test_the_papers_rule_purges_early_and_loses_its_last_keeper() -> None:
    outcomes = portion((NUMBERS["early"], "paper", 2, 0, 60))
    assert sum(outcome.premature > 0 for outcome in outcomes) > 30
    assert any(outcome.keepers == 0 for outcome in outcomes)
    assert any(outcome.returned > 0 for outcome in outcomes)


def test_as_printed_nobody_ever_steps_down() -> None:
    for outcome in portion((NUMBERS["single"], "printed", 0, 0, 5)):
        assert outcome.keepers == 15


class TwoFaces(Hashes):
    """Two sets that look alike: the estimate is the number of members."""

    def estimate(self, members: int) -> float:
        return members.bit_count()


def test_the_papers_best_sketch_forgets_a_holder_that_the_union_keeps() -> None:
    """Node 0 knows holders 0, 1, 2; node 1 knows 0, 1, 3. Both estimates are three, so one of them is thrown away."""
    peers = [[1, 2, 3], [0, 2, 3], [0, 1], [0, 1]]
    chance = random.Random(1)
    paper = PaperNetwork(peers, chance, TwoFaces(4, chance))
    ours = OurNetwork(peers, chance, TwoFaces(4, chance), stable_rounds=2)
    for network in (paper, ours):
        network.record = [0b0111, 0b1011, 0b0111, 0b1011]
        network.delete(0)
        network.up[3] = False
        for _ in range(60):
            network.round()
        assert network.record[3]
    assert paper.seen.premature > 0
    assert ours.seen.premature == 0
    assert ours.keepers() == 3


def test_a_keeper_of_the_paper_leaves_for_the_echo_of_its_own_tombstone() -> None:
    """A node that steps down forwards the winner's tombstone under its own, lower name."""
    chance = random.Random(1)
    network = PaperNetwork([[1], [0]], chance, TwoFaces(2, chance))
    network.target[1], network.buried[1] = 0b11, 0b11
    network.receive(1, 0b11, 0b11, 0)
    assert network.keepers() == 0


@pytest.mark.parametrize(("holders", "precision"), [(40, 6), (100, 8), (300, 8)])
def test_the_derived_share_of_masked_holders_is_what_is_measured(holders: int, precision: int) -> None:
    found = gossip_masks.sets(holders, precision, 20_000, seed=3)
    assert all(abs(sigmas) < 4 for sigmas in found["off_by_sigmas"]), found


@pytest.mark.parametrize("chosen", [False, True])
def test_with_ids_a_masked_register_hides_nobody(chosen: bool) -> None:
    assert gossip_masks.mesh_portion(("ours", chosen, 0, 300)) == 0
    paper = gossip_masks.mesh_portion(("paper", chosen, 0, 300))
    assert paper > (290 if chosen else 30)
