"""One run: the cluster, the clients at work, one fault after the other, and then every invariant."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coordinator.client import SyncClient, clock
from coordinator.endpoint import call
from tests.chaos import digests, histories, refusals, sightings, standing, verdicts
from tests.chaos.clients.facts import LEDGER
from tests.chaos.clients.graph import PROVIDER
from tests.chaos.clients.tasks import QUEUE
from tests.chaos.containers import SETTLE_S, Containers
from tests.chaos.crew import Crew, working
from tests.chaos.lookout import looking
from tests.chaos.records import Record, of
from tests.chaos.report import Fault, Report
from tests.chaos.scenarios import ROLLING, ROUND, SHORT, Scenario
from tests.chaos.tally import Verdict, vacuous
from tests.waiting import wait_until

Say = Callable[[str], None]
HOUR_MS = 3_600_000
CLIENTS = 64
"""No more than so many connections at a time are asked for by all clients together: each has one or two under way."""


class Run:
    def __init__(self, containers: Containers, directory: Path, say: Say) -> None:
        self._containers, self._directory, self._say = containers, directory, say
        self._faults: list[Fault] = []
        self._facts: set[str] = set()
        self._active: set[str] = set()
        self._tombstones: list[str] = []
        """What the cluster has in the end."""

    def play(self, rounds: int) -> Report:
        """`rounds` of everything; none: the short run."""
        began = time.monotonic()
        self._say(f"starting project {self._containers.project}")
        self._containers.bring_up()
        self._say(f"whole: {self._described()}")
        first_lease = self._take_lease()
        looked = looking(self._containers, self._directory)
        with looked, working(self._directory, self._containers.endpoints) as crew:
            crew.wait_for_progress()
            self._say("the clients are at work")
            if not rounds:
                self._suffer(crew, SHORT)
            for number in range(rounds):
                self._say(f"round {number + 1} of {rounds}")
                self._suffer(crew, ROUND)
            crew.settle()
            self._say("the clients begin nothing new")
            violations, judged = self._ended(crew)
            violations += self._first_lease_is_there(first_lease)
            crew.finish()
            violations += self._calls_failed(crew)
            judged += [*self._in_the_store(crew), *self._in_the_records(crew), self._digests()]
            violations += [text for verdict in judged for text in verdict.found] + vacuous(judged)
            seconds, told = time.monotonic() - began, crew.read()
            return Report(seconds, self._faults, told, self._counts(crew), violations, judged)

    def _suffer(self, crew: Crew, scenarios: Iterable[Scenario]) -> None:
        for scenario in scenarios:
            began = clock.now()
            seen = scenario(self._containers)
            whole = self._described()
            self._faults.append(Fault(scenario.__name__, len(self._containers.nodes), began, clock.now()))
            crew.wait_for_progress()
            self._say(f"{scenario.__name__}: {seen}; {whole}")

    def _described(self) -> str:
        cluster = self._containers.wait_until_whole()
        return f"{cluster['leader']} leads term {cluster['term']} at revision {cluster['revision']}"

    # --- an acknowledged write from the beginning -------------------------------------------------------------------

    def _take_lease(self) -> str:
        body = {"resource_id": "first", "client_id": "chaos", "lease_duration_ms": HOUR_MS}
        endpoint = self._containers.endpoint(self._containers.nodes[0])
        return str(call(endpoint, "POST", "/api/v1/leases/acquire", body, timeout_s=30)["lease_id"])

    def _first_lease_is_there(self, lease_id: str) -> list[str]:
        endpoint = self._containers.endpoint(self._containers.nodes[-1])
        state = call(endpoint, "GET", f"/api/v1/leases/{lease_id}", timeout_s=30)["state"]
        return [] if state == "ACTIVE" else [f"the lease that was acknowledged at the start is {state} (I9)"]

    # --- the end ----------------------------------------------------------------------------------------------------

    def _ended(self, crew: Crew) -> tuple[list[str], list[Verdict]]:
        """What the cluster says when all is done, while the clients still hold what they hold."""
        with SyncClient(self._containers.endpoints, client_id="chaos-end", timeout=30) as client:

            def all_done() -> bool:
                crew.check()
                told, queue = crew.read(), client.queues.get(QUEUE)
                garbage = verdicts.Circles(told).garbage().keys()
                self._tombstones = _standing(client)
                done = not self._tombstones and queue.completed >= len(of(told, "fed")) and not queue.leased
                return done and garbage <= crew.cleaned() and not garbage & _live(client)

            try:
                wait_until(all_done, SETTLE_S, "all tasks done and all garbage cleaned up", 1.0)
            except AssertionError as error:
                self._say(f"{error}: the invariants below say what is missing")
            before = crew.read()
            queue, live = client.queues.get(QUEUE), _live(client)
            active = self._active = _active(client, verdicts.believed(before))
            self._facts = {each.resource_id for each in client.resources.list(provider=LEDGER)}
        view: Record = {name: getattr(queue, name) for name in ("completed", "dead", "ready", "leased")}
        after, cleaned = crew.read(), crew.store.rows("cleaned")
        garbage, reachable = verdicts.Circles(before).garbage(), verdicts.Circles(after).reachable()
        return verdicts.losses_are_told(after, active), [
            verdicts.each_task_once(after, crew.store.rows("effects"), view),
            *verdicts.garbage_is_gone(garbage, reachable, cleaned, live),
        ]

    def _calls_failed(self, crew: Crew) -> list[str]:
        rolling = [(fault.began, fault.ended) for fault in self._faults if fault.name == ROLLING]
        return verdicts.no_call_fails(crew.read(), rolling)

    def _in_the_store(self, crew: Crew) -> list[Verdict]:
        told, rows = crew.read(), crew.store.rows
        return [
            verdicts.guard_holds(rows("admitted"), rows("writes"), rows("balances"), told),
            *verdicts.only_garbage_goes_once(told, rows("cleaned")),
        ]

    def _digests(self) -> Verdict:
        revision, differing = digests.compare(self._containers, self._directory)
        self._say(f"digests of {', '.join(self._containers.nodes)} compared at revision {revision}")
        return Verdict("I15", {"digests compared": len(self._containers.nodes)}, differing)

    def _in_the_records(self, crew: Crew) -> list[Verdict]:
        told = crew.read()
        return [
            *verdicts.log_is_in_order(told),
            verdicts.nothing_expires_early(told),
            sightings.unrenewed_leases_go(told),
            standing.acknowledged_is_there(told, self._facts, self._active),
            histories.linearizable_histories(told),
            histories.revisions_rise(told),
            *standing.waiters_have_their_turn(told),
            standing.the_dead_stay_dead(told, self._tombstones),
            sightings.one_leader(told),
            refusals.nothing_refused_is_kept(self._containers, self._directory, told),
            sightings.processes_stay_small(told, CLIENTS),
        ]

    def _counts(self, crew: Crew) -> dict[str, int]:
        told = crew.read()
        lost = [record for record in of(told, "circle_left") if record["lost"]]
        return {
            "guarded writes": crew.store.count("writes"),
            "writes refused for their token": crew.store.count("refused"),
            "clients stopped past their lease": crew.resumed,
            "leases told lost": len(of(told, "lease_lost")) + len(lost),
            "circles made": len(of(told, "circle")),
            "resources cleaned up": crew.store.count("cleaned"),
            "tasks done": crew.store.count("effects"),
            "workers killed": crew.killed,
            "events watched": len(of(told, "event")),
        }


def _live(client: SyncClient) -> set[str]:
    listed = client.resources.list(provider=PROVIDER)
    return {each.resource_id for each in listed if each.state not in ("reclaiming", "dead")}


def _standing(client: SyncClient) -> list[str]:
    return [each["resource_id"] for each in client.call("GET", "/tombstones")["tombstones"]]


def _active(client: SyncClient, leases: set[str]) -> set[str]:
    if not leases:
        return set()
    body: dict[str, Any] = {"lease_ids": sorted(leases)}
    answer = client.call("POST", "/leases/lookup", body)
    return {each["lease_id"] for each in answer["leases"] if each["state"] == "ACTIVE"}
