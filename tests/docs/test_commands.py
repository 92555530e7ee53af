"""Every command in a block of README and docs is typed: into a real cluster here, or by the files named below."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.cli.processes import Up
from tests.docs import test_fresh, test_node_commands, test_tree_commands, test_upgrade_commands
from tests.docs.blocks import REPOSITORY, Command, blocks, commands, documents, inline, mistake, text_of
from tests.docs.conftest import Terminal, connected
from tests.docs.fresh import LEADS

NOT_HERE = {*test_fresh.TYPED, *test_tree_commands.TYPED, *test_node_commands.TYPED, *test_upgrade_commands.TYPED}
"""Lines that are typed by the tests of these files: they need a clone, nodes of their own, or a host with the unit."""

NO_COMMANDS = {"docs/ARCHITECTURE.md": 2, "docs/GRPC.md": 1}
"""Blocks that are neither typed nor run, by document: lists of files, and a line of a configuration file."""

APART = {"docs/SECURITY.md", "docs/TOMBSTONES.md"}
"""By tests/docs/test_guarded_commands.py: they need nodes with certificates and tokens, and nodes that gossip."""

OTHERWISE = {
    "--seconds 2": "--seconds 0.2",
    "holdfast watch --from 3": "holdfast watch --from 3 --count 3",
    "pip install grpcio": "pip install --no-index grpcio",
}
"""A reader has more time, ends with Ctrl-C what does not end, and has an index of packages: here they must be there."""

SECOND_OF_RESTORE = "1794841101"
"""As docs/OPERATIONS.md shows it. A reader has another one: that of a moment after the backup."""
AFTER_THE_BACKUP_S = 60


def lines(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.strip()]


def without_those_of_others(command: Command) -> str:
    return "\n".join(line for line in command.script.splitlines() if line not in NOT_HERE)


# --- nothing is left out ----------------------------------------------------------------------------------------------


def test_every_block_is_run_or_listed() -> None:
    typed = {document for document in documents() if commands(document)}
    assert typed == {*BY_DOCUMENT, *APART}
    for document in documents():
        languages = [block.language for block in blocks(document)]
        others = [language for language in languages if language not in ("sh", "console", "python")]
        assert len(others) == NO_COMMANDS.get(document, 0), f"{document} has blocks of {others}"
        assert text_of(document).count("```") == 2 * len(languages), f"{document}: a fence that is not at its margin"


def test_what_others_type_is_in_the_documents() -> None:
    everything = {line for document in documents() for each in commands(document) for line in lines(each.script)}
    told = {command for document in documents() for command in inline(document)}
    assert everything | {" ".join(each.split()) for each in told} >= NOT_HERE, "commands that no document has any more"


@pytest.mark.parametrize("document", documents())
def test_commands_in_running_text_are_commands(document: str) -> None:
    assert [(command, why) for command in inline(document) if (why := mistake(command))] == []


def test_mistakes_are_found() -> None:
    for wrong in ("holdfast stauts", "holdfast status --whatch", "holdfast member add|swap", "make tset"):
        assert mistake(wrong), wrong
    assert mistake("python -m bench.lock"), "no such module"
    assert mistake("python -m bench.locks --round 5"), "no such option"
    assert mistake("holdfast lock job --wait 0 -- ls --anything") is None
    assert headings_missing("ID  ROLE\nn1  leader", "ID  STATE\nn1  leader")


# --- all of it works --------------------------------------------------------------------------------------------------


def headings_missing(printed: str, told: str) -> set[str]:
    """Headings of tables that the document shows and the command does not."""
    capitals = r"\b[A-Z]{2,}\b"
    return set(re.findall(capitals, printed)) - set(re.findall(capitals, told))


def run(terminal: Terminal, command: Command) -> str:
    script = without_those_of_others(command)
    if not script.strip():
        return ""
    for printed, typed in OTHERWISE.items():
        script = script.replace(printed, typed)
    ran = terminal.run(script)
    # The doctor may find the disk of a machine that runs tests slow.
    assert ran.returncode == 0 or "holdfast doctor" in script, f"{script}\n{ran.stdout}{ran.stderr}"
    assert not headings_missing(command.printed, ran.stdout + ran.stderr), (script, ran.stdout)
    return ran.stdout


def in_order(terminal: Terminal, document: str) -> dict[str, str]:
    """What each command told."""
    return {command.script: run(terminal, command) for command in commands(document)}


def quickstart(terminal: Terminal, document: str) -> None:
    for script, told in in_order(terminal, document).items():
        refused = re.findall(r'"code": "(\w+)"', told)
        assert refused in ([], ["lock_held"]), (script, told)
        assert (refused == ["lock_held"]) == ("worker-b" in script)
        assert told.strip(), script


def readme(terminal: Terminal, document: str) -> None:
    told = in_order(terminal, document)
    (acquire,) = (command for command in commands(document) if command.script.startswith("curl"))
    granted = json.loads(told[acquire.script])
    assert granted.keys() == json.loads(acquire.printed).keys()
    with connected(terminal) as client:  # the programs of the same document want it next
        client.call("POST", "/locks/release", {key: granted[key] for key in ("lock_key", "client_id", "fencing_token")})


def command_line(terminal: Terminal, document: str) -> None:
    with connected(terminal) as client:
        for name, pinned in (("index-4", True), ("tmp/segment-17", False)):
            client.call("PUT", f"/resources/{name}", {"provider": "temp-files", "kind": "segment", "pinned": pinned})
        client.call("PUT", "/edges", {"source_resource_id": "index-4", "target_resource_id": "tmp/segment-17"})
    told = in_order(terminal, document)
    assert "└─ index-4\n   └─ tmp/segment-17" in told["holdfast explain tmp/segment-17"]
    (nested,) = (said for script, said in told.items() if script.startswith("holdfast lock nightly"))
    assert nested.endswith("exit 1\n")
    (worked,) = (said for script, said in told.items() if script.startswith("holdfast queue work"))
    assert worked.startswith('{"image": 7} with token ')
    assert len(told["holdfast watch --from 3"].splitlines()) == 3


def operations(terminal: Terminal, document: str) -> None:
    moment = f"{int(time.time()) + AFTER_THE_BACKUP_S}"
    terminal.instead[SECOND_OF_RESTORE] = moment
    west = terminal.directory / "west"
    west.mkdir()
    members = "".join(
        f'[[members]]\nid = "n{n}"\npeer = "127.0.0.1:{n}"\nhttp = "127.0.0.1:{n + 3}"\n' for n in (1, 2, 3)
    )
    (west / "n1.toml").write_text(
        f'node_id = "n1"\ncluster_id = "west-{moment}"\ndata_dir = "n1"\nsecret = "a secret of the documents"\n'
        f'peer = "127.0.0.1:1"\nhttp = "127.0.0.1:4"\n{members}'
    )
    told = in_order(terminal, document)
    assert told["grep cluster_id west/n1.toml"] == f'cluster_id = "west-{moment}"\n'
    assert f"cluster west-{moment} begins at revision" in told["holdfast restore monday.backup --config west/n1.toml"]


def grpc(terminal: Terminal, document: str) -> None:
    in_order(terminal, document)
    made = {path.name for path in terminal.directory.glob("*_pb2*.py")}
    assert made == {f"{name}_pb2{kind}.py" for name in ("dgc", "renewals") for kind in ("", "_grpc")}


def runbooks(terminal: Terminal, document: str) -> None:
    told = in_order(terminal, document)
    seen = told["holdfast doctor --config /etc/holdfast/node.toml\n"]
    assert all(word in seen for word in ("configuration", "disk", "clock", "leader")), seen
    assert all(said.strip() for said in told.values())


def plainly(terminal: Terminal, document: str) -> None:
    for script, told in in_order(terminal, document).items():
        assert told.strip() or not without_those_of_others(Command(script)), script


BY_DOCUMENT: dict[str, Callable[[Terminal, str], None]] = {
    # First, because its locks must be free.
    "docs/QUICKSTART.md": quickstart,
    "README.md": readme,
    "docs/BENCHMARKS.md": plainly,
    "docs/CLI.md": command_line,
    "docs/GRPC.md": grpc,
    "docs/OPERATIONS.md": operations,
    "docs/RUNBOOKS.md": runbooks,
}


@pytest.mark.parametrize("document", BY_DOCUMENT)
def test_the_commands_run_as_printed(terminal: Terminal, document: str) -> None:
    BY_DOCUMENT[document](terminal, document)


def test_a_new_cluster_greets_as_the_readme_shows(cluster: Up) -> None:
    (shown,) = (command.printed for command in commands("README.md") if command.script == "make up")
    greeting = "\n".join(cluster.lines)
    for line in ("The cluster is up; n", "  n3  http://127.0.0.1:", "  dashboard at http://127.0.0.1:"):
        assert line in shown and line in greeting, line
    assert LEADS.search(shown) and LEADS.search(greeting)
    assert (
        shutil.which("make") is None
        or "holdfast up --nodes 3"
        in subprocess.run(
            ["make", "--dry-run", "up"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout
    )
