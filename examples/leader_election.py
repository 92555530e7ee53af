"""Three candidates, one leader; the leader is killed, and another takes over with a greater token.

Run it against a development cluster: `make up` in one terminal, and in another
`.venv/bin/python examples/leader_election.py`.

Each candidate is a process. `election.run(lead)` waits until this one is elected and then runs `lead`. When leadership
is in doubt (no renewal was confirmed for half of its time) `lead` is cancelled before anybody else can be elected. What
the leader writes elsewhere carries `held.token`: whoever stores it refuses a lower token than the highest it has seen.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection, wait

from coordinator.client import Client, Held, HoldfastError

TTL_S = 3.0
PATIENCE_S = 60.0
ENDPOINTS = "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103"


# --- a candidate ----------------------------------------------------------------------------------------------------


async def take_part(endpoints: str, election: str, name: str, reports: Connection) -> None:
    async with Client(endpoints, client_id=f"{name}-{os.getpid()}") as client:

        async def lead(held: Held) -> None:
            reports.send((name, os.getpid(), held.token))
            while True:
                await asyncio.sleep(TTL_S / 6)
                held.check()  # before each piece of the leader's work: still certain?

        await client.election(election, ttl=TTL_S).run(lead, on_lost=lambda: print(f"    {name} leads no more"))


def candidate(endpoints: str, election: str, name: str, reports: Connection) -> None:
    asyncio.run(take_part(endpoints, election, name, reports))


# --- the story ------------------------------------------------------------------------------------------------------


async def current(endpoints: str, election: str) -> str:
    """Anybody can ask who leads; the answer is the cluster's, not a candidate's."""
    async with Client(endpoints) as client:
        leader = await client.election(election).leader()
        return "nobody" if leader is None else f"{leader.client_id} with token {leader.token}"


def elected(told: list[Connection]) -> tuple[str, int, int]:
    """The next one that leads: its name, its process and its token."""
    for heard in wait(told, PATIENCE_S):
        assert isinstance(heard, Connection)
        name, pid, token = heard.recv()
        return name, pid, token
    raise SystemExit(f"nobody was elected within {PATIENCE_S:g} s; is a leader of the cluster running?")


def story(endpoints: str) -> None:
    context = multiprocessing.get_context("spawn")
    election = f"example/leader/{os.getpid()}"
    # A pipe each: a queue of all three has a lock, which a killed process may take with it.
    pipes = {name: context.Pipe(duplex=False) for name in ("ada", "ben", "cleo")}
    candidates = [
        context.Process(target=candidate, args=(endpoints, election, name, reports), daemon=True)
        for name, (_, reports) in pipes.items()
    ]
    told = [heard for heard, _ in pipes.values()]
    try:
        for process in candidates:
            process.start()
        name, pid, token = elected(told)
        print(f"1. Three candidates; {name} leads with token {token}.")
        print(f"2. Asked, the cluster says: {asyncio.run(current(endpoints, election))}.")
        print(f"3. {name} is killed (SIGKILL). It cannot say goodbye: its {TTL_S:g} s have to pass.")
        os.kill(pid, signal.SIGKILL)
        then, _, newer = elected(told)
        print(f"4. {then} leads with token {newer}.")
        if then == name or newer <= token:
            raise SystemExit(f"{then} took over from {name} with {newer}, which is not above {token}")
        print(f"5. {newer} > {token}: whatever {name} may still have on its way is recognised as old.")
    finally:
        for process in candidates:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="Three candidates, one leader; the leader is killed.")
    parser.add_argument("--endpoints", default=ENDPOINTS, help="nodes of the cluster, separated by commas")
    endpoints = parser.parse_args().endpoints
    try:
        asyncio.run(current(endpoints, "example"))
    except HoldfastError as error:
        print(f"no Holdfast cluster answers at {endpoints} ({error}); start one with `make up`", file=sys.stderr)
        return 1
    story(endpoints)
    return 0


if __name__ == "__main__":
    sys.exit(main())
