"""Benchmark of the Runs page while it follows a run of 200 replicas on 32 hosts, in each of its views, at 1 Hz.

Promise: the live page uses at most 10% of a core in every view. The plots show 16 curves that span an hour. The
measurement includes all of the page's work, from the arrival of a host's sample on its link to the last pixel.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.waiting import wait_until

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
from PySide6.QtCore import QEventLoop, QTimer
from tests.core.examples import host
from tests.gui.runs.fake_hosts import BEGAN, Acting, close, runs_model

from benchmarks.harness import Promise, record, show
from benchmarks.window.application import themed_application
from torchyard_core.home import Home
from torchyard_core.replica_metrics import CAPACITY, FIELDS
from torchyard_gui.runs.page import RunsPage

SIZE = (1280, 800)
HOSTS, REPLICAS = 32, 200
VIEWS = ("canvas", "table", "plots")
LIVE_S = 10
"""Duration of a measurement in seconds. Every host sends one sample per second."""
ROUNDS = 3
LIMIT = 10.0


def run_of_many() -> Acting:
    hosts = tuple(host(f"n{number:02}", 8) for number in range(HOSTS))
    return Acting(
        hosts,
        "{name: chief, role: chief, replicas: 1, gpus: 1}",
        f"{{name: workers, role: worker, replicas: {REPLICAS - 1}, gpus: 1, placement: spread}}",
    )


def spin(seconds: float) -> None:
    """Runs the event loop for some seconds. While idle, the loop uses no CPU time."""
    loop = QEventLoop()
    QTimer.singleShot(round(seconds * 1000), loop.quit)
    loop.exec()


def fill(page: RunsPage) -> None:
    """Fills the plots with the samples of one hour, which is the maximum."""
    assert page.feed is not None
    chance = np.random.default_rng(1)
    for track in page.feed.picture.tracks.values():
        values = chance.uniform(50, 100, (CAPACITY, len(FIELDS)))
        for second, row in enumerate(values):
            track.ring.append(BEGAN - CAPACITY + second, dict(zip(FIELDS, map(float, row), strict=True)))


def share(page: RunsPage, run: Acting, view: str, first: int) -> float:
    """Returns the percentage of a core that the page uses with a view."""
    page.bar.views.set_value(view)
    # Samples are created in advance, because creating them is the hosts' work, which is not measured.
    samples = [
        [(name, run.sample(name, float(first + second), loss=1.0)) for name in run.plan.hosts]
        for second in range(LIVE_S)
    ]
    spin(1.0)
    begin, cpu = time.perf_counter(), time.process_time()
    for second, told in enumerate(samples, 1):
        for name, sample in told:
            run.links[name].say("telemetry", sample)
        spin(max(0.0, begin + second - time.perf_counter()))
    return (time.process_time() - cpu) / (time.perf_counter() - begin) * 100


def main() -> list[Promise]:
    themed_application()
    found: dict[str, list[float]] = {view: [] for view in VIEWS}
    with tempfile.TemporaryDirectory(prefix="torchyard-bench-") as folder:
        home, run = Home(Path(folder) / "home"), run_of_many()
        run.note(home)
        run.start()
        page = RunsPage(runs_model(home, run))
        page.resize(*SIZE)
        page.show()
        wait_until(lambda: page.feed is not None and page.feed.was_heard, pause=spin)
        wait_until(lambda: all(link.hears("telemetry") for link in run.links.values()), pause=spin)
        fill(page)
        assert page.feed is not None
        page.run_view.plots.set_names(list(page.feed.picture.tracks)[:16])
        at = 10
        for _ in range(ROUNDS):
            for view in VIEWS:
                found[view].append(share(page, run, view, at))
                at += LIVE_S
        page.close_feeds()
        close(page.model)
        page.close()
    show("The live Runs page at 1 Hz", found, "% of a core")
    promises = [
        Promise(f"live Runs page at 1 Hz, {view}, CPU", statistics.median(values), LIMIT, "% of a core")
        for view, values in found.items()
    ]
    record("runs_page", {f"{view}, % of a core": values for view, values in found.items()}, promises)
    return promises


if __name__ == "__main__":
    main()
