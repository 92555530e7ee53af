"""docs/SECURITY.md on nodes that keep others out, docs/TOMBSTONES.md on nodes that gossip: every command in them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tests.docs.blocks import Command, blocks, commands
from tests.docs.conftest import START_S, Terminal, node, running
from tests.docs.test_programs import at_top_level
from tests.ports import free_port
from tests.waiting import wait_until

TOKENS = {
    "holdfast token list": "holdfast token list",
    "holdfast token rotate ID --overlap 3600": "holdfast token rotate {id} --overlap 3600 --out new.token",
    "holdfast token revoke ID": "holdfast token revoke {id}",
    "holdfast audit": "holdfast audit",
}
"""Of running text, in the order in which they are typed, as the first administrator."""
AUTHORITY = {
    "holdfast certs init --dir new --cluster-id production": "",
    "cat certs/ca.pem new/ca.pem >both.pem": "cat certs/ca.pem new/ca.pem >both.pem && wc -l both.pem",
    "holdfast certs node n1 --dir new …": "holdfast certs node n1 --dir new --host 10.0.0.1",
    "holdfast certs node n1 --cluster-id NEW --renew …": (
        "holdfast certs node n1 --cluster-id west --renew --dir new --host 10.0.0.1"
    ),
    "holdfast certs show FILE…": "holdfast certs show new/ca.pem new/node-n1.pem both.pem",
    "mv secret secret.previous": "openssl rand -hex 32 >secret; mv secret secret.previous; wc -c secret.previous",
}
"""Of running text, for a new authority, a new cluster id and a new secret."""
SCP = """\
#!/bin/sh
# The other host is a directory: certs/a certs/b host:/path/ puts both in host/path/.
for last; do :; done
to=$(echo "$last" | tr -d :)
mkdir -p "$to"
for file; do test "$file" = "$last" || cp "$file" "$to"; done
"""
USES_THE_CLIENT = "\nprint((await client.call('GET', '/cluster'))['leader'])\nawait client.close()\n"


def only(given: list[Command], start: str) -> list[Command]:
    found = [command for command in given if command.script.startswith(start)]
    assert found, start
    return found


def settings_in(printed: str) -> str:
    """The lines from `[tls]` on, as the command tells to write them, for files that lie in certs/."""
    _, _, lines = printed.partition("[tls]\n")
    return "[tls]\n" + lines.replace('= "', '= "certs/')


def test_certificates_and_tokens(tmp_path: Path) -> None:
    given = commands("docs/SECURITY.md")
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
        done += [*status, *renewals, *carried(terminal, given)]
    done += with_tokens(terminal, given)
    assert {command.script for command in given} == {command.script for command in done}


def carried(terminal: Terminal, given: list[Command]) -> list[Command]:
    """To the host of the node, with a stand-in for scp: both files are there, and are those that were made."""
    (copied,) = only(given, "scp ")
    (program := terminal.directory / "scp").write_text(SCP)
    program.chmod(0o755)
    terminal.told(f"PATH=$PWD:$PATH; {copied.script}")
    for name in ("node-n1.pem", "node-n1.key"):
        terminal.told(f"cmp certs/{name} holdfast-1.internal/etc/holdfast/{name}")
    return [copied]


def with_tokens(terminal: Terminal, given: list[Command]) -> list[Command]:
    """On a node that asks for them: those about tokens."""
    (root,), (create,) = only(given, "holdfast token root"), only(given, "holdfast token create")
    assert "a root token is in root.token" in terminal.told(root.script)
    with node(terminal, "tokens", 'tokens = "required"\nroot_token_file = "root.token"') as where:
        terminal.environment["HOLDFAST_ENDPOINTS"] = where
        listing = "holdfast locks list --token-file root.token"
        wait_until(lambda: terminal.run(listing).returncode == 0, START_S, "a node that knows the root token")
        assert terminal.told(create.script).endswith("is in billing.token\n")
        _in_running_text(terminal)
        assert terminal.run("holdfast locks list").returncode == 1, "without one nobody is told anything"
    return [root, create]


def _in_running_text(terminal: Terminal) -> None:
    """What docs/SECURITY.md has no block of: looking, rotating, revoking, the trail."""
    told = terminal.told("holdfast token list --token-file root.token --json")
    (known,) = (each for each in json.loads(told)["tokens"] if each["identity"] == "billing")
    said = {
        printed: terminal.told(f"{script.format(id=known['token_id'])} --token-file root.token")
        for printed, script in TOKENS.items()
    }
    assert "billing" in said["holdfast token list"] and "token.revoke" in said["holdfast audit"]
    assert "new.token" in said["holdfast token rotate ID --overlap 3600"]
    assert terminal.run("holdfast locks list --token-file new.token").returncode == 1, "it is revoked"


def test_another_authority(tmp_path: Path) -> None:
    """What the commands make is what docs/SECURITY.md says."""
    terminal = Terminal(tmp_path, {})
    terminal.told("holdfast certs init --cluster-id production")
    said = {printed: terminal.told(script or printed) for printed, script in AUTHORITY.items()}
    shown = said["holdfast certs show FILE…"]
    assert "west" in shown and "production" in shown and "valid" in shown
    assert (tmp_path / "both.pem").read_text().count("BEGIN CERTIFICATE") == 2


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
        # In the end only its keepers show the tombstone, and the third node need not be one of them.
        statuses = [asked[-1].script.replace("7403", port) for port in ("7403", "7402", "7401")]
        wait_until(
            lambda: any("report-17" in terminal.run(status).stdout for status in statuses), START_S, "the tombstone"
        )
