"""Many seeds of any workloads, over a few processes."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import NamedTuple

from tests.sim.frame import Result
from tests.sim.workloads import run_seed

CHUNK = 4


class Job(NamedTuple):
    workload: str
    seed: int
    nodes: int | None = None
    seconds: float | None = None
    shared: bool = False


def run_job(job: Job) -> Result:
    began = time.process_time()
    result = run_seed(*job)
    result.cpu_s = time.process_time() - began
    return result


def _run_chunk(chunk: list[Job]) -> list[Result]:
    return list(map(run_job, chunk))


def run_jobs(work: Iterable[Job], *, jobs: int) -> Iterator[Result]:
    """Results in the order of the work, as they come. It may be closed at any time: what was not begun is left out."""
    left = iter(work)
    if jobs == 1:
        yield from map(run_job, left)
        return
    # Not forked: the parent may have threads, and a fresh interpreter shows what depends on its hash seed.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: deque[Future[list[Result]]] = deque()
        try:
            while True:
                while len(waiting) < 2 * jobs and (chunk := list(islice(left, CHUNK))):
                    waiting.append(pool.submit(_run_chunk, chunk))
                if not waiting:
                    return
                yield from waiting.popleft().result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def counts_of(workload: str, seeds: Sequence[int], jobs: int = 2, *, shared: Sequence[int] = ()) -> Counter[str]:
    """Of these seeds, none of which may have failed. `shared`: those that were found in plans shared by all."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    work = [Job(workload, seed) for seed in seeds] + [Job(workload, seed, shared=True) for seed in shared]
    for result in run_jobs(work, jobs=jobs):
        counts.update(result.counts)
        if result.failure is not None:
            failures.append("\n".join([*result.timeline, result.failure, f"replay it: {result.replay}"]))
    if failures:
        raise AssertionError(f"{len(failures)} seeds failed\n{failures[0]}")
    print(f"{workload}: {len(work)} seeds, {counts['simulated ms'] / 3_600_000:.2f} h simulated: {dict(counts)}")
    return counts
