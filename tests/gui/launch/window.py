"""The launch panel and the Runs page, with lab hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Desktop
from tests.lab.hosts.host import LabHost
from torchyard_core.home import Home
from torchyard_core.topology.file import TopologyFile
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.runs_model import RunsModel
from torchyard_gui.launch.panel import LaunchPanel
from torchyard_gui.runs.page import RunsPage

WITHIN_MS = 60_000


class Window:
    """The models and widgets of one window."""

    def __init__(self, qtbot: Any, desktop: Desktop):
        home = Home(desktop.home)
        self.qtbot = qtbot
        self.fleet = FleetModel(home, desktop.fleet_file)
        self.runs = RunsModel(home, self.fleet)
        self.panel = LaunchPanel(self.fleet)
        self.page = RunsPage(self.runs)
        self.panel.run_started.connect(self.page.show_run)
        self.started: list[str] = []
        self.panel.run_started.connect(self.started.append)
        qtbot.addWidget(self.panel)
        qtbot.addWidget(self.page)
        self.page.resize(1200, 800)
        self.page.show()
        qtbot.waitExposed(self.page)

    def launch(self, source: TopologyFile) -> None:
        self.panel.launch(source)

    def wait_until(self, condition: Callable[[], object], what: str = "") -> None:
        try:
            self.qtbot.waitUntil(lambda: bool(condition()), timeout=WITHIN_MS)
        except self.qtbot.TimeoutError:
            pytest.fail(f"waited in vain; {self.said()}")

    def said(self) -> str:
        """Returns the displayed run and the messages of the panel and page, for reports of failed tests."""
        view, feed = self.page.run_view, self.page.feed
        run = "no run" if feed is None else f"{feed.run.run_id} {feed.picture.state} {feed.picture.reason}"
        notices = (view.notice.text, view.work.text, self.panel.notice.text)
        return f"shown is {run}; notices: {notices}; red: {red_lines(self.panel)}"

    def wait_started(self) -> None:
        self.wait_until(lambda: self.started or not self.panel.is_launching)
        assert self.started, [row.texts for row in self.panel._rows.values()]

    def wait_running(self) -> RunFeed:
        """Waits until the page shows that a run is running; returns the run's feed."""
        self.wait_until(lambda: self.page.feed is not None and self.page.feed.picture.state == "running")
        assert self.page.feed is not None
        return self.page.feed

    def wait_over(self) -> RunFeed:
        self.wait_until(lambda: self.page.feed is not None and self.page.feed.picture.is_over)
        assert self.page.feed is not None
        return self.page.feed

    def stop_run(self) -> None:
        """Stops the displayed run by force, and waits until it has ended."""
        assert self.page.feed is not None
        self.runs.stop(self.page.feed.run, lambda error: pytest.fail(error.sentence()), force=True)
        self.wait_over()

    def close(self) -> None:
        self.panel.close_launch()
        self.page.close_feeds()
        self.runs.close()
        self.fleet.close()


@pytest.fixture
def window(qtbot: Any, desktop: Desktop) -> Iterator[Window]:
    made = Window(qtbot, desktop)
    yield made
    made.close()


def runs_left(host: LabHost) -> list[Path]:
    """Returns the run folders that are left on a host."""
    return list((host.home / ".torchyard" / "hosts").glob("*/runs/*"))


def red_lines(panel: LaunchPanel) -> list[str]:
    return [text for row in panel.checklist.rows for text in panel.row(row).texts if panel.row(row).row.failed]
