"""The clients as processes: started, killed, stopped in the middle and resumed, settled, and ended.

Clean-up and task workers are killed and replaced all the time. The sleeper stops itself while it holds a lock, and is
resumed when another holder has been at what the lock protects.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.chaos import records
from tests.chaos.containers import REPOSITORY, SETTLE_S, ChaosError
from tests.chaos.records import Record, Recorder
from tests.chaos.store import Store
from tests.waiting import wait_until

STEADY = ("watcher", "keeper", "owner", "feeder", "writer", "writer", "bookkeeper", "forsaker", "line", "undertaker")
"""In one process, which is left alone."""
ASKING = ("historian", "historian", "historian", "knocker", "copier")
"""In another one."""
SETTLING = ("keeper", "owner", "feeder", "bookkeeper", "forsaker", "undertaker")
"""Those say when they begin nothing new; writers end."""
TRUANT = "truant"
"""A holder of copies, which is killed and comes back when something of which it has copies has died."""
KILLED = ("cleaner", "cleaner", "doer", "doer")
KILL_EVERY_S = 12.0
LOOK_S = 0.1
TRUANT_TURNS = 20
END_S = 120


class Crew:
    def __init__(self, directory: Path, endpoints: list[str]) -> None:
        self.directory = directory
        self._endpoints = ",".join(endpoints)
        self.store = Store.create(directory / "store.db")
        self._notes = Recorder(directory, "crew")
        self._numbers = itertools.count()
        self._lasting: dict[str, subprocess.Popen[bytes]] = {}
        self._mortal: dict[str, subprocess.Popen[bytes]] = {}
        self._mutex = threading.Lock()
        """Over who is there, which the disturbing thread changes."""
        self._over = threading.Event()
        self._trouble: list[str] = []
        self._disturbing = threading.Thread(target=self._disturb, daemon=True)
        self._rng = random.Random()
        self._away_with: dict[str, str] | None = None
        """What the truant had copies of when it was killed."""
        self.killed = self.resumed = 0

    def start(self) -> None:
        self._lasting["steady"] = self._hire("steady", *STEADY)
        self._lasting["asking"] = self._hire("asking", *ASKING)
        self._lasting["sleeper"] = self._hire("sleeper", "sleeper")
        self._lasting[TRUANT] = self._hire(TRUANT, "copier")
        for kind in KILLED:
            self._hire_mortal(kind)
        self._disturbing.start()

    def _hire(self, name: str, *kinds: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.chaos.clients", self._endpoints, str(self.directory), name, *kinds]
        with (self.directory / f"{name}.err").open("wb") as errors:
            return subprocess.Popen(command, cwd=REPOSITORY, stderr=errors, start_new_session=True)

    def _hire_mortal(self, kind: str) -> None:
        name = f"{kind}{next(self._numbers)}"
        self._mortal[name] = self._hire(name, kind)

    # --- what is done to them ---------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        try:
            turns = max(1, round(KILL_EVERY_S / LOOK_S))
            for turn in itertools.count(1):
                if self._over.wait(LOOK_S):
                    return
                self._resume_overtaken()
                if turn % TRUANT_TURNS == 0:
                    self._send_truant()
                if turn % turns == 0:
                    self._kill_one()
        except (ChaosError, OSError, ValueError, sqlite3.Error) as error:
            self._trouble.append(f"the clients could not be disturbed: {type(error).__name__}: {error}")

    def _kill_one(self) -> None:
        with self._mutex:
            name = self._rng.choice(list(self._mortal))
            victim = self._mortal[name]
            self._expect_alive(name, victim)
            victim.kill()
            victim.wait()
            del self._mortal[name]
            self._hire_mortal(name.rstrip("0123456789"))
        self.killed += 1
        self._notes.note("client_killed", name=name)

    def _send_truant(self) -> None:
        """Away once it serves something; back when the tombstone of something that it has waits for it."""
        with self._mutex:
            if self._away_with is None:
                served = records.of(records.read_one(self.directory, f"{TRUANT}-copier-0"), "serves", "holder_starts")
                if served and served[-1]["what"] == "serves" and served[-1]["copies"]:
                    self._expect_alive(TRUANT, self._lasting[TRUANT])
                    self._lasting[TRUANT].kill()
                    self._lasting.pop(TRUANT).wait()
                    self._away_with = served[-1]["copies"]
            else:
                events = records.of(records.read_one(self.directory, "steady-watcher-0"), "event")
                died = {(each["key"], each["incarnation"]) for each in events if each["kind"] == "tombstone_created"}
                if died & set(self._away_with.items()):
                    self._call_truant_back()

    def _call_truant_back(self) -> None:
        self._away_with = None
        self._lasting[TRUANT] = self._hire(TRUANT, "copier")

    def _resume_overtaken(self) -> None:
        sleeper = self._lasting["sleeper"]
        if not _is_stopped(sleeper.pid) or (asleep := self._asleep()) is None:
            return
        newest = self.store.newest(asleep["key"])
        if newest > asleep["token"]:
            self._notes.note("overtaken", key=asleep["key"], token=asleep["token"], by=newest)
            self.resumed += 1
            os.kill(sleeper.pid, signal.SIGCONT)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not _is_stopped(sleeper.pid), 5, "the sleeper to go on", 0.01)

    def _asleep(self) -> Record | None:
        noted = records.of(records.read_one(self.directory, "sleeper-sleeper-0"), "asleep", "awake")
        return noted[-1] if noted and noted[-1]["what"] == "asleep" else None

    # --- how they are -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises what went wrong with the clients themselves."""
        with self._mutex:
            for name, process in [*self._lasting.items(), *self._mortal.items()]:
                self._expect_alive(name, process)
        if self._trouble:
            raise ChaosError(self._trouble[0])

    def _expect_alive(self, name: str, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            said = (self.directory / f"{name}.err").read_text(errors="replace")[-2000:]
            raise ChaosError(f"the client {name} ended with {process.returncode}:\n{said}")

    def wait_for_progress(self) -> None:
        """Everything that clients do is done again from now on: locks, tasks put in and done, clean-ups."""
        before = self._done()

        def further() -> bool:
            self.check()
            now = self._done()
            return all(now[kind] > before[kind] for kind in before)

        wait_until(further, SETTLE_S, f"the clients to get on with all of {', '.join(before)}", 0.1)

    def _done(self) -> dict[str, int]:
        return {table: self.store.count(table) for table in ("writes", "effects", "cleaned")}

    def cleaned(self) -> set[str]:
        return {row[0] for row in self.store.rows("cleaned")}

    # --- the end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Nothing new is begun; then until all that was put in is done, and all that was let go is cleaned up."""
        self._over.set()
        self._disturbing.join()
        if self._away_with is not None:
            self._call_truant_back()
        self._end("sleeper")
        for name in ("steady", "asking"):
            self._lasting[name].send_signal(signal.SIGUSR1)

        def settled() -> bool:
            self.check()
            return len(records.of(self.read(), "settled")) == len(SETTLING)

        wait_until(settled, SETTLE_S, "the clients to begin nothing new", 0.2)

    def finish(self) -> None:
        """The watcher last: it hears how the others end."""
        for name in [*self._mortal, *(name for name in self._lasting if name != "steady"), "steady"]:
            self._end(name)

    def _end(self, name: str) -> None:
        process = self._mortal[name] if name in self._mortal else self._lasting[name]
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise ChaosError(f"the client {name} did not end within {END_S} s of SIGTERM") from None
        if process.returncode:
            self._expect_alive(name, process)
        (self._mortal if name in self._mortal else self._lasting).pop(name)

    def close(self) -> None:
        self._over.set()
        if self._disturbing.is_alive():
            self._disturbing.join()
        for process in [*self._lasting.values(), *self._mortal.values()]:
            process.kill()
            process.wait()
        self._notes.close()
        self.store.close()

    def read(self) -> list[Record]:
        return records.read(self.directory)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


@contextlib.contextmanager
def working(directory: Path, endpoints: list[str]) -> Iterator[Crew]:
    crew = Crew(directory, endpoints)
    try:
        crew.start()
        yield crew
    finally:
        crew.close()
