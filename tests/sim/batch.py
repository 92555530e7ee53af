"""Many seeds over a few processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.plan import draw
from tests.sim.runner import Result, run_plan


def run_seed(job: tuple[int, int | None, float | None]) -> Result:
    seed, nodes, seconds = job
    return run_plan(draw(seed, nodes, seconds))


def run_seeds(
    seeds: Sequence[int], *, jobs: int, nodes: int | None = None, seconds: float | None = None
) -> Iterator[Result]:
    """Results in the order of the seeds, as they come."""
    work: Iterable[tuple[int, int | None, float | None]] = [(seed, nodes, seconds) for seed in seeds]
    if jobs == 1:
        yield from map(run_seed, work)
        return
    # Not forked: the parent may have threads, and a fresh interpreter shows what depends on its hash seed.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(run_seed, work, chunksize=4)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
