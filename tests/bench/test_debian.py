"""Packages are installed by one `apt-get` after the other, whoever finds at the same time that some are missing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench import debian


def test_whoever_comes_second_waits_and_finds_it_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    typed: list[str] = []
    running, together = threading.Lock(), threading.Barrier(3)

    def apt_get(*words: str) -> None:
        assert running.acquire(blocking=False), "two at a time: the second would be refused"
        typed.append(words[0])
        running.release()

    def there() -> bool:
        return typed.count("install") == 2

    def want(_: int) -> bool:
        together.wait()
        return debian.install(["one"], there)

    monkeypatch.setattr(debian, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(debian, "_apt_get", apt_get)
    monkeypatch.setattr(debian.os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian.shutil, "which", lambda name: f"/usr/bin/{name}")
    with ThreadPoolExecutor(3) as several:
        assert list(several.map(want, range(3))) == [True] * 3
    assert typed == ["install", "update", "install"]


def test_without_root_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian.os, "geteuid", lambda: 1)
    monkeypatch.setattr(debian, "_apt_get", lambda *words: pytest.fail("it was"))
    assert not debian.install(["one"], lambda: False)
    assert debian.install(["one"], lambda: True)
