"""Faults happen: each kind of `plan.Fault` done to a running world, and undone when its time is over.

One that finds nothing to do (nobody is up, or no link is between those it would part) does not count as having
happened. In a workload's own plan the choices leave such cases out; plans that all workloads share are played as they
always were, for the seeds that were found so.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from functools import partial

from cluster.node import ClusterNode
from tests.checkers.violation import Violation
from tests.sim.decay import Decay
from tests.sim.disk import SimCrash
from tests.sim.members import Members
from tests.sim.network import Weather
from tests.sim.plan import Fault, Plan
from tests.sim.world import Site, World

_PAIRS = set[tuple[str, str]]


class Faults:
    """Plays a list of faults. `calm` ends all of them."""

    def __init__(self, world: World, members: Members, plan: Plan) -> None:
        self._world = world
        self._members = members
        self._shared = plan.shared
        self.happened: Counter[str] = Counter()
        self._cuts: list[_PAIRS] = []
        self._weathers: list[Weather] = []
        self._lags: list[dict[tuple[str, str], float]] = []
        self._sick: set[str] = set()
        """Whose disk was made to fail: they may stop themselves."""
        self._decayed: dict[str, Decay] = {}
        """Where a bit of a node's files is wrong."""
        self._calm = False
        world.down_watchers.append(self._on_down)
        self._down_for: dict[str, float] = {}
        for fault in plan.faults:
            world.at(fault.at, lambda fault=fault: self._begin(fault))

    def is_sick(self, name: str) -> bool:
        return name in self._sick or name in self._decayed

    def make_sick(self, site: Site, down_s: float) -> None:
        """It may stop itself; then it is started again after so long."""
        self._sick.add(site.member.id)
        self._down_for[site.member.id] = down_s

    def _begin(self, fault: Fault) -> None:
        if self._calm:
            return
        self._world.note("*", "fault", str(fault))
        if getattr(self, f"_do_{fault.kind}")(fault) is not False:
            self.happened[fault.kind] += 1

    def calm(self) -> None:
        """No fault any more: links up, disks well, everybody runs."""
        self._calm = True
        self._cuts.clear()
        self._weathers.clear()
        self._lags.clear()
        self._refresh_network()
        self._world.heal()
        for name, site in sorted(self._world.sites.items()):
            site.before_disk = None
            site.slow_sync = None
            site.disk.full = False
            site.disk._failures.clear()
            self._repair(site)
            self._world.resume(name)
            if site.node is None and not self._members.is_gone(name):
                self.restart(site)

    # --- whom ------------------------------------------------------------------------------------------------

    def _sites(self, fault: Fault) -> list[Site]:
        """Those the fault meets that are up."""
        up = [site for _, site in sorted(self._world.sites.items()) if site.node is not None]
        if not up or fault.target == "all":
            return up
        leader = self._leader()
        if fault.target == "leader" and leader is not None:
            return [self._world.sites[leader.options.node_id]]
        number = int(fault.dice[0] * 100) if fault.target == "leader" else int(fault.target)
        return [up[number % len(up)]]

    def _names(self) -> list[str]:
        """Of all that are there, whether up or down; in shared plans also of those that were removed."""
        return [name for name in sorted(self._world.sites) if self._shared or not self._members.is_gone(name)]

    def _another(self, me: str, chance: float) -> str:
        names = [name for name in self._names() if self._shared or name != me]
        return names[int(chance * len(names))]

    def _leader(self) -> ClusterNode | None:
        return self._world.leader()

    # --- network -----------------------------------------------------------------------------------------------

    def _refresh_network(self) -> None:
        self._world.network.cut = set().union(*self._cuts)
        self._world.network.lag = {pair: seconds for lag in self._lags for pair, seconds in lag.items()}
        worst = Weather()
        for weather in self._weathers:
            for field in fields(Weather):
                setattr(worst, field.name, max(getattr(worst, field.name), getattr(weather, field.name)))
        self._world.network.weather = worst

    def _cut(self, pairs: _PAIRS, seconds: float) -> bool:
        """Whether anybody is at both ends of one of them."""
        self._cuts.append(pairs)
        self._refresh_network()
        self._world.at(seconds, lambda: self._mend(pairs))
        return any(not self._members.is_gone(one) and not self._members.is_gone(other) for one, other in pairs)

    def _mend(self, pairs: _PAIRS) -> None:
        self._cuts = [held for held in self._cuts if held is not pairs]
        self._refresh_network()

    def _do_weather(self, fault: Fault) -> None:
        one, two, three, four = fault.dice
        weather = Weather(
            delay=(0.0005, (0.003, 0.02, 0.15)[int(three * 3)]),
            slow_chance=0.05 * one,
            drop=(0.0, 0.02, 0.2)[int(one * 3)],
            duplicate=0.3 * two if two > 0.5 else 0.0,
            reorder=0.3 * three if three > 0.5 else 0.0,
            reset=0.01 * four if four > 0.6 else 0.0,
            corrupt=0.02 * two if one > 0.7 else 0.0,
        )
        self._weathers.append(weather)
        self._refresh_network()
        self._world.at(fault.seconds, lambda: self._clear(weather))

    def _clear(self, weather: Weather) -> None:
        self._weathers = [held for held in self._weathers if held is not weather]
        self._refresh_network()

    def _do_reset(self, fault: Fault) -> bool:
        network, sites = self._world.network, [site.member.id for site in self._sites(fault)]
        pairs = [(one, other) for one in sites for other in sorted(self._world.sites)]
        linked = any(network.linked(*pair) for pair in pairs)
        for pair in pairs:
            network.reset(*pair)
        return linked

    def _do_one_way(self, fault: Fault) -> bool:
        sites, names = self._sites(fault)[:1], self._names()
        if not sites or len(names) < 2:
            return False
        me = sites[0].member.id
        chosen = names if fault.dice[2] < 0.5 else [self._another(me, fault.dice[1])]
        inward = fault.dice[3] < 0.5
        return self._cut({(name, me) if inward else (me, name) for name in chosen if name != me}, fault.seconds)

    def _do_lag(self, fault: Fault) -> bool:
        """Everything to, from, or both, of one node comes late; round trips exceed heartbeats and leases."""
        sites = self._sites(fault)[:1]
        for site in sites:
            me, seconds = site.member.id, (0.05 + 1.2 * fault.dice[1] ** 2) * self._world.pace
            others = [name for name in sorted(self._world.sites) if name != me]
            outward = {(me, other): seconds for other in others} if fault.dice[2] < 0.6 else {}
            inward = {(other, me): seconds for other in others} if fault.dice[2] > 0.4 else {}
            self._lags.append(outward | inward)
            self._refresh_network()
            self._world.at(fault.seconds, partial(self._end_lag, self._lags[-1]))
        return bool(sites)

    def _end_lag(self, lag: dict[tuple[str, str], float]) -> None:
        self._lags = [held for held in self._lags if held is not lag]
        self._refresh_network()

    def _do_isolate(self, fault: Fault) -> bool:
        sites = self._sites(fault)[:1]
        return bool(sites) and self._cut(_around(sites[0].member.id, self._world.sites), fault.seconds)

    def _do_split(self, fault: Fault) -> bool:
        return self._cut(_between(*self._halves(self._names(), fault)), fault.seconds)

    def _do_bridge(self, fault: Fault) -> bool:
        """Two halves that only one node can reach both of."""
        names = self._names()
        middle = names[int(fault.dice[0] * len(names))]
        left, right = self._halves([name for name in names if self._shared or name != middle], fault)
        return self._cut(_between(left - {middle}, right - {middle}), fault.seconds)

    def _do_ring(self, fault: Fault) -> bool:
        """Each reaches its two neighbours only: everybody sees a majority, and no two the same one."""
        names = self._names()
        turned = names[int(fault.dice[1] * len(names)) :] + names[: int(fault.dice[1] * len(names))]
        near = set(zip(turned, turned[1:] + turned[:1], strict=True))
        near |= {(other, one) for one, other in near}
        return self._cut({(one, other) for one in names for other in names if one != other} - near, fault.seconds)

    def _halves(self, names: list[str], fault: Fault) -> tuple[set[str], set[str]]:
        """In shared plans one of them may be empty."""
        ways = 2 ** len(names)
        number = int(fault.dice[1] * ways) if self._shared else 1 + int(fault.dice[1] * max(0, ways - 2))
        left = {name for position, name in enumerate(names) if number >> position & 1}
        return left, set(names) - left

    def _do_flap(self, fault: Fault) -> bool:
        """All links of one node come and go."""
        sites = self._sites(fault)[:1]
        return bool(sites) and self._flap(_around(sites[0].member.id, self._world.sites), fault)

    def _do_flap_link(self, fault: Fault) -> bool:
        """One link comes and goes, both ways or one way only."""
        sites = self._sites(fault)[:1]
        if not sites or len(self._names()) < 2:
            return False
        me = sites[0].member.id
        other = self._another(me, fault.dice[2])
        ways = [(me, other), (other, me)]
        return self._flap(set(ways[:1] if fault.dice[3] < 0.3 else ways), fault)

    def _flap(self, pairs: _PAIRS, fault: Fault) -> bool:
        period = (0.1 + fault.dice[1]) * self._world.pace
        turns = max(0 if self._shared else 1, int(fault.seconds / period))
        for turn in range(turns):
            self._world.at(turn * period, partial(self._blink, pairs, period / 2))
        return turns > 0 and bool(pairs)

    def _blink(self, pairs: _PAIRS, seconds: float) -> None:
        if not self._calm:
            self._cut(set(pairs), seconds)

    # --- processes ---------------------------------------------------------------------------------------------

    def _do_power_cut(self, fault: Fault) -> bool:
        sites = self._sites(fault)
        for position, site in enumerate(sites):
            self._down_for[site.member.id] = fault.seconds * (1 + fault.dice[1] * position)
            noticed_after = 3 * fault.dice[2] * self._world.pace if fault.dice[2] < 0.5 else None
            self._world.crash(site.member.id, noticed_after=noticed_after)
        return bool(sites)

    def _do_kill(self, fault: Fault) -> bool:
        sites = self._sites(fault)
        for position, site in enumerate(sites):
            self._down_for[site.member.id] = fault.seconds * (1 + fault.dice[1] * position)
            self._world.crash(site.member.id, power=False)
        return bool(sites)

    def _do_disk_crash(self, fault: Fault) -> bool:
        """The power fails between two file operations, perhaps again while the node starts."""
        sites = self._sites(fault)
        for site in sites:
            left = [int(fault.dice[1] * 60) + 1]
            again = [fault.dice[2] < 0.5]

            def count(_operation: str, _path: str, site: Site = site, left: list[int] = left, again=again) -> None:
                left[0] -= 1
                if left[0] > 0:
                    return
                if again.pop():
                    left[0] = int(fault.dice[3] * 30) + 1
                    again.append(False)
                else:
                    site.before_disk = None
                self.happened["crash between file operations"] += 1
                self._down_for[site.member.id] = fault.seconds
                raise SimCrash("between two file operations")

            site.before_disk = count
        return bool(sites)

    def _on_down(self, site: Site) -> None:
        name = site.member.id
        wait = self._down_for.pop(name, None)
        if wait is None:
            wait = self._world.rng.uniform(0.1, 2.0) * self._world.pace
        if self._calm:
            wait = 0.1
        self._world.at(wait, lambda: self.restart(site))

    def restart(self, site: Site) -> None:
        if site.node is None and not self._members.is_gone(site.member.id):
            self._world.note(site.member.id, "start", site.life)
            site.start()
            if site.member.id in self._decayed:
                self._after_decay(site)

    def _do_stop(self, fault: Fault) -> bool:
        sites = self._sites(fault)
        for site in sites:
            name, life = site.member.id, site.life
            self._world.stop(name)
            self._world.at(fault.seconds, lambda n=name, s=site, b=life: s.life == b and self._world.resume(n))
        return bool(sites)

    def _do_clock_rate(self, fault: Fault) -> bool:
        sites = self._sites(fault)
        for site in sites:
            site.clock.set_rate(1 + self._world.timing.drift * (2 * fault.dice[1] - 1), site.sits_until)
        return bool(sites)

    # --- disks -------------------------------------------------------------------------------------------------

    def _well_minority(self, fault: Fault) -> list[Site]:
        """One site, unless so many are sick already that a quorum would be lost."""
        sites = self._sites(fault)[:1]
        limit = (len(self._members.voters()) - 1) // 2
        return sites if len(self._sick | self._decayed.keys() | {site.member.id for site in sites}) <= limit else []

    def _do_disk_full(self, fault: Fault) -> bool:
        sites = self._well_minority(fault)
        for site in sites:
            self._sick.add(site.member.id)
            site.disk.room = int(fault.dice[1] * 3000)
            self._world.at(fault.seconds, lambda s=site: self.make_well(s))
        return bool(sites)

    def _do_disk_error(self, fault: Fault) -> bool:
        sites = self._well_minority(fault)
        operations = (
            "fdatasync", "fdatasync", "pwrite", "sync_directory", "rename", "create", "unlink", "pread", "truncate"
        )  # fmt: skip
        for site in sites:
            self._sick.add(site.member.id)
            operation = operations[int(fault.dice[1] * len(operations))]
            site.disk.fail_next(operation, OSError(errno.EIO, "input/output error"))
            self._world.at(fault.seconds, lambda s=site: self.make_well(s))
        return bool(sites)

    def make_well(self, site: Site) -> None:
        site.disk.full = False
        site.disk._failures.clear()
        self._sick.discard(site.member.id)

    def _do_slow_disk(self, fault: Fault) -> bool:
        """Some syncs take long, up to several election timeouts."""
        chance, most_s = fault.dice[1] ** 2, 5 * fault.dice[2] ** 2 * self._world.pace
        rng, sites = self._world.rng, self._sites(fault)
        for site in sites:
            site.slow_sync = lambda: rng.uniform(0, most_s) if rng.random() < chance else 0.0
            self._world.at(fault.seconds, lambda s=site: setattr(s, "slow_sync", None))
        return bool(sites)

    def _do_bit_flip(self, fault: Fault) -> bool:
        """The node goes down, a bit of its files changes, and it is started again: it must notice."""
        sites = [site for site in self._well_minority(fault) if site.member.id not in self._decayed]
        for site in sites:
            name = site.member.id
            self._down_for[name] = fault.seconds
            self._world.crash(name, power=False)
            self._decayed[name] = Decay(site.disk, fault.dice[1:])
            site.damaged = True
        return bool(sites)

    def _after_decay(self, site: Site) -> None:
        """It refused to start, or went on without that bit. What it took the files for, the checkers will see."""
        name = site.member.id
        if site.node is not None and not self._decayed[name].says_nothing():
            raise Violation("flips_noticed", f"{name} started, and did not notice {self._decayed[name]}")
        self.happened["flips that were noticed" if site.node is None else "flips that were not needed"] += 1
        self._repair(site)

    def _repair(self, site: Site) -> None:
        decay = self._decayed.pop(site.member.id, None)
        if decay is not None:
            decay.undo()
        site.damaged = False

    # --- the program's own doings --------------------------------------------------------------------------------

    def _do_snapshot(self, fault: Fault) -> bool:
        sites = [site for site in self._sites(fault) if not site.stopped]
        for site in sites:
            if site.node is not None:
                site.run(lambda node=site.node: node.snapshot(5.0, lambda _outcome: None))
        return bool(sites)

    # What an operator wanted may be refused, or nobody leads whom it could be asked of: `Members.outcomes` says.

    def _do_transfer(self, fault: Fault) -> None:
        self._members.transfer()

    def _do_add(self, fault: Fault) -> None:
        self._members.add()

    def _do_remove(self, fault: Fault) -> None:
        self._members.remove(fault.dice[1])

    def _do_replace(self, fault: Fault) -> None:
        self._members.replace(fault.dice[1])


def _around(name: str, names: Iterable[str]) -> _PAIRS:
    return {pair for other in names if other != name for pair in ((name, other), (other, name))}


def _between(left: set[str], right: set[str]) -> _PAIRS:
    return {pair for one in left for other in right for pair in ((one, other), (other, one))}
