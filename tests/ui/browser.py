"""Debian's Chromium without a screen, driven over its DevTools protocol; installed where it is missing, by root."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from bench import debian
from tests.waiting import wait_until

START_S = 60
ANSWER_S = 60
SEEN_S = 60
"""On a machine that is busy."""
INTERFACES_CHANGED = "net::ERR_NETWORK_CHANGED"
"""What the browser asks is cut, also over loopback, when the machine gets an interface: other tests give it some."""
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}


class ChromiumMissing(Exception):
    """There is no Chromium, and it could not be installed."""


def require() -> str:
    """The path of the program."""
    debian.install(["chromium"], lambda: shutil.which("chromium") is not None)
    found = shutil.which("chromium")
    if found:
        return found
    raise ChromiumMissing("the tests of the dashboard need a browser: install the package chromium")


class Page:
    """One tab. Everything it complained about is in `complaints`: errors of scripts, the console, what did not load."""

    def __init__(self, run: Callable[[Any], Any], socket: aiohttp.ClientWebSocketResponse) -> None:
        self._run, self._socket, self._number = run, socket, 0
        self.complaints: list[str] = []
        self._sent: list[dict[str, str]] = []
        self.addresses: set[str] = set()
        """Of all that was asked for while the domain Network was enabled."""

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._run(self._command(method, parameters))

    async def _command(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(ANSWER_S):
            while True:
                message = json.loads((await self._socket.receive()).data)
                if message.get("id") == self._number:
                    if "error" in message:
                        raise AssertionError(f"{method}: {message['error']}")
                    result: dict[str, Any] = message["result"]
                    return result
                self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(" ".join(str(each.get("value", each)) for each in told["args"]))
            case "Network.requestWillBeSent":
                self._sent.append(told["request"]["headers"])
                self.addresses.add(told["request"]["url"])
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                if INTERFACES_CHANGED not in told["entry"]["text"]:
                    self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    # --- looking --------------------------------------------------------------------------------------------------

    def value(self, expression: str) -> Any:
        """Of JavaScript, awaited if it is a promise."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        found = self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return str(found)

    def wait_for(self, expression: str, what: str, timeout_s: float = SEEN_S) -> Any:
        def seen() -> Any:
            with contextlib.suppress(AssertionError):
                return self.value(expression)
            return None

        try:
            return wait_until(seen, timeout_s, what, poll_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\ncomplaints: {self.complaints}\n{self.text('body')[:3000]}") from None

    def wait_for_text(self, selector: str, text: str, timeout_s: float = SEEN_S) -> None:
        inner = f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})"
        self.wait_for(inner, f"{text!r} in {selector}", timeout_s)

    def requests(self, meanwhile: Callable[[], None]) -> list[dict[str, str]]:
        """The headers of what is sent until `meanwhile` is done and there was something."""
        self._sent.clear()
        self.command("Network.enable")
        meanwhile()
        wait_until(lambda: self.value("1") and self._sent, ANSWER_S, "requests", poll_s=0.1)
        self.command("Network.disable")
        return list(self._sent)

    # --- doing ----------------------------------------------------------------------------------------------------

    def go(self, address: str) -> None:
        """A new document; `view` is for another view of the same."""
        self.command("Page.navigate", url=address)
        self.wait_for(f"document.readyState === 'complete' && location.href === {json.dumps(address)}", address)

    def view(self, fragment: str) -> None:
        """When this returns, the view before is gone."""
        wanted = json.dumps(fragment)
        self.value(
            f"location.hash === {wanted} || new Promise((seen) => {{ "
            f"addEventListener('hashchange', () => seen(true), {{ once: true }}); location.hash = {wanted}; }})"
        )

    def click(self, selector: str) -> None:
        spot = self.wait_for(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null; "
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()",
            selector,
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)

    def press(self, key: str, *, shift: bool = False) -> None:
        told = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        typed = {"text": "\r"} if key == "Enter" else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", **told, **typed)
        self.command("Input.dispatchKeyEvent", type="keyUp", **told)

    def type(self, text: str) -> None:
        self.command("Input.insertText", text=text)

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.command("Emulation.setEmulatedMedia", features=features)

    def photograph(self, path: Path, *, whole: bool = True) -> None:
        """The page from its top to its end, or what is seen of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        more = {}
        if whole:
            size = self.command("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            more = {"clip": clip, "captureBeyondViewport": True}
        picture = self.command("Page.captureScreenshot", format="png", **more)
        path.write_bytes(base64.b64decode(picture["data"]))


@contextlib.contextmanager
def browsing() -> Iterator[Page]:
    """A tab of a browser of its own."""
    program = require()
    directory = Path(tempfile.mkdtemp(prefix="hf-chromium-", dir="/tmp"))
    options = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--mute-audio",
        "--no-proxy-server", "--remote-debugging-port=0", f"--user-data-dir={directory}", "about:blank",
    ]  # fmt: skip
    with open(directory / "log", "wb") as log:
        chromium = subprocess.Popen([program, *options], stdout=log, stderr=log, start_new_session=True)
    try:
        with asyncio.Runner() as runner:
            yield from _attached(runner, directory)
    finally:
        chromium.terminate()
        try:
            chromium.wait(timeout=90)
        except subprocess.TimeoutExpired:
            chromium.kill()
            chromium.wait()
        # Its own processes write to the profile for a moment longer.
        wait_until(lambda: _removed(directory), 90, f"{directory} to be left alone")


def _removed(directory: Path) -> bool:
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def _attached(runner: asyncio.Runner, directory: Path) -> Iterator[Page]:
    told = directory / "DevToolsActivePort"
    wait_until(
        lambda: told.exists() and told.read_text().count("\n") >= 1,
        START_S,
        f"Chromium; its log: {(directory / 'log').read_text()[-2000:]}",
    )
    port = told.read_text().split()[0]

    async def attach() -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
        session = aiohttp.ClientSession()
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            tabs = await answer.json(content_type=None)
        where = next(each["webSocketDebuggerUrl"] for each in tabs if each["type"] == "page")
        return session, await session.ws_connect(where, max_msg_size=0)

    session, socket = runner.run(attach())
    page = Page(runner.run, socket)
    for domain in ("Runtime", "Log", "Page"):
        page.command(f"{domain}.enable")
    try:
        yield page
    finally:
        runner.run(socket.close())
        runner.run(session.close())
