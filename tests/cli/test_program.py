"""What holds for every command: help, --json, exit codes, suggestions; and the completion scripts."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli import cluster, main
from coordinator.cli.arguments import leaf_of, subcommands
from coordinator.cli.bench import benchmarks
from coordinator.cli.output import lasting, table
from coordinator.cli.program import parser
from coordinator.endpoint import Endpoint, EndpointError


def leaves(top: argparse.ArgumentParser, *path: str) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    below = subcommands(top)
    if not below:
        yield path, top
    for name, each in below.items():
        yield from leaves(each, *path, name)


def exits(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    told = capsys.readouterr()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, told.out + told.err


def test_every_command_has_help_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    for path, leaf in leaves(parser()):
        assert exits(capsys, *path, "--help")[0] == 0, path
        assert "--json" in leaf._option_string_actions, path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lok"], "did you mean lock?"),
        (["lease", "acqire", "r"], "did you mean acquire?"),
        (["lock", "k", "--tll", "3", "--", "true"], "did you mean --ttl?"),
        (["resources", "list", "--state", "alive"], "did you mean live?"),
        (["lock", "k", "--ttl", "0.01", "--", "true"], "from 0.5 s to 30 days"),
        (["lease", "acquire", "r", "--ttl", "2600000"], "to 30 days"),
        (["gossip", "status", "--at", "zz", "--secret-file", "s"], "host:port"),
        (["bench", "--running", "--seconds", "0"], "more than 0"),
        (["lock", "k", "--shared", "--permits", "2", "--", "true"], "not allowed with"),
        (["status", "--watch", "soon"], "no number of seconds"),
        (["explain", "r", "--what-if", "revoke:r"], "revoke:session/"),
        ([], "COMMAND"),
    ],
)
def test_mistakes_on_the_command_line(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, said = exits(capsys, *words)
    assert (code, told in said) == (2, True), said


@pytest.mark.parametrize("noun", [(), *((name,) for name, each in subcommands(parser()).items() if subcommands(each))])
def test_a_noun_alone_lists_its_commands_with_a_line_about_each(
    capsys: pytest.CaptureFixture[str], noun: tuple[str, ...]
) -> None:
    code, said = exits(capsys, *noun)
    listed = re.findall(r"^  (\S.*?)  +\S.*$", said, re.MULTILINE)
    names = re.findall(r"[\w-]+", " ".join(listed))  # `close (delete)` has two
    assert (code, names) == (2, list(subcommands(leaf_of(parser(), noun)))), said
    assert "holdfast: " in said.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ["locks", "list", "--bogus"],
        ["lock"],
        ["queue", "lsit"],
        ["queue"],
        ["restore", "a-file"],
        ["restore", "a-file", "--config", "n1.toml", "--node-id", "n1"],
        ["edges", "list"],
        ["queue", "enqueue", "q"],
        ["queue", "enqueue", "q", "1", "--lines"],
    ],
)
def test_mistakes_are_json_where_that_is_asked_for(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    try:
        code: object = main([*words, "--json"])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    assert (code, told.out, json.loads(told.err)["error"]["code"]) == (2, "", "usage")


def test_the_list_of_benchmarks_is_for_programs_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list", "--json"]) == 0
    assert "locks" in [part["name"] for part in json.loads(capfd.readouterr().out)["parts"]]


_BENCH = """\
import json, sys
from pathlib import Path
print("| a table |")
(Path("bench") / "results" / "planted.json").write_text(json.dumps({"part": "planted", "words": sys.argv[1:]}))
sys.exit(1)
"""


def test_the_results_of_benchmarks_are_one_document(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Those that this run wrote. A part that failed is in the exit code."""
    results = tmp_path / "bench" / "results"
    results.mkdir(parents=True)
    # Without it, this would be no package as long as the real one can be found; and that knows no such part.
    (tmp_path / "bench" / "__init__.py").touch()
    (tmp_path / "bench" / "__main__.py").write_text(_BENCH)
    (results / "older.json").write_text("{}")
    options = parser().parse_args(["bench", "--json", "--only", "planted", "--rounds", "2"])
    assert benchmarks(options, tmp_path) == 1
    told = capfd.readouterr()
    assert json.loads(told.out) == {
        "results": {"planted": {"part": "planted", "words": ["--rounds", "2", "--only", "planted"]}}
    }
    assert "| a table |" in told.err


def test_an_endpoint_that_is_none_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    for endpoint in ("http://[::", "http://:7101", "http://127.0.0.1:99999"):
        assert main(["lease", "acquire", "r", "--endpoints", endpoint]) == 1
        assert "HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["locks", "list"], ["status"], ["snapshot"], ["watch"]])
def test_an_unreachable_cluster_is_worth_another_try(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main([*words, "--endpoints", "127.0.0.1:1", "--timeout", "0.2", "--json"]) == 75
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], error["outcome"]) == ("unavailable", "retry")


@pytest.mark.parametrize("code", ["change_pending", "no_leader", "not_leader", "not_ready"])
def test_a_change_is_asked_for_again_while_another_leader_comes(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [EndpointError("m. Nothing was done: try again.", status=503, code=code, outcome="retry")]
    asked: list[str] = []
    whole = {"cluster_id": "c", "leader": "n1", "term": 2, "revision": 5, "level": 1, "members": []}

    def call(endpoint: Endpoint, method: str, path: str, body: Any = None, timeout_s: float = 5.0) -> Any:
        asked.append(method)
        if method == "DELETE" and told:
            raise told.pop()
        return whole

    monkeypatch.setattr(cluster, "call", call)
    assert main(["member", "remove", "n9", "--endpoints", "127.0.0.1:1", "--json"]) == 0
    assert asked == ["GET", "DELETE", "DELETE"]
    told.append(EndpointError("m", status=503, code="quorum_at_risk", outcome="retry"))
    assert main(["member", "remove", "n9", "--endpoints", "127.0.0.1:1", "--json"]) != 0
    assert asked[3:] == ["GET", "DELETE"], "somebody has to do something first"
    assert "quorum_at_risk" in capsys.readouterr().err


def test_names_cannot_draw_on_the_terminal() -> None:
    assert "\x1b" not in table(("key",), [["\x1b[2Jboo\nrow"]])
    assert len(table(("key",), [["a\nb"]]).splitlines()) == 2


def test_lengths_of_time() -> None:
    said = [lasting(each) for each in (None, 0, 950, 61_000, 3_600_000 * 5, 3_600_000 * 24 * 9)]
    assert said == [None, "0.0 s", "0.9 s", "1 min 1 s", "5 h 0 min", "9 days"]


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_the_shell_s(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert all(name in script.read_text() for name in subcommands(parser()))
    if shutil.which(shell) is not None:
        checked = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_completion_scripts_are_for_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    script = capsys.readouterr().out
    assert "-l state -x -a 'pending delayed claimed dead'" in script
    assert main(["completion", "fish", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": "fish", "script": script}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("holdfast sess", ["session"]),
        ("holdfast lease re", ["release", "renew"]),
        ("holdfast --version lease re", ["release", "renew"]),
        ("holdfast lease acquire --cl", ["--client"]),
        ("holdfast lock locks --tt", ["--ttl"]),
        ("holdfast completion f", ["fish"]),
        ("holdfast resources list --state su", ["suspect"]),
        ("holdfast queue purge --state d", ["dead", "done"]),
        ("holdfast queue tasks q --state d", ["dead", "delayed", "done"]),
        ("holdfast up --nodes 5", ["5"]),
    ],
)
def test_bash_completes(typed: str, offered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = " ".join(f"'{word}'" for word in typed.split())
    script += f"\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _holdfast; echo ${{COMPREPLY[@]}}\n"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == offered


@pytest.mark.parametrize(
    "words", [("token", "root"), ("token", "create", "--identity", "a", "--scope", "*:read", "--out"), ("backup",)]
)
def test_a_file_that_cannot_be_written_is_a_mistake_like_others(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No node is asked for what could not be kept."""
    assert main([*words, str(tmp_path / "none" / "file")]) == 1
    assert capsys.readouterr().err == f"holdfast: {tmp_path}/none/file cannot be written: No such file or directory\n"


def test_an_error_of_the_system_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_path: Path) -> None:
        raise PermissionError(13, "Permission denied", "node.toml")

    monkeypatch.setattr("coordinator.cli.configuration.load_config", refused)
    assert main(["config", "check", "node.toml"]) == 1
    assert capsys.readouterr().err == "holdfast: node.toml: Permission denied\n"
