"""Masked registers: how often one missing holder goes unseen, derived, and measured on sets and in whole networks."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from bench.gossip_rules import Network, OurNetwork, PaperNetwork
from bench.gossip_sets import HASH_BITS, Hashes

MESH = 6
MESH_PRECISION = 4
MESH_AFTER = 20
LANES = 4


def masked_share(holders: int, precision: int, lanes: int = 1) -> float:
    """The chance that one holder of `holders` is hidden by the others, in every lane.

    In one lane its rank is r with chance 2^-r, and each other holder falls into its register with at least that rank
    with chance 2^-(r-1) / 2^precision.
    """
    top = HASH_BITS - precision + 1
    share = 0.0
    for rank in range(1, top + 1):
        chance = 2.0 ** -min(rank, top - 1)
        share += chance * -math.expm1((holders - 1) * math.log1p(-(2.0 ** (1 - rank)) / (1 << precision)))
    return share**lanes


def sets(holders: int, precision: int, trials: int, seed: int) -> dict[str, Any]:
    """Draw all holders of each trial in LANES lanes, leave one out, and see whether anybody could tell."""
    chance = np.random.default_rng(seed)
    hidden_one = hidden_all = 0
    portion = max(1, 4_000_000 // holders)
    left = trials
    while left:
        count = min(portion, left)
        left -= count
        hidden = np.ones(count, dtype=bool)
        for lane in range(LANES):
            registers = chance.integers(0, 1 << precision, (count, holders), dtype=np.uint16)
            ranks = np.minimum(chance.geometric(0.5, (count, holders)), HASH_BITS - precision + 1)
            same = registers[:, 1:] == registers[:, :1]
            masked = (same & (ranks[:, 1:] >= ranks[:, :1])).any(axis=1)
            hidden_one += int(masked.sum()) if lane == 0 else 0
            hidden &= masked
        hidden_all += int(hidden.sum())
    derived_one, derived_all = masked_share(holders, precision), masked_share(holders, precision, LANES)
    return {
        "holders": holders,
        "precision": precision,
        "trials": trials,
        "one_lane": hidden_one,
        "one_lane_derived": derived_one * trials,
        "all_lanes": hidden_all,
        "all_lanes_derived": derived_all * trials,
        "off_by_sigmas": [
            off_by(hidden_one, derived_one, trials),
            off_by(hidden_all, derived_all, trials),
        ],
    }


def off_by(count: int, share: float, trials: int) -> float:
    return round((count - share * trials) / math.sqrt(max(share * (1 - share) * trials, 1e-12)), 2)


# --- whole networks ---------------------------------------------------------------------------------------------------

RULES = ("paper", "ours", "one lane, no ids", "four lanes, no ids")


def mesh_trial(rule: str, seed: int, *, chosen: bool) -> bool:
    """Whether a tombstone was dropped while the one holder that was away still had the record.

    `chosen`: the holder that goes away is one whose register another holder hides.
    """
    chance = random.Random(seed)
    lanes = LANES if rule == "four lanes, no ids" else 1
    hashes = Hashes(MESH, chance, MESH_PRECISION, lanes)
    away = MESH - 1
    if chosen:
        everybody = (1 << MESH) - 1
        hidden = [node for node in range(1, MESH) if hashes.dominates(everybody & ~(1 << node), everybody)]
        if not hidden:
            return mesh_trial(rule, seed + (1 << 40), chosen=True)
        away = chance.choice(hidden)
    peers = [[other for other in range(MESH) if other != node] for node in range(MESH)]
    network: Network
    if rule == "paper":
        network = PaperNetwork(peers, chance, hashes)
    else:
        network = OurNetwork(peers, chance, hashes, exact_ids=64 if rule == "ours" else 0)
    # Everybody has the record and knows of everybody: what some rounds of gossip lead to.
    network.record = [(1 << MESH) - 1] * MESH
    network.up[away] = False
    network.delete(0)
    for _ in range(MESH_AFTER):
        network.round()
        if network.seen.premature:
            return True
        if network.idle():
            break
    return False


def mesh_portion(task: tuple[str, bool, int, int]) -> int:
    rule, chosen, first, count = task
    return sum(mesh_trial(rule, seed, chosen=chosen) for seed in range(first, first + count))
