"""Every program in examples/ does what it says, against a real cluster, with its fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.cli.processes import REPOSITORY
from tests.client import postgres

EXAMPLES = sorted(path.name for path in (REPOSITORY / "examples").glob("*.py"))
NOWHERE = "http://127.0.0.1:9"


def run(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / name), *words],
        capture_output=True, text=True, timeout=180, check=False, cwd=REPOSITORY, env={**os.environ, **environment},
    )  # fmt: skip


def told(name: str, *words: str, **environment: str) -> str:
    ran = run(name, *words, **environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.stdout


def test_the_killed_leader_is_followed_by_another_with_a_greater_token(endpoints: str) -> None:
    text = told("leader_election.py", "--endpoints", endpoints)
    (first, token), (then, newer) = re.findall(r"(\w+) leads with token (\d+)", text)
    assert first != then
    assert int(newer) > int(token)
    assert f"the cluster says: {first}-" in text


def test_the_job_that_died_between_effect_and_report_has_one_effect(endpoints: str) -> None:
    with postgres.running() as dsn:
        text = told("exactly_once_job.py", "--endpoints", endpoints, "--dsn", dsn)
        again = told("exactly_once_job.py", "--endpoints", endpoints, HOLDFAST_EXAMPLE_DSN=dsn)
    for each in (text, again):
        assert re.search(r"ada has the job with token \d+ and pays 25.00", each)
        assert re.search(r"ben has the job with token \d+ and finds it done already", each)
        assert "ada reports" not in each
        assert "The account has 25.00" in each
        assert "may not write" in each


def test_without_a_database_it_says_how_to_get_one() -> None:
    ran = run("exactly_once_job.py", HOLDFAST_EXAMPLE_DSN="")
    assert (ran.returncode, "docker run" in ran.stderr, "--dsn" in ran.stderr) == (1, True, True)
    ran = run("exactly_once_job.py", "--dsn", "host=/nowhere")
    assert (ran.returncode, "docker run" in ran.stderr) == (1, True)


def test_two_crons_at_once_never_overlap(endpoints: str) -> None:
    text = told("cron_no_overlap.py", "--endpoints", endpoints)
    runs = [
        (float(began), float(ended), int(token))
        for token, began, ended in re.findall(r"token (\d+): from ([\d.]+) s to ([\d.]+) s", text)
    ]
    assert 1 < len(runs) < 12
    assert "it is running already" in text
    for before, after in pairwise(runs):
        assert before[1] <= after[0]
        assert before[2] < after[2]


def test_shared_files_are_deleted_when_nobody_needs_them(endpoints: str) -> None:
    text = told("shared_files.py", "--endpoints", endpoints)
    drafts, finals = text.split("Bob's files stay")
    assert drafts.count("deletes") == finals.count("deletes") == 3
    assert finals.endswith("    report/\n    thumbnail/\n    upload/\n"), "nothing is left"


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "exactly_once_job.py"])
def test_without_a_cluster_it_says_how_to_start_one(name: str) -> None:
    ran = run(name, "--endpoints", NOWHERE)
    assert (ran.returncode, "make up" in ran.stderr, "Traceback" in ran.stderr) == (1, True, False)


def test_every_example_has_a_test_here() -> None:
    text = (REPOSITORY / "tests" / "examples" / "test_examples.py").read_text()
    assert [name for name in EXAMPLES if f'told("{name}"' not in text] == []
