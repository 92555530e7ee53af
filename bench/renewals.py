"""Lease renewals a second in batches and by sessions, next to etcd and Redis: `python -m bench.renewals`.

Batches of 1 to 10,000, at 50,000 and 500,000 leases; bench/millions.py goes on to 5,000,000. Ours are durable and on a
majority before they are answered; etcd keeps them in its leader's memory, Redis in the memory of one server.
"""

from __future__ import annotations

from bench.etcd import Etcd
from bench.holdfast import holdfast
from bench.load import Api
from bench.part import Chart, Result, Setting, main
from bench.redis import Redis
from bench.renewing import CONNECTIONS, EtcdLeases, Leases, our_turn, redis_turn, session_turn
from bench.rounds import Turn, in_turns

FEW, MORE, SESSIONS, EACH = 50_000, 500_000, 20, 1_000


async def measure(setting: Setting) -> Result:
    result, present = Result(), setting.present
    few, more = setting.amount(FEW, 10_000), setting.amount(MORE, 20_000)
    etcd = Etcd(setting.place("etcd")) if present.has("etcd") else None
    redis = Redis(setting.place("redis"), synced=False) if present.has("redis") else None
    try:
        theirs = EtcdLeases(etcd, few, setting.progress) if etcd else None
        with holdfast(setting.place("holdfast")) as cluster:
            leases = Leases(Api(cluster), setting.progress)
            for count in (few, more):
                await leases.grow(count - SESSIONS * EACH if count == more else count)
                if count == more:
                    await leases.own_by_sessions(SESSIONS, EACH)
                await leases.settle()
                setting.progress(f"{leases.all:,} leases")
                result.rows += await in_turns(_turns(setting, leases, theirs, redis), setting.rounds, setting.progress)
            leases.api.close()
    finally:
        for peer in (etcd, redis):
            if peer:
                peer.close()
    result.notes = [
        "Ours are replicated, fsynced renewals; etcd's and Redis's are in one process's memory.",
        f"etcd has {few:,} leases in both sizes: more were not tried.",
    ]
    result.charts = [Chart("per_second", "Lease renewals a second (3 nodes)", "renewals/s", "per_second")]
    return result


def _turns(setting: Setting, leases: Leases, theirs: EtcdLeases | None, redis: Redis | None) -> list[Turn]:
    """A peer after each of ours."""
    ours = [our_turn(leases, batch, setting.seconds) for batch in CONNECTIONS]
    by_batch = dict(zip(CONNECTIONS, (turn.what for turn in ours), strict=True))
    if leases.sessions:
        ours.append(session_turn(leases, setting.seconds))
    peers = theirs.turns(setting.seconds, by_batch[1], by_batch[1_000]) if theirs else []
    if redis:
        redis.fill_leases(leases.all)
        peers.append(redis_turn(redis, leases.all, setting.seconds, by_batch[1_000]))
    mixed = []
    for number, turn in enumerate(ours):
        mixed += [turn, *peers[number : number + 1]]
    return mixed


if __name__ == "__main__":
    main("renewals", __doc__, measure)
