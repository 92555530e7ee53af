"""Random commands about a small graph, for any source of choices (hypothesis, or a seeded random)."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.machine import commands as c
from tests.machine.drawing import Choose
from tests.machine.graphtwin import GraphTwin
from tests.machine.twin import packed, ticks

PROVIDERS = ("disk", "db")
KINDS = ("file", "row", "view")
WORKERS = ("w1", "w2")
VERBS = (
    ("put",) * 7 + ("edge",) * 14 + ("ring",) * 3 + ("cut",) * 4 + ("lease",) * 5 + ("release",) * 10 + ("delete",)
    + ("claim",) * 3 + ("ack",) * 6 + ("nack",) * 2 + ("return",) + ("dead",)
)  # fmt: skip


def draw_graph_command(
    twin: GraphTwin, names: Sequence[str], choose: Choose, *, plain: bool = False
) -> c.Command | None:
    """`plain`: without pins and policies, which sooner or later keep everything."""
    model = twin.model
    verb = choose(VERBS)
    some = (
        sorted(model.live())
        if verb in ("edge", "ring", "lease", "delete") and choose((True,) * 9 + (False,))
        else names
    )
    name = choose(some or names)
    match verb:
        case "put":
            owner = model.resources[name].provider if name in model.resources else choose(PROVIDERS)
            return c.PutResources(
                tuple(dict.fromkeys((name, *(choose(names) for _ in range(choose((0, 2, 5))))))),
                choose((owner, owner, owner, choose(PROVIDERS))),
                choose(KINDS),
                choose((None,) * 15 + (ticks(20),)),
                choose((0, ticks(2), ticks(5), ticks(9))),
                False if plain else choose((False,) * 15 + (True,)),
                "cascade" if plain else choose(("cascade",) * 15 + ("orphan", "block")),
            )
        case "edge":
            policy = None if plain else choose((None,) * 15 + ("cascade", "orphan", "block"))
            return c.PutEdges((name,), (choose(some or names),), policy)
        case "ring":
            ring = [choose(some or names) for _ in range(choose((2, 4)))]
            return c.PutEdges(tuple(ring), (*ring[1:], ring[0]))
        case "cut":
            return c.DeleteEdge(*choose([*model.edges, (name, choose(names))]))
        case "lease":
            return c.AcquireLease(name, choose("ab"), ticks(choose((2, 30, 30, 500))))
        case "release":
            return c.ReleaseLease(*choose([*model.leases, (name, "a")]))
        case "delete":
            return c.DeleteResource(name, choose((True, False)))
        case "claim":
            kinds = choose(((), (), ("file",), ("row", "view")))
            return c.ClaimReclaims(choose(PROVIDERS), choose(WORKERS), choose((1, 4)), ticks(choose((2, 40))), kinds)
        case "ack" | "nack" | "return" if twin.claims:
            return draw_answer(twin, verb, choose)
        case "dead":
            order = choose((c.RetryReclaims, c.RetryReclaims, c.PurgeReclaims))
            return order(choose(PROVIDERS), "", 1000)
    return None


def draw_answer(twin: GraphTwin, verb: str, choose: Choose) -> c.Command:
    """Mostly of the one who has the claim, and to one of the newest."""
    claimed = [key for key, (name, _) in twin.claims.items() if twin.model.state_of(name) == "claimed"]
    number, token = choose([*claimed, *list(twin.claims)[-1:]])
    name, worker = twin.claims[number, token]
    worker = choose((worker, worker, worker, *WORKERS))
    if verb == "ack":
        return c.AckReclaims(worker, packed(number), packed(token))
    if verb == "return":
        return c.ReturnReclaims(worker, packed(number), packed(token))
    resource = twin.model.resources.get(name)
    back_off = None if resource is not None and resource.attempt < 5 else ticks(1)
    return c.NackReclaim(worker, number, token, "no", choose((back_off, ticks(1), ticks(5))))
