"""`holdfast certs`: a cluster's own authority, and the certificates of its nodes and clients. Talks to no node."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from coordinator.cli.arguments import Commands, Run, add_command, add_json, add_noun, count
from coordinator.cli.output import Shown, complain, fields, plain

DIRECTORY = Path("certs")
AUTHORITY_DAYS, ISSUED_DAYS = 3650, 365


def _told(work: Run) -> Run:
    """The command, with what is wrong told as any other mistake."""

    def run(options: argparse.Namespace) -> int:
        from coordinator.authority import AuthorityError  # noqa: PLC0415 - its library takes longer than most commands

        try:
            return work(options)
        except AuthorityError as error:
            return complain(options, str(error), 1)

    return run


def _init(options: argparse.Namespace) -> int:
    from coordinator.authority import Authority, described  # noqa: PLC0415 - as above

    authority = Authority.make(options.dir, options.cluster_id, options.days)
    made = described(options.dir / "ca.pem")[0]
    document = {**made, "key": str(options.dir / "ca.key")}
    text = f"""\
the authority of cluster {authority.cluster_id} is made, valid until {made["not_after"][:10]}
  {made["file"]}  every node and client gets a copy
  {document["key"]}  whoever has it can be any node: keep it off the nodes, and a copy in a safe place
next, once for each node, with the names and addresses under which others reach it:
  holdfast certs node n1 --host holdfast-1.internal --host 10.0.0.1{_elsewhere(options)}"""
    return Shown(document, text).print(options)


def _node(options: argparse.Namespace) -> int:
    from coordinator.authority import Authority  # noqa: PLC0415 - as above

    authority = Authority(options.dir)
    out: Path = options.out or options.dir
    cluster_id = options.cluster_id or authority.cluster_id
    made = authority.node(options.node_id, options.host, options.days, out, renew=options.renew, cluster_id=cluster_id)
    next_steps = f"""\
next: copy both and {options.dir / "ca.pem"} to the node, readable by its user only, and name them in its file:
  [tls]
  cert = "{made.certificate.name}"
  key = "{made.key.name}"
  ca = "ca.pem\""""
    if options.renew:
        next_steps = "next: copy both to the node; it takes them within seconds, or at once when it gets SIGHUP"
    return _issued(options, made, f"node {options.node_id} of cluster {cluster_id}", next_steps)


def _client(options: argparse.Namespace) -> int:
    from coordinator.authority import Authority  # noqa: PLC0415 - as above

    authority = Authority(options.dir)
    made = authority.client(options.identity, options.days, options.out or options.dir, renew=options.renew)
    next_steps = f"""\
next: give both and {options.dir / "ca.pem"} to the client; on the command line:
  holdfast status --ca {options.dir / "ca.pem"} --cert {made.certificate} --cert-key {made.key}"""
    return _issued(options, made, f"client {plain(options.identity)} of cluster {authority.cluster_id}", next_steps)


def _issued(options: argparse.Namespace, made: Any, whose: str, next_steps: str) -> int:
    from coordinator.authority import described  # noqa: PLC0415 - as above

    document = {**described(made.certificate)[0], "key": str(made.key)}
    text = (
        f"the certificate of {whose} is made, valid until {document['not_after'][:10]}\n"
        f"  {made.certificate}\n  {made.key}  secret\n{next_steps}"
    )
    return Shown(document, text).print(options)


def _show(options: argparse.Namespace) -> int:
    from coordinator.authority import described  # noqa: PLC0415 - as above

    found = [each for path in options.file for each in described(path)]
    drawn = "\n\n".join(
        fields(
            [
                ("file", each["file"]),
                ("kind", each["kind"]),
                ("name", each["name"]),
                ("cluster", each["cluster_id"] or None),
                ("identity", each["identity"]),
                ("reached as", ", ".join(each["names"]) or None),
                ("issuer", each["issuer"]),
                ("valid", f"{each['not_before'][:19]} to {each['not_after'][:19]} UTC ({_left(each)})"),
                ("sha256", each["sha256"]),
            ]
        )
        for each in found
    )
    return Shown({"certificates": found}, drawn, 1 if any(each["expired"] for each in found) else 0).print(options)


def _left(each: dict[str, Any]) -> str:
    return "EXPIRED" if each["expired"] else f"{each['days_left']} days left"


def _elsewhere(options: argparse.Namespace) -> str:
    return "" if options.dir == DIRECTORY else f" --dir {options.dir}"


def add(commands: Commands) -> None:
    actions = add_noun(commands, "certs", "make the certificates of a cluster, its nodes and its clients")
    init = _added(actions, "init", "make the authority of a cluster", _init, AUTHORITY_DAYS)
    init.add_argument("--cluster-id", required=True, metavar="ID", help="as in the nodes' configuration")
    node = _added(actions, "node", "issue the certificate of a node", _node, ISSUED_DAYS)
    node.add_argument("node_id", metavar="NODE")
    node.add_argument(
        "--host", action="append", default=[], metavar="NAME|ADDRESS", required=True,
        help="under which clients and other nodes reach it, without the port; may be repeated",
    )  # fmt: skip
    node.add_argument("--cluster-id", metavar="ID", help="of a restored cluster (default: the authority's)")
    client = _added(actions, "client", "issue the certificate of a client", _client, ISSUED_DAYS)
    client.add_argument("identity", metavar="IDENTITY", help="what the cluster knows it by")
    for issuing in (node, client):
        issuing.add_argument("--out", type=Path, metavar="DIR", help="where to write it (default: --dir)")
        issuing.add_argument("--renew", action="store_true", help="replace the one that is there, key and all")
    show = add_command(
        actions, "show", "what certificates say, and how long they last", _told(_show),
        description="What certificates say, and how long they last. Ends with 1 if one has expired.",
    )  # fmt: skip
    show.add_argument("file", type=Path, nargs="+", metavar="FILE")
    add_json(show)


def _added(actions: Commands, name: str, about: str, work: Run, days: int) -> Any:
    added = add_command(actions, name, about, _told(work))
    added.add_argument(
        "--dir", type=Path, default=DIRECTORY, metavar="DIR", help=f"the authority's (default: ./{DIRECTORY})"
    )
    added.add_argument("--days", type=count, default=days, metavar="N", help=f"how long it is valid (default: {days})")
    add_json(added)
    return added
