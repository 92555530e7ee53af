"""Bits flip in the files of a minority, by the thousand: each is noticed when its node starts, or was not needed.

Every run is a cluster of three or five under load in which one node after the other goes down, has one bit of its files
changed, and is started again. One that notices refuses to start; then the bit is put right. One that does not must
have had nothing there (`decay`), or the run fails. All else is as ever: the checks of the registers run, and in the end
nothing that was acknowledged may be missing, on any node.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from tests.sim.frame import Result, run_plan
from tests.sim.plan import WARM_UP_S, Fault, Plan, draw
from tests.sim.registerrun import RegisterRun

A_RUN = 120
"""Flips planned: many find their node still down, or another one sick, and are left out."""
EVERY_S = 1.2


def plan(seed: int) -> Plan:
    rng = random.Random(f"flips {seed}")
    faults = [
        Fault(WARM_UP_S + EVERY_S * (number + rng.random()), "bit_flip", target, rng.uniform(0.02, 0.2), dice)
        for number in range(A_RUN)
        for target in [rng.choice(("leader", "0", "1", "2", "3", "4", "0", "1", "2", "3"))]
        for dice in [tuple(rng.random() for _ in range(4))]
    ]
    drawn = draw(seed, seconds=WARM_UP_S + EVERY_S * (A_RUN + 1))
    return replace(drawn, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def flip(wanted: int) -> tuple[Counter[str], list[Result]]:
    """At least so many, over as many seeds as it takes. With them, the runs that failed."""
    counts, failed, seed = Counter[str](), [], 0
    while counts["fault bit_flip"] < wanted and not failed:
        result = run_plan(RegisterRun, plan(seed))
        counts.update(result.counts)
        counts["seeds"] += 1
        if result.failure is not None:
            failed.append(result)
        seed += 1
        if seed > wanted:
            raise AssertionError(f"{seed} runs, and no more than {counts['fault bit_flip']} flips: {counts}")
    return counts, failed
