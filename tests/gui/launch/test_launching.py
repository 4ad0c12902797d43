"""Launching from the panel, on real hosts: live on the Runs page, taken back, refused, trusted, failed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.cli.runs import HOSTS, sleeping
from tests.end_to_end.running import DIGITS, programs_on, topology
from tests.lab import Desktop, Lab
from tests.lab.host import LabHost
from torchyard_core.home import Home
from torchyard_core.topology.file import TopologyFile, read_topology
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.runs_model import RunsModel
from torchyard_gui.launch.panel import LaunchPanel
from torchyard_gui.runs.page import RunsPage

pytestmark = [pytest.mark.lab, pytest.mark.train]
WITHIN_MS = 60_000

REPORTING = """
import os, time
import torchyard_roles as ty
cluster = ty.join()
for step in range(10_000):
    cluster.report(step=step + 1, loss=1 / (step + 1))
    if step % 10 == 0:
        print(os.environ["TORCHYARD_REPLICA"], "step", step, flush=True)
    time.sleep(0.05)
"""


class Window:
    """The models and widgets that a window joins."""

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

    def wait(self, condition: Callable[[], object], what: str = "") -> None:
        try:
            self.qtbot.waitUntil(lambda: bool(condition()), timeout=WITHIN_MS)
        except self.qtbot.TimeoutError:
            pytest.fail(f"waited in vain; {self.said()}")

    def said(self) -> str:
        """What the panel and the page tell whoever waits."""
        view, feed = self.page.run_view, self.page.feed
        run = "no run" if feed is None else f"{feed.run.run_id} {feed.picture.state} {feed.picture.reason}"
        notices = (view.notice.text, view.work.text, self.panel.notice.text)
        return f"shown is {run}; notices: {notices}; red: {red_lines(self.panel)}"

    def wait_started(self) -> None:
        self.wait(lambda: self.started or not self.panel.is_launching)
        assert self.started, [row.texts for row in self.panel._rows.values()]

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


def points_of(page: RunsPage, kind: str, replica: str) -> int:
    """How many samples a curve draws."""
    times, _ = page.run_view.plots.curve(kind, replica).getData()
    return 0 if times is None else len(times)


def runs_left(host: LabHost) -> list[Path]:
    """Folders of runs on a host."""
    return list((host.home / ".torchyard" / "hosts").glob("*/runs/*"))


def red_lines(panel: LaunchPanel) -> list[str]:
    return [text for row in panel.checklist.rows for text in panel.row(row).texts if panel.row(row).row.failed]


def test_a_run_on_three_hosts_is_live_on_the_page_until_it_is_stopped(
    window: Window, lab3: Lab, tmp_path: Path
) -> None:
    file = topology(
        tmp_path / "reporting",
        """
        strategy: {kind: none}
        pools:
          - {name: workers, role: worker, replicas: 3, placement: spread}
        program: {script: report.py, stop_grace_s: 2}
        """,
        report_py=REPORTING,
    )

    window.launch(read_topology(file))
    window.wait_started()

    assert not window.panel.isVisible()
    assert {row.state for row in window.panel.checklist.rows.values()} <= {"passed", "warning"}
    page = window.page
    window.wait(lambda: page.feed is not None and page.feed.run.run_id == window.started[0])
    assert page.feed is not None
    picture = page.feed.picture
    window.wait(lambda: picture.state == "running")
    # Samples of all three hosts come into the rings that the charts draw.
    window.wait(lambda: len(picture.tracks) == 3)
    window.wait(lambda: all(len(track.ring) >= 3 for track in picture.tracks.values()))
    assert {track.host for track in picture.tracks.values()} == set(HOSTS)
    window.wait(lambda: all((track.ring.last("step") or 0) > 5 for track in picture.tracks.values()))
    page.run_view.choose(["worker-0", "worker-2"])
    page.bar.views.set_value("plots")
    window.wait(lambda: points_of(page, "loss", "worker-2") >= 3)
    # Each chip of the canvas stands for a running replica.
    assert page.run_view.scene.names == ["worker-0", "worker-1", "worker-2"]
    assert all(look.state == "running" for look in page.feed.looks.values())
    # Its log goes on while one looks.
    page.run_view.log.show_replica("worker-2")
    lines = page.run_view.log.view
    window.wait(lambda: any(line.startswith("worker-2 step ") for line in lines.shown_lines))
    before = lines.shown_lines[-1]
    window.wait(lambda: lines.shown_lines[-1] != before)

    page.actions_.stop.trigger()
    dialog = page._stop_dialog
    assert dialog is not None
    assert not picture.is_over
    QTest.mouseClick(dialog.stop, Qt.MouseButton.LeftButton)
    window.wait(lambda: picture.state == "stopped")

    window.wait(lambda: programs_on(lab3) == [])
    assert "stopped by" in picture.reason
    assert not page.actions_.stop.isEnabled()
    window.wait(lambda: window.runs.history.load(window.started[0]).state == "stopped")  # type: ignore[union-attr]


def test_the_example_trains_to_its_end_and_its_files_come_home(window: Window, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(DIGITS, folder)

    window.launch(read_topology(folder / "three-hosts.yaml"))
    window.wait_started()
    page = window.page
    window.wait(lambda: page.feed is not None and page.feed.picture.is_over)

    assert page.feed is not None
    assert page.feed.picture.state == "succeeded"
    assert not page.run_view.notice.isVisible()
    loss = page.feed.picture.totals.last("loss")
    assert loss is not None  # 0.0 too: the last batch may be learnt to the last digit
    assert loss < 2
    page.fetch(page.feed.run, tmp_path / "home-again")
    window.wait(lambda: "fetched to" in page.run_view.work.text)
    logs = list((tmp_path / "home-again").rglob("*.log"))
    assert len(logs) >= 3


def test_an_ended_run_is_restarted_from_its_page_and_the_new_one_is_shown(window: Window, tmp_path: Path) -> None:
    file = topology(
        tmp_path / "short",
        """
        pools:
          - {name: workers, role: worker, replicas: 2, placement: spread}
        program: {script: short.py}
        """,
        short_py="print('done')\n",
    )
    window.launch(read_topology(file))
    window.wait_started()
    page = window.page
    window.wait(lambda: page.feed is not None and page.feed.picture.is_over)
    first = window.started[0]
    assert page.actions_.restart.isEnabled()
    assert not page.actions_.stop.isEnabled()

    page.actions_.restart.trigger()

    window.wait(lambda: page.feed is not None and page.feed.run.run_id != first and page.feed.picture.is_over)
    assert page.feed is not None
    assert page.feed.picture.state == "succeeded"
    noted = window.runs.history.load(page.feed.run.run_id)
    assert noted is not None
    assert noted.restarted_from == first


def test_a_script_that_fails_has_its_cause_on_the_page(window: Window, tmp_path: Path) -> None:
    file = topology(
        tmp_path / "bad",
        """
        pools:
          - {name: workers, role: worker, replicas: 2, placement: spread}
        program: {script: bad.py}
        """,
        bad_py="import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no such column')\n"
        "import time\ntime.sleep(60)\n",
    )

    window.launch(read_topology(file))
    window.wait_started()
    page = window.page
    window.wait(lambda: page.feed is not None and page.feed.picture.state == "failed")

    notice = page.run_view.notice
    assert "worker-1" in notice.text
    assert "ValueError: no such column" in notice.text
    assert page.run_view.side.needs.needs[0].title == "worker-1 failed"
    assert page.feed is not None
    assert page.feed.look_of("worker-1").cause == "ValueError"
    QTest.mouseClick(notice.buttons[0], Qt.MouseButton.LeftButton)
    window.wait(lambda: "ValueError: no such column" in page.run_view.log.view.shown_lines)


def test_an_unknown_key_offers_trust_and_then_the_launch_goes_on(
    qtbot: Any, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    desktop.use(lab3, trust=False)
    window = Window(qtbot, desktop)
    try:
        asked: list[str] = []
        window.panel.trust_requested.connect(asked.append)
        window.launch(read_topology(sleeping(tmp_path / "talk", seconds=600, hosts=["gpu-b"])))
        window.wait(lambda: not window.panel.is_launching)
        assert not window.started
        assert window.panel.checklist.unknown_keys == ["gpu-b"]
        assert "torchyard " not in " ".join(red_lines(window.panel))
        button = window.panel.notice.buttons[0]
        assert "gpu-b" in button.text()
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)
        assert asked == ["gpu-b"]

        # The person compares the fingerprint and trusts it; that is the Fleet page's.
        done: list[bool] = []
        problems: list[Any] = []
        window.fleet.ask_key(
            "gpu-b",
            lambda key: window.fleet.trust(key, lambda: done.append(True), problems.append) and None,
            problems.append,
        )
        window.wait(lambda: done or problems)
        assert not problems
        window.panel.trusted("gpu-b")
        window.wait_started()
        page = window.page
        window.wait(lambda: page.feed is not None and page.feed.picture.state == "running")
        assert page.feed is not None
        window.runs.stop(page.feed.run, problems.append, force=True)
        window.wait(lambda: page.feed is not None and page.feed.picture.is_over)
        assert not problems
    finally:
        window.close()


def test_a_host_that_is_down_is_a_red_line_and_nothing_is_left_on_the_others(
    window: Window, lab3: Lab, tmp_path: Path
) -> None:
    lab3["gpu-c"].stop_sshd()
    try:
        window.launch(read_topology(sleeping(tmp_path / "talk")))
        window.wait(lambda: not window.panel.is_launching)
    finally:
        lab3["gpu-c"].start_sshd()
    assert not window.started
    row = window.panel.row("host")
    assert row.row.state == "failed"
    assert any("gpu-c" in line for line in row.texts)
    assert sorted(host for hosts in row.row.fine.values() for host in hosts) == ["gpu-a", "gpu-b"]
    window.wait(lambda: programs_on(lab3) == [])
    assert window.panel.again.isVisible()

    QTest.mouseClick(window.panel.again, Qt.MouseButton.LeftButton)
    window.wait_started()
    page = window.page
    window.wait(lambda: page.feed is not None and page.feed.picture.state == "running")
    assert page.feed is not None
    window.runs.stop(page.feed.run, lambda error: pytest.fail(error.sentence()), force=True)
    window.wait(lambda: page.feed is not None and page.feed.picture.is_over)


@pytest.mark.parametrize("step", ["reaching", "looking", "sending", "preparing", "starting"])
def test_cancel_at_any_step_leaves_nothing(window: Window, lab3: Lab, tmp_path: Path, step: str) -> None:
    file = sleeping(tmp_path / "talk")
    (file.parent / "data.bin").write_bytes(bytes(range(256)) * 4096)
    panel = window.panel
    panel.launch(read_topology(file))
    assert panel.job is not None

    def cancel_at(name: str, done: int, total: int) -> None:
        if name == step:
            QTest.mouseClick(panel.cancel_button, Qt.MouseButton.LeftButton)

    panel.job.progressed.connect(cancel_at)
    window.wait(lambda: not panel.is_launching)

    assert not window.started
    assert "nothing of it is left" in panel.notice.text
    # A keeper that was told to give up answers first, and is gone a moment later.
    window.wait(lambda: programs_on(lab3) == [])
    window.wait(lambda: not [run for host in lab3.hosts for run in runs_left(host)])
    assert window.runs.history.records() == []


def test_the_window_follows_a_host_that_is_lost_and_back(window: Window, lab3: Lab, tmp_path: Path) -> None:
    window.launch(read_topology(sleeping(tmp_path / "talk")))
    window.wait_started()
    page = window.page
    window.wait(lambda: page.feed is not None and page.feed.picture.state == "running")
    feed = page.feed
    assert feed is not None
    window.wait(lambda: all(len(track.ring) for track in feed.picture.tracks.values()))

    primary = feed.picture.primary
    window.fleet.fleet.link(primary).close()
    window.wait(lambda: feed.picture.is_stale)
    assert "as of" in page.bar.state.text()
    assert feed.look_of("worker-0").is_unknown
    assert "failed" not in page.bar.state.text()
    window.wait(lambda: not feed.picture.is_stale and feed.picture.state == "running")
    assert not feed.look_of("worker-0").is_unknown

    window.runs.stop(feed.run, lambda error: pytest.fail(error.sentence()), force=True)
    window.wait(lambda: feed.picture.is_over)


def test_large_files_are_asked_about_before_they_are_sent(
    window: Window, lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_core.launch.question.LARGE_FILE", 1_000_000)
    file = sleeping(tmp_path / "talk", seconds=600, hosts=["gpu-b"])
    (file.parent / "weights.bin").write_bytes(bytes(range(256)) * 8192)
    (file.parent / "more.bin").write_bytes(bytes(range(256)) * 5000)
    panel = window.panel
    window.launch(read_topology(file))
    window.wait(lambda: panel.question.isVisible())
    said = panel.question.sentence.text()
    assert "holds 2 files over 1 MB: weights.bin (2.1 MB), more.bin (1.3 MB)." in said
    assert panel.question.question.text() == "Send it to 1 host?"
    assert "-y" not in panel.question.advice.text()
    assert panel.row("sending").row.state == "pending"

    # Enter says no.
    panel.activateWindow()
    window.wait(lambda: panel.question.no.hasFocus())
    QTest.keyClick(panel.question.no, Qt.Key.Key_Return)
    window.wait(lambda: not panel.is_launching)
    assert not panel.checklist.has_failed
    assert "nothing was sent" in panel.notice.text
    assert "program.exclude" in panel.notice.text
    assert not panel.question.isVisible()
    window.wait(lambda: not runs_left(lab3["gpu-b"]))

    QTest.mouseClick(panel.again, Qt.MouseButton.LeftButton)
    window.wait(lambda: panel.question.isVisible())
    QTest.mouseClick(panel.cancel_button, Qt.MouseButton.LeftButton)
    window.wait(lambda: not panel.is_launching)
    assert "taken back" in panel.notice.text

    QTest.mouseClick(panel.again, Qt.MouseButton.LeftButton)
    window.wait(lambda: panel.question.isVisible())
    QTest.mouseClick(panel.question.yes, Qt.MouseButton.LeftButton)
    window.wait_started()
    page = window.page
    window.wait(lambda: page.feed is not None and page.feed.picture.state == "running")
    assert page.feed is not None
    window.runs.stop(page.feed.run, lambda error: pytest.fail(error.sentence()), force=True)
    window.wait(lambda: page.feed is not None and page.feed.picture.is_over)


def test_a_window_that_is_closed_while_the_launch_asks_leaves_no_thread(
    window: Window, lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_core.launch.question.LARGE_FILE", 1_000_000)
    file = sleeping(tmp_path / "talk", seconds=600, hosts=["gpu-b"])
    (file.parent / "weights.bin").write_bytes(bytes(range(256)) * 8192)
    window.launch(read_topology(file))
    window.wait(lambda: window.panel.question.isVisible())
    window.close()
    window.wait(lambda: not any(thread.name == "background-act" for thread in threading.enumerate()))
    window.wait(lambda: not runs_left(lab3["gpu-b"]))
