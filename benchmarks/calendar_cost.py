"""Benchmark of commands and of the window, with a calendar that contains 100,000 bookings of 256 GPUs.

Each command is compared with the same command on a calendar with few bookings. The window shows a week while another
process changes the calendar. The commands and the window are measured with SQLite and with a separate PostgreSQL
server.

Promises: every command takes at most 1.2 times as long as on the small calendar; and a change by another process costs
the window at most 20 ms of CPU time until it is drawn, and at most 100 kB of written data. As on a user's computer,
each command runs in a separate process, and begins with a local copy of the calendar that lacks most bookings. Commands
that list all bookings, or usage over a long time, are not measured, because their output itself grows with the
calendar.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

from tests.waiting import wait_until

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QCoreApplication, QEventLoop
from tests.core.booking.cluster import Cluster, cluster
from tests.lab import Desktop, Lab

from benchmarks.bookings import APART, BOOKINGS, LONG, SLOTS, fill
from benchmarks.harness import Promise, alternate, ratio, record, show, timed
from benchmarks.window.application import themed_application
from benchmarks.window.bookings_page import SIZE
from torchyard_core.booking.model import Draft, Use
from torchyard_core.booking.store import BookingStore, open_store, setup_team
from torchyard_core.booking.sync.local_copy import LocalCopy
from torchyard_core.home import Home
from torchyard_gui.bookings.page import BookingsPage
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.bridge.fleet_model import FleetModel

ROUNDS = 8
CHANGES = 20
TIMES, CPU_MS, WRITTEN_KB = 1.2, 20.0, 100.0
FEW, MANY = "a few bookings", f"{BOOKINGS:,} bookings"
DAY = timedelta(days=1)
PERSON = "kim"
TOPOLOGY = """
version: 1
name: short
pools:
  - {name: chief, role: chief, replicas: 1}
program: {launcher: command, command: [python3, short.py]}
"""
CHANGING = """
import sys
from datetime import timedelta
from torchyard_core.booking.store import open_store
store = open_store(sys.argv[1], sys.argv[2])
now = store.now()
ids = [one.id for one in store.bookings(now, now + timedelta(days=3))]
print("ready", flush=True)
for number, line in enumerate(sys.stdin):
    store.change(ids[number % len(ids)], title=f"title {number}")
    print("changed", flush=True)
"""


@contextmanager
def calendars(folder: Path, server: Cluster) -> Iterator[dict[tuple[str, str], tuple[str, str]]]:
    """Creates the calendars.

    Yields:
        The URLs of each calendar for the user and for an admin, by kind of database and size.
    """
    with server.connect("owner", "postgres") as connection:
        connection.execute("CREATE DATABASE few")
    setup_team(server.url("owner", "few"), [PERSON])
    file = f"sqlite:///{folder}/"
    found = {
        ("SQLite", FEW): (f"{file}few.sqlite3", f"{file}few.sqlite3"),
        ("SQLite", MANY): (f"{file}many.sqlite3", f"{file}many.sqlite3"),
        ("PostgreSQL", FEW): (server.url(PERSON, "few"), server.url("owner", "few")),
        ("PostgreSQL", MANY): (server.url(PERSON, "team"), server.url("owner", "team")),
    }
    now = datetime.now(UTC).replace(microsecond=0)
    for (_, size), (_, url) in found.items():
        with closing(open_store(url, "team")) as store:
            if size is MANY:
                fill(store, now)
            store.remember_slots(SLOTS)
            record_week(store, now)
    yield found


def record_week(store: BookingStore, now: datetime) -> None:
    """Records that each GPU was used five times during the last day."""
    begins = [now - DAY + number * timedelta(hours=4.8) for number in range(5)]
    store.record_use(Use(slot.id, slot.host, "lee", begin, begin + LONG) for slot in SLOTS for begin in begins)


class Commands:
    """A user's desktop with one calendar, on which commands are measured. Each command succeeds and has few results."""

    def __init__(self, folder: Path, lab: Lab, url: str):
        self.desktop = Desktop(folder, lab)
        self.desktop.home.joinpath("settings.yaml").write_text(f"bookings_url: {url}\nperson: {PERSON}\nzone: UTC\n")
        self.topology = folder / "program" / "topology.yaml"
        self.topology.parent.mkdir()
        self.topology.write_text(TOPOLOGY)
        self.topology.with_name("short.py").write_text("print('done')\n")
        self.run("hosts", "check")
        self.slots = {slot.name: slot for slot in SLOTS}
        self.gaps = count(2)
        with closing(open_store(url, PERSON)) as store:
            self.began = store.now() + DAY
            bookings = store.bookings(self.began - DAY, self.began + LONG)
            if bookings:
                self.began = min(one.start for one in bookings)
            start = self.began + LONG + APART / 4
            self.own = store.book(Draft("own", (SLOTS[0].id,), start, start + APART / 3, "UTC")).id
        self.titles = count()
        self.made: list[str] = []

    def run(self, *words: str | Path) -> str:
        done = self.desktop.torchyard(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def book(self) -> None:
        start = self.began + next(self.gaps) * (LONG + APART) - APART * 3 / 4
        words = f"{start:%Y-%m-%d %H:%M}", "--to", f"{start + APART / 3:%Y-%m-%d %H:%M}", "--zone", "UTC"
        self.made.append(self.run("book", SLOTS[0].name, "--from", *words, "--json"))

    def arms(self) -> dict[str, Callable[[], object]]:
        return {
            "status": lambda: self.run("status"),
            "hosts check": lambda: self.run("hosts", "check"),
            "run": lambda: self.run("run", self.topology),
            "book": self.book,
            "bookings list --mine": lambda: self.run("bookings", "list", "--mine", "--to", "+3d"),
            "bookings show": lambda: self.run("bookings", "show", self.own),
            "bookings change": lambda: self.run("bookings", "change", self.own, "--title", f"own {next(self.titles)}"),
            "bookings find": lambda: self.run("bookings", "find", "4", "--for", "20m"),
        }


def commands(kind: str, folder: Path, lab: Lab, urls: dict[str, str]) -> tuple[dict[str, list[float]], list[Promise]]:
    of = {size: Commands(folder / f"{kind} {size}".replace(" ", "-"), lab, url) for size, url in urls.items()}
    found: dict[str, list[float]] = {}
    promises = []
    for name in of[FEW].arms():
        arms = {f"{kind}, {name}: {size}": partial(timed, one.arms()[name]) for size, one in of.items()}
        found |= alternate(arms, ROUNDS)
        times = ratio(found, f"{kind}, {name}: {MANY}", f"{kind}, {name}: {FEW}")
        promises.append(Promise(f"{kind}: `{name}` with {MANY} over one with few", times, TIMES))
    for one in of.values():
        one.desktop.close()
    return found, promises


def window(kind: str, folder: Path, url: str, admin: str) -> tuple[dict[str, list[float]], list[Promise]]:
    """Measures the cost of a change by another process for a window that shows the Bookings page.

    Returns:
        The CPU time of this process in milliseconds until the change is drawn, the kB that the process wrote, and the
        promises.
    """
    home = Home(folder / f"window-{kind}")
    home.path.mkdir()
    home.settings_file.write_text(f"bookings_url: {url}\nperson: {PERSON}\nzone: UTC\n")
    fleet = FleetModel(home, home.fleet_file)
    model = BookingsModel(home, fleet)
    changed = QEventLoop()
    model.changed.connect(changed.quit)
    now = datetime.now(UTC)
    page = BookingsPage(model)
    page.resize(*SIZE)
    page.show()
    copy = LocalCopy(home.bookings_seen, url)

    def process_events(seconds: float) -> None:
        QCoreApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents, 20)
        time.sleep(seconds)

    def wait(condition: Callable[[], bool]) -> None:
        wait_until(condition, 180.0, pause=process_events)

    def is_copied() -> bool:
        kept = copy.read(now, now)
        return kept is not None and kept.known.end > now + 59 * DAY and kept.known.start < now - 13 * DAY

    wait(lambda: model.seen.is_live and model._watch is not None and model._watch.is_watching.is_set())
    wait(is_copied)
    # Starting to watch the calendar causes delayed work, which must not be measured.
    time.sleep(2)
    wait(lambda: model._loading is None or model._loading.is_finished)
    begun = time.monotonic() + 3
    wait(lambda: time.monotonic() > begun)
    assert model.seen.bookings, "the window shows nothing"
    other = subprocess.Popen(
        [sys.executable, "-c", CHANGING, admin, "team"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    found: dict[str, list[float]] = {"ms": [], "kB": []}
    try:
        assert other.stdout.readline() == "ready\n"
        for _ in range(CHANGES):
            cpu, written = time.process_time(), bytes_written()
            other.stdin.write("\n")
            other.stdin.flush()
            other.stdout.readline()
            changed.exec()
            QCoreApplication.processEvents()
            found["ms"].append((time.process_time() - cpu) * 1000)
            found["kB"].append((bytes_written() - written) / 1000)
    finally:
        other.stdin.close()
        other.wait(30)
        page.hide()
        page.close_page()
        model.close()
        fleet.close()
    return {f"{kind}: a change by others, {unit}": values for unit, values in found.items()}, [
        Promise(f"{kind}: CPU of a change by others", sum(found["ms"]) / CHANGES, CPU_MS, "ms"),
        Promise(f"{kind}: written for a change by others", sum(found["kB"]) / CHANGES, WRITTEN_KB, "kB"),
    ]


def bytes_written() -> int:
    """Returns the number of bytes that this process wrote to files and sockets by system calls."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def main() -> list[Promise]:
    """Measures the window first, and then the commands."""
    application = themed_application()
    found: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    promises: list[Promise] = []
    with (
        tempfile.TemporaryDirectory(prefix="torchyard-bench-") as name,
        cluster(fsync=True) as server,
        calendars(Path(name), server) as places,
    ):
        folder = Path(name)
        for kind in ("SQLite", "PostgreSQL"):
            values, kept = window(kind, folder, *places[kind, MANY])
            costs |= values
            promises += kept
        with Lab(1, directory=folder / "lab") as lab:
            for kind in ("SQLite", "PostgreSQL"):
                urls = {size: places[kind, size][0] for size in (FEW, MANY)}
                seconds, kept = commands(kind, folder, lab, urls)
                found |= seconds
                promises += kept
    application.processEvents()
    show("Commands with a large calendar", found)
    show("A window that shows a week of it", costs, "")
    record("calendar_cost", found | costs, promises)
    return promises


if __name__ == "__main__":
    main()
