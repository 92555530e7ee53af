"""Commands in running text, outside of blocks: each is typed, here or by a test that goes through a list of them."""

from __future__ import annotations

import re
import subprocess

import pytest

from coordinator.cli import main, program
from tests.chaos.containers import Containers
from tests.chaos.scenarios import grow_to_five
from tests.config import test_compose
from tests.docs import test_fresh, test_guarded_commands, test_node_commands, test_tree_commands
from tests.docs.blocks import REPOSITORY, commands, documents, inline, mistake, subcommands, text_of
from tests.docs.conftest import Terminal, connected

BACKED_UP = "holdfast backup one.backup"
HERE = {
    "holdfast --help": "",
    "holdfast COMMAND --help": "for each in status lock queue reclaims backup; do holdfast $each --help; done",
    "holdfast explain RESOURCE": "holdfast explain doc/one",
    "holdfast namespace put": "holdfast namespace put doc-tenant --leases 10",
    # Both within the time that a busy machine needs.
    "holdfast snapshot": "holdfast snapshot --timeout 60",
    "holdfast transfer": "holdfast transfer --timeout 60",
    "holdfast backup FILE": BACKED_UP,
    "holdfast backup --check FILE": f"{BACKED_UP}; holdfast backup --check one.backup",
    "sha256sum FILE": f"{BACKED_UP} >told; grep $(sha256sum one.backup | cut --characters=-64) told",
    "holdfast restore FILE": (
        f"{BACKED_UP}; holdfast restore one.backup --data-dir west/n1 --node-id n1 "
        "--cluster-id west-$(date --date '1 minute' +%s) --member n1=127.0.0.1:1,127.0.0.1:2"
    ),
    "date +%s": "",
    # Ends with Ctrl-C, here with one as soon as it has shown something; `set -m`: as of a terminal, it is not ignored.
    "holdfast status --watch": (
        "set -m; holdfast status --watch >seen & until grep -q leader seen; do sleep 0.1; done; "
        "kill -INT $!; wait $! || test $? -eq 130; cat seen"
    ),
    "holdfast reclaims retry --provider NAME": "holdfast reclaims retry --provider doc",
    "holdfast reclaims purge --provider NAME": "holdfast reclaims purge --provider doc",
    "holdfast queue tasks QUEUE --state dead": "holdfast queue put doc-q; holdfast queue tasks doc-q --state dead",
    "holdfast queue retry QUEUE": "holdfast queue put doc-r; holdfast queue retry doc-r",
    "holdfast holders remove HOLDER": "holdfast holders remove doc-holder",
    "openssl rand -hex 32": "",
    'eval "$(holdfast completion bash)"': 'eval "$(holdfast completion bash)"; complete -p holdfast',
    "python -m asyncio": """echo 'import asyncio; print(await asyncio.sleep(0, "awaited"))' | python -m asyncio""",
    ".venv/bin/python examples/…": (
        f"python {REPOSITORY}/examples/cron_no_overlap.py --endpoints "
        "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103"
    ),
}
"""What is typed: as printed where nothing is said, with a name where a placeholder is."""

LISTS = (
    HERE,
    test_fresh.TYPED,
    test_tree_commands.TYPED,
    test_node_commands.TYPED,
    test_guarded_commands.TOKENS,
    test_guarded_commands.AUTHORITY,
)
"""All of each is typed, by the test of the file that has the list."""

WITH_DOCKER = {
    "docker/build-image && docker-compose up -d": ("docker/build-image", "docker-compose up -d"),
    "docker-compose --profile five up -d": ("docker-compose --profile five up -d",),
    "make chaos": (),
}
"""Need an engine, which `make test` does not. `make chaos` types them, .ci/run all but the five. Without an engine it
can be seen that they do; tests/config/test_compose.py runs the command lines of the containers."""


def in_running_text() -> set[str]:
    """Those that no block has as well."""
    typed = [line for document in documents() for each in commands(document) for line in each.script.splitlines()]
    printed = {" ".join(command.split()) for document in documents() for command in inline(document)}
    return {command for command in printed if not any(line.startswith(command) for line in typed)}


def test_every_one_is_typed() -> None:
    listed = {command for each in LISTS for command in each}
    assert in_running_text() - listed - {*WITH_DOCKER} == set()
    printed = {" ".join(command.split()) for document in documents() for command in inline(document)}
    assert {*HERE, *WITH_DOCKER} - printed == set(), "commands that no document has any more"


@pytest.mark.parametrize("command", HERE)
def test_it_works(terminal: Terminal, command: str) -> None:
    with connected(terminal) as client:
        client.call("PUT", "/resources/doc/one", {"provider": "doc", "kind": "page", "pinned": True})
        if "holders" in command:
            client.call("POST", "/resources/doc/one/holders", {"holder_id": "doc-holder"})
    assert terminal.told(HERE[command] or command).strip(), command


# --- the table of the command line ------------------------------------------------------------------------------------


def in_the_table() -> list[str]:
    """The first column of docs/CLI.md, each with what goes before it."""
    rows = re.findall(r"^\| (`[^|]*(?:\\\|[^|]*)*`) \|", text_of("docs/CLI.md"), re.MULTILINE)
    return [f"holdfast {each}" for row in rows for each in re.findall(r"`([^`]+)`", row.replace(r"\|", "|"))]


def test_the_table_has_every_command_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    listed = in_the_table()
    for command in listed:
        words = re.sub(r"\[|\]|…", "", command)
        assert mistake(words) is None, command
        noun = words.split()[1]
        with pytest.raises(SystemExit) as ended:
            main([noun, "--help"])
        assert ended.value.code == 0 and f"holdfast {noun}" in capsys.readouterr().out
    assert set(subcommands(program.parser())) - {command.split()[1] for command in listed} == set()


# --- with Docker ------------------------------------------------------------------------------------------------------


def test_what_needs_docker_is_typed_before_a_change_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr("tests.chaos.containers.compose_command", lambda: ["docker-compose"])
    monkeypatch.setattr(Containers, "run", lambda self, words, timeout_s=0: ran.append(" ".join(words)))
    monkeypatch.setattr(Containers, "wait_until_whole", lambda self: {"members": self.nodes})
    containers = Containers(extra=1)
    containers.build()
    containers.bring_up()
    grow_to_five(containers)
    typed = [re.sub(r" --file \S+", "", each).partition(" --no-build")[0] for each in ran]
    assert typed == [line for lines in WITH_DOCKER.values() for line in lines]
    assert "python -m tests.chaos --short" in (REPOSITORY / ".ci" / "run").read_text()
    words = ["make", "chaos", "--dry-run"]
    assert "-m tests.chaos" in subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert [line for lines in WITH_DOCKER.values() for line in lines] == test_compose.TYPED
