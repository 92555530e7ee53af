"""What goes wrong for clients: their programs stop and die, their connections break, fall silent, lead one way only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tests.sim.faults import Faults
from tests.sim.plan import Fault, Kinds
from tests.sim.wires import End, Wires

KINDS: Kinds = {
    "client_stop": (5.0, lambda rng: rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.5, 4.0)))),
    "client_kill": (2.0, lambda rng: rng.uniform(0.05, 1.5)),
    "wire_reset": (5.0, lambda rng: 0.0),
    "wire_cut": (5.0, lambda rng: rng.uniform(0.2, 4.0)),
    "wire_silence": (3.0, lambda rng: 0.0),
    "wire_lag": (3.0, lambda rng: rng.uniform(0.3, 3.0)),
}
"""Together nearly as often as those of the cluster."""


class Victim(Protocol):
    """A client, over all its lives."""

    name: str

    def stop(self, seconds: float) -> bool:
        """Whether it ran; likewise `kill`."""

    def kill(self, down_s: float, *, silently: bool) -> bool: ...

    def go_on(self) -> None: ...


class ClientFaults(Faults):
    """Those of the cluster too. `expose` says who the clients are."""

    wires: Wires
    victims: Sequence[Victim]

    def expose(self, wires: Wires, victims: Sequence[Victim]) -> None:
        self.wires, self.victims = wires, victims

    def calm(self) -> None:
        super().calm()
        self.wires.calm()
        for victim in self.victims:
            victim.go_on()

    def _chosen(self, fault: Fault) -> list[Victim]:
        if fault.target == "all":
            return list(self.victims)
        return [self.victims[int(fault.dice[1] * len(self.victims))]]

    def _do_client_stop(self, fault: Fault) -> bool:
        stopped = [victim.stop(fault.seconds) for victim in self._chosen(fault)]
        return any(stopped)

    def _do_client_kill(self, fault: Fault) -> bool:
        silently = fault.dice[2] < 0.3
        return self._chosen(fault)[0].kill(fault.seconds, silently=silently)

    def _ways(self, fault: Fault) -> list[tuple[str, str]]:
        """Between some clients and a node, or all of them: both ways, there only, or back only."""
        nodes = sorted(self._world.sites) if fault.dice[3] < 0.2 else [site.member.id for site in self._sites(fault)]
        pairs = [(victim.name, node) for victim in self._chosen(fault) for node in nodes]
        there = pairs if fault.dice[2] < 0.7 else []
        back = [(node, client) for client, node in pairs] if fault.dice[2] > 0.3 else []
        return there + back

    def _ends(self, fault: Fault) -> Iterator[End]:
        """Of connections that are there."""
        for client, node in self._ways(fault):
            yield from self.wires.between(client, node)

    def _do_wire_cut(self, fault: Fault) -> bool:
        ways = self._ways(fault)
        self.wires.cut(ways, fault.seconds)
        return bool(ways)

    def _do_wire_lag(self, fault: Fault) -> bool:
        ways = self._ways(fault)
        self.wires.lag(ways, 0.02 + 1.5 * fault.dice[0] ** 2, fault.seconds)
        return bool(ways)

    def _do_wire_reset(self, fault: Fault) -> bool:
        met = False
        for end in self._ends(fault):
            self.wires.reset(end)
            met = True
        return met

    def _do_wire_silence(self, fault: Fault) -> bool:
        met = False
        for end in self._ends(fault):
            self.wires.silence(end)
            met = True
        return met
