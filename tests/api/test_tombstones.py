"""Holders and tombstones on real nodes: what is dead stays dead on every node, through failovers and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.calls import Nodes, with_nodes
from tests.api.test_reclaims import ack, ask, claimed, put
from tests.cli.processes import Up, up
from tests.waiting import until


async def keep(nodes: Nodes, node: int, resource_id: str, holder_id: str, **more: Any) -> dict[str, Any]:
    status, answer = await ask(
        nodes, node, "POST", f"/resources/{resource_id}/holders", {"holder_id": holder_id, **more}
    )
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


async def kill(nodes: Nodes, node: int, provider: str, name: str) -> None:
    assert (await ask(nodes, node, "DELETE", f"/resources/{name}?force=true"))[0] == 200
    (item,) = await claimed(nodes, provider, 1, node)
    assert (await ack(nodes, item, node))[0] == 200


async def standing(nodes: Nodes, node: int, name: str) -> dict[str, Any] | None:
    page = (await ask(nodes, node, "GET", "/tombstones?limit=1000"))[1]
    return next((each for each in page["tombstones"] if each["resource_id"] == name), None)


def test_every_node_refuses_and_the_last_acknowledgement_frees(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "ts", "ts/a", "ts/b")
        tokens = {name: (await keep(nodes, 1, "ts/a", name))["holder_token"] for name in ("ts-1", "ts-2")}
        await kill(nodes, 2, "ts", "ts/a")
        about = {"provider": "ts", "kind": "file"}
        for node in (1, 2, 3):
            seen = await standing(nodes, node, "ts/a")
            assert seen is not None and seen["holders_estimate"] == 2
            status, refused = await ask(nodes, node, "PUT", "/resources/ts/a", about)
            assert (status, refused["error"]["code"]) == (410, "tombstoned")
            assert refused["error"]["details"]["revision"] == seen["revision"]
        for place, (name, token) in enumerate(tokens.items()):
            page = (await ask(nodes, 3, "GET", "/tombstones?limit=1000"))[1]
            said = {"holder_id": name, "holder_token": token, "revision": page["complete_to"]}
            assert (await ask(nodes, 1, "POST", "/tombstones/ack", said))[1]["advanced"] is True
            assert (await standing(nodes, 2, "ts/a") is None) == (place == 1)
        assert (await ask(nodes, 1, "PUT", "/resources/ts/a", about))[1]["created"] is True
        for name in tokens:
            assert (await ask(nodes, 1, "DELETE", f"/holders/{name}"))[0] == 200

    with_nodes(cluster, scenario)


def test_a_holder_goes_with_its_session_and_is_fenced(cluster: Up) -> None:
    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "sess", "se/a", "se/b")
        session = (await nodes.post(1, "/sessions", {"client_id": "c", "ttl_ms": 1_000}))[1]["session_id"]
        first = await keep(nodes, 1, "se/a", "se-1", session_id=session)
        await kill(nodes, 1, "sess", "se/a")

        async def gone() -> bool:
            return (await ask(nodes, 2, "GET", "/holders/se-1"))[0] == 404

        await until(gone, "the session ended, and the holder with it")

        async def purged() -> bool:
            return await standing(nodes, 3, "se/a") is None

        await until(purged, "nothing waits for it")
        await put(nodes, "sess", "se/a")
        late = {"holder_id": "se-1", "holder_token": first["holder_token"]}
        for path, more in (("/resources/se/b/holders", {}), ("/tombstones/ack", {"revision": 1})):
            status, fenced = await ask(nodes, 3, "POST", path, {**late, **more})
            assert (status, fenced["error"]["code"]) == (403, "holder_fenced")
        copies = [{"resource_id": "se/a", "incarnation": first["incarnation"]}]
        status, told = await ask(nodes, 2, "POST", "/holders/se-1/verify", {"copies": copies, "last": True})
        assert (status, told["verified"], told["copies"][0]["verdict"]) == (200, True, "drop")
        assert (await ask(nodes, 1, "DELETE", f"/holders/se-1?holder_token={told['holder_token']}"))[0] == 200

    with_nodes(cluster, scenario)


def test_the_leader_dies_while_a_holder_is_offline(tmp_path: Path) -> None:
    """Fault 21 over a failover: the tombstone, the watermark and the token are the cluster's, not a node's."""

    async def scenario(nodes: Nodes) -> None:
        await put(nodes, "off", "off/a", "off/b")
        token = (await keep(nodes, 1, "off/a", "edge"))["holder_token"]
        await keep(nodes, 2, "off/b", "edge", holder_token=token)
        await kill(nodes, 3, "off", "off/a")
        nodes.kill_leader()
        about = {"provider": "off", "kind": "file", "request_id": "again"}
        status, refused = await nodes.insist("/resources/off/a/holders", {"holder_id": "new", "request_id": "n"})
        assert (status, refused["error"]["code"]) == (410, "tombstoned")
        node = nodes.alive[0]

        async def listed() -> dict[str, Any] | None:
            status, page = await ask(nodes, node, "GET", "/tombstones")
            return page if status == 200 else None

        await until(listed, "a leader")
        page = await listed()
        assert page is not None and [each["resource_id"] for each in page["tombstones"]] == ["off/a"]
        said = {"holder_id": "edge", "holder_token": token, "revision": page["complete_to"], "request_id": "ack"}
        status, acked = await nodes.insist("/tombstones/ack", said)
        assert (status, acked["watermark"]) == (200, page["complete_to"])
        assert await standing(nodes, node, "off/a") is None
        assert (await ask(nodes, node, "PUT", "/resources/off/a", about))[1]["created"] is True

    with up(tmp_path / "data") as running:
        with_nodes(running, scenario, 180)
