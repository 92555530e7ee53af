"""What is drawn on a terminal and nowhere else: the live table, bars and amounts that end without a trace."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Told
from tests.cli.terminals import CLEAR, ERASE, holdfast, terminal

_BAR = """\
from coordinator.cli.output import Bar
with Bar("n4 catches up") as bar:
    for part in (-1, 0, 0.5, 1, 7):
        bar.at(part, "so much")
"""
_AMOUNT = """\
from coordinator.cli.output import Amount
moments = iter((0.0, 0.05, 0.1, 2.0, 2.1))
with Amount("backup", lambda: next(moments)) as amount:
    for mebibytes in (1, 2, 8, 9):
        amount.at(mebibytes << 20)
"""


def test_the_table_of_the_members_is_drawn_again_and_again(at_cluster: dict[str, str]) -> None:
    with terminal(holdfast("status", "--watch", "0.05"), at_cluster) as shown:
        shown.until(rf"{re.escape(CLEAR)}.*{re.escape(CLEAR)}.*{re.escape(CLEAR)}")
        shown.process.send_signal(signal.SIGINT)
        assert shown.ended() == 130
    screen = shown.drawn.split(CLEAR)[1]
    assert re.match(r"cluster development  leader n\d  term \d+  revision \d+", screen)
    assert [line.split()[0] for line in screen.splitlines()[2:]] == ["ID", "n1", "n2", "n3"]


def test_a_watched_cluster_that_is_gone_is_said_to_be_and_asked_again(at_cluster: dict[str, str]) -> None:
    words = holdfast("status", "--watch", "0.05", "--endpoints", "127.0.0.1:1")
    with terminal(words, at_cluster) as shown:
        shown.until(rf"no node answers.*{re.escape(CLEAR)}no node answers")


def test_a_table_that_is_not_on_a_terminal_is_not_drawn_over(run: Callable[..., Told]) -> None:
    assert "\x1b" not in run("status")[1]


def frames(drawn: str) -> list[str]:
    return [frame.rstrip() for frame in drawn.split(ERASE)[1:]]


def test_a_bar_fills_and_goes(at_cluster: dict[str, str]) -> None:
    with terminal(["-c", _BAR], at_cluster) as shown:
        assert shown.ended() == 0
    drawn = [(0, "0"), (0, "0"), (15, "50"), (30, "100"), (30, "100")]
    assert frames(shown.drawn) == [
        *(f"n4 catches up [{'#' * full}{'.' * (30 - full)}] {part:>3} % so much" for full, part in drawn), ""
    ]  # fmt: skip


def test_a_bar_stays_within_a_narrow_terminal(at_cluster: dict[str, str]) -> None:
    with terminal(["-c", _BAR], at_cluster, columns=20) as shown:
        assert shown.ended() == 0
    assert {len(frame) for frame in frames(shown.drawn)[:-1]} == {19}


def test_an_amount_of_unknown_size_is_shown_with_its_rate(at_cluster: dict[str, str]) -> None:
    with terminal(["-c", _AMOUNT], at_cluster) as shown:
        assert shown.ended() == 0
    assert frames(shown.drawn) == ["backup 1.0 MiB", "backup 8.0 MiB, 4.0 MiB a second", ""]


def test_nothing_is_drawn_where_nobody_looks(at_cluster: dict[str, str]) -> None:
    quiet = f"import os, sys; os.dup2(os.open(os.devnull, os.O_WRONLY), 2); sys.stderr = open(2, 'w')\n{_BAR}{_AMOUNT}"
    with terminal(["-c", quiet], at_cluster) as shown:
        assert (shown.ended(), shown.drawn) == (0, "")


def test_a_backup_and_its_check_show_how_far_they_are(at_cluster: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "state.backup"
    with terminal(holdfast("backup", str(file)), at_cluster) as shown:
        assert shown.ended() == 0, shown.drawn
    assert re.search(rf"{re.escape(ERASE)}backup [\d,.]+ (bytes|MiB).*{re.escape(ERASE)}file +", shown.drawn)
    with terminal(holdfast("backup", "--check", str(file)), at_cluster) as shown:
        assert shown.ended() == 0, shown.drawn
    assert re.search(rf"reading state.backup \[#{{30}}\] 100 % .*{re.escape(ERASE)}file +", shown.drawn)
