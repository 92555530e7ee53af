"""docs/SECURITY.md on nodes that keep others out, docs/TOMBSTONES.md on nodes that gossip: every command in them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import Command, blocks, commands
from tests.docs.conftest import Terminal
from tests.docs.test_commands import NOT_RUN
from tests.docs.test_programs import at_top_level
from tests.ports import free_port
from tests.waiting import wait_until

START_S = 120
USES_THE_CLIENT = "\nprint((await client.call('GET', '/cluster'))['leader'])\nawait client.close()\n"


@contextlib.contextmanager
def running(terminal: Terminal, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`holdfast` with these words, in the background; its output in a file of that name."""
    with open(terminal.directory / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            ["holdfast", *words], cwd=terminal.directory, env=terminal.surroundings(), stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=90)


@contextlib.contextmanager
def node(terminal: Terminal, name: str, settings: str) -> Iterator[str]:
    """A cluster of one node with these settings in its file; where it serves, as soon as it answers at all."""
    http, peer = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    both = f'http = "{http}"\npeer = "{peer}"\n'
    (terminal.directory / f"{name}.toml").write_text(
        f'node_id = "n1"\ncluster_id = "production"\ndata_dir = "{name}"\nsecret = "a secret of the documents"\n{both}'
        f'{settings}\n[[members]]\nid = "n1"\n{both}'
    )
    with running(terminal, name, "node", "--config", f"{name}.toml"):
        yield http


def only(given: list[Command], start: str) -> list[Command]:
    found = [command for command in given if command.script.startswith(start)]
    assert found, start
    return found


def settings_in(printed: str) -> str:
    """The lines from `[tls]` on, as the command tells to write them, for files that lie in certs/."""
    _, _, lines = printed.partition("[tls]\n")
    return "[tls]\n" + lines.replace('= "', '= "certs/')


def test_certificates_and_tokens(tmp_path: Path) -> None:
    given = [command for command in commands("docs/SECURITY.md") if command.script not in NOT_RUN]
    terminal = Terminal(tmp_path, {"10.0.0.1": "127.0.0.1"})
    done = [*only(given, "holdfast certs init"), only(given, "holdfast certs node n1")[0]]
    told = [terminal.told(command.script) for command in done]
    for command, said in zip(done, told, strict=True):
        first = command.printed.splitlines()[0].rpartition("valid until")[0]
        assert said.startswith(terminal.here(first)) and first, said
    with node(terminal, "tls", settings_in(told[-1])) as where:
        terminal.instead["holdfast-1.internal:7100"] = where
        terminal.environment["HOLDFAST_ENDPOINTS"] = where
        status = only(given, "holdfast status")
        wait_until(lambda: terminal.run(status[0].script).returncode == 0, START_S, "a node that answers over TLS")
        for command in (*only(given, "holdfast certs client"), *only(given, "holdfast locks list")):
            assert terminal.told(command.script).strip(), command.script
            done.append(command)
        (program,) = (block.text for block in blocks("docs/SECURITY.md") if block.language == "python")
        assert at_top_level(terminal.here(program) + USES_THE_CLIENT, tmp_path / "certs") == "n1\n"
        renewals = only(given, "holdfast certs node n1")[1:]
        for command in renewals:
            assert "certificate of node n1" in terminal.told(command.script)
        done += [*status, *renewals]
    done += with_tokens(terminal, given)
    assert {command.script for command in given} == {command.script for command in done}


def with_tokens(terminal: Terminal, given: list[Command]) -> list[Command]:
    """On a node that asks for them: those about tokens."""
    (root,), (create,) = only(given, "holdfast token root"), only(given, "holdfast token create")
    assert "a root token is in root.token" in terminal.told(root.script)
    with node(terminal, "tokens", 'tokens = "required"\nroot_token_file = "root.token"') as where:
        terminal.environment["HOLDFAST_ENDPOINTS"] = where
        listing = "holdfast locks list --token-file root.token"
        wait_until(lambda: terminal.run(listing).returncode == 0, START_S, "a node that knows the root token")
        assert terminal.told(create.script).endswith("is in billing.token\n")
        assert "billing" in terminal.told("holdfast token list --token-file root.token")
        assert terminal.run("holdfast locks list").returncode == 1, "without one nobody is told anything"
    return [root, create]


def test_gossip(tmp_path: Path) -> None:
    shown, run, *asked = commands("docs/TOMBSTONES.md")
    assert shown.script == "cat g1.toml" and run.script == "holdfast gossip run --config g1.toml &"
    names = ("g1", "g2", "g3")
    terminal = Terminal(tmp_path, {f"127.0.0.1:{7401 + n}": f"127.0.0.1:{free_port()}" for n in range(3)})
    terminal.told("openssl rand -hex 32 >gossip.secret; chmod 600 gossip.secret")
    for turn, name in enumerate(names):
        text = shown.printed.replace("g1", name)
        ports = [f"740{(turn + step) % 3 + 1}" for step in range(3)]
        for step, port in enumerate(("7401", "7402", "7403")):
            text = text.replace(port, f"<{step}>")
        for step, port in enumerate(ports):
            text = text.replace(f"<{step}>", port)
        (tmp_path / f"{name}.toml").write_text(terminal.here(text))
    with contextlib.ExitStack() as group:
        for name in names:
            words = terminal.here(run.script).replace("g1", name).split()[1:-1]
            group.enter_context(running(terminal, name, *words))
        for command in asked:
            # A node that has just begun does not answer yet, and what was put at one comes to the next by gossip.
            wait_until(lambda command=command: terminal.run(command.script).returncode == 0, START_S, command.script)
        status = asked[-1].script
        wait_until(lambda: "report-17" in terminal.run(status).stdout, START_S, "the tombstone at the third node")
