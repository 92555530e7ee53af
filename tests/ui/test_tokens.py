"""The dashboard of a node that asks for access tokens: it asks for one, and shows and does what that one allows."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.devcluster import Layout
from coordinator.tokens import ROOT, new_token
from tests.cli.processes import REPOSITORY
from tests.ports import free_base
from tests.ui.asking import ask
from tests.ui.browser import Page
from tests.waiting import wait_until

START_S = 60


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A cluster of one: its address, and its root token."""
    base, root = free_base(2), new_token(ROOT)
    layout = Layout(tmp_path, 1, base, base + 1)
    layout.write()
    file = tmp_path / "root.token"
    file.touch(0o600)
    file.write_text(root)
    environment = {**os.environ, "HOLDFAST_TOKENS": "required", "HOLDFAST_ROOT_TOKEN_FILE": str(file)}
    command = [sys.executable, "-m", "coordinator.cli", "node", "--config", str(layout.config_path("n1"))]
    with open(tmp_path / "log", "wb") as log:
        node = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
    address = f"http://{layout.http('n1')}"
    try:
        wait_until(lambda: _ready(address), START_S, f"the node: {(tmp_path / 'log').read_text()}")
        yield address, root
    finally:
        node.terminate()
        node.wait(timeout=90)


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=2):
            return True
    except OSError:
        return False


def test_a_token_is_asked_for_and_decides_what_is_shown_and_done(guarded: tuple[str, str], page: Page) -> None:
    node, root = guarded
    page.go(f"{node}/ui/")
    page.wait_for_text("dialog", "an access token is needed")
    page.wait_for_text("#connection", "token needed")
    page.type(root)
    page.press("Enter")
    page.wait_for_text("#connection", "live")
    page.wait_for_text(".tiles", "Active leases")
    page.wait_for_text("#cluster", "held")
    held = {"lock_key": "guarded", "client_id": "worker-a", "lease_time_ms": 300_000}
    assert ask(node, "POST", "/locks/acquire", held, root)["acquired"]
    reader = {"identity": "reader", "scopes": [{"namespace": "default", "right": "read"}]}
    _use(page, ask(node, "POST", "/tokens", reader, root)["token"])
    page.wait_for_text(".tiles", "no right to read everywhere")
    page.view("#/locks?key=guarded")
    page.wait_for_text("#holder", "worker-a")
    page.wait_for_text("main", "live")
    page.click("[data-key=break]")
    page.click("dialog button.primary")
    page.wait_for_text("dialog", "has no right to admin")
    assert "Nothing was changed" in page.text("dialog")
    page.press("Escape")
    _use(page, root)
    page.click("[data-key=break]")
    page.click("dialog button.primary")
    page.wait_for_text("#holder", "Nobody holds it")


def _use(page: Page, token: str) -> None:
    page.click("#access")
    page.wait_for("document.activeElement.name === 'token'", "the field")
    page.value("document.activeElement.select()")
    page.type(token)
    page.press("Enter")
    page.wait_for("!document.querySelector('dialog')", "the dialog to close")
