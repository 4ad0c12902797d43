"""Tests of launches from the panel on real hosts: how the Runs page shows runs that are live, finished, failed or
unreachable.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.cli.sample_runs import HOSTS, sleeping
from tests.end_to_end.running import DIGITS, programs_on, topology
from tests.gui.launch.window import Window
from tests.lab import Desktop, Lab
from torchyard_core.topology.file import read_topology
from torchyard_gui.runs.page import RunsPage

pytestmark = [pytest.mark.lab, pytest.mark.train]

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


@pytest.fixture
def torch_is_warm(desktop: Desktop, lab3: Lab, warm_python: str) -> None:
    """Gives the hosts a `python` that has already imported torch."""
    desktop.use(lab3, python=warm_python)


def two_workers(folder: Path, script: str) -> Path:
    """Writes a topology in which two workers on two hosts run a script."""
    design = """
        pools:
          - {name: workers, role: worker, replicas: 2, placement: spread}
        program: {script: work.py}
    """
    return topology(folder, design, work_py=script)


def points_of(page: RunsPage, kind: str, replica: str) -> int:
    """Returns how many samples a curve has."""
    times, _ = page.run_view.plots.curve(kind, replica).getData()
    return 0 if times is None else len(times)


@pytest.mark.usefixtures("torch_is_warm")
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
    window.wait_until(lambda: page.feed is not None and page.feed.run.run_id == window.started[0])
    assert page.feed is not None
    picture = page.feed.picture
    window.wait_until(lambda: picture.state == "running")
    # The time series of the plots get samples from all three hosts.
    window.wait_until(lambda: len(picture.tracks) == 3)
    window.wait_until(lambda: all(len(track.ring) >= 3 for track in picture.tracks.values()))
    assert {track.host for track in picture.tracks.values()} == set(HOSTS)
    window.wait_until(lambda: all((track.ring.last("step") or 0) > 5 for track in picture.tracks.values()))
    page.run_view.choose(["worker-0", "worker-2"])
    page.bar.views.set_value("plots")
    window.wait_until(lambda: points_of(page, "loss", "worker-2") >= 3)
    # Each chip shows that its replica is running.
    assert page.run_view.scene.names == ["worker-0", "worker-1", "worker-2"]
    feed = page.feed
    window.wait_until(
        lambda: all(look.state == "running" for look in feed.live_states.values())
    )  # Samples of a busy host may be late.
    # The displayed log grows.
    page.run_view.log.show_replica("worker-2")
    lines = page.run_view.log.view
    window.wait_until(lambda: any(line.startswith("worker-2 step ") for line in lines.shown_lines))
    before = lines.shown_lines[-1]
    window.wait_until(lambda: lines.shown_lines[-1] != before)

    page.actions_.stop.trigger()
    dialog = page._stop_dialog
    assert dialog is not None
    assert not picture.is_over
    QTest.mouseClick(dialog.stop, Qt.MouseButton.LeftButton)
    window.wait_until(lambda: picture.state == "stopped")

    window.wait_until(lambda: programs_on(lab3) == [])
    assert "stopped by" in picture.reason
    assert not page.actions_.stop.isEnabled()
    window.wait_until(lambda: window.runs.history.load(window.started[0]).state == "stopped")  # type: ignore[union-attr]  # The value is not None in this test.


@pytest.mark.usefixtures("torch_is_warm")
def test_the_example_trains_to_its_end_and_its_files_come_home(window: Window, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(DIGITS, folder)

    window.launch(read_topology(folder / "three-hosts.yaml"))
    window.wait_started()
    page, feed = window.page, window.wait_over()

    assert feed.picture.state == "succeeded"
    assert not page.run_view.notice.isVisible()
    loss = feed.picture.totals.last("loss")
    assert loss is not None  # The loss may be exactly 0.
    assert loss < 2
    page.fetch(feed.run, tmp_path / "home-again")
    window.wait_until(lambda: "fetched to" in page.run_view.work.text)
    logs = list((tmp_path / "home-again").rglob("*.log"))
    assert len(logs) >= 3


def test_an_ended_run_is_restarted_from_its_page_and_the_new_one_is_shown(window: Window, tmp_path: Path) -> None:
    window.launch(read_topology(two_workers(tmp_path / "short", "print('done')\n")))
    window.wait_started()
    window.wait_over()
    page, first = window.page, window.started[0]
    assert page.actions_.restart.isEnabled()
    assert not page.actions_.stop.isEnabled()

    page.actions_.restart.trigger()
    dialog = page._restart_dialog
    assert dialog is not None
    window.wait_until(lambda: dialog.begin.isChecked())  # Without a checkpoint, the new run starts from the beginning.
    QTest.mouseClick(dialog.buttons.agree, Qt.MouseButton.LeftButton)

    window.wait_until(lambda: page.feed is not None and page.feed.run.run_id != first and page.feed.picture.is_over)
    assert page.feed is not None
    assert page.feed.picture.state == "succeeded"
    noted = window.runs.history.load(page.feed.run.run_id)
    assert noted is not None
    assert noted.restarted_from == first


def test_a_script_that_fails_has_its_cause_on_the_page(window: Window, tmp_path: Path) -> None:
    script = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no such column')\ntime.sleep(60)\n"

    window.launch(read_topology(two_workers(tmp_path / "bad", script)))
    window.wait_started()
    page = window.page
    window.wait_until(lambda: page.feed is not None and page.feed.picture.state == "failed")

    notice = page.run_view.notice
    assert "worker-1" in notice.text
    assert "ValueError: no such column" in notice.text
    assert page.run_view.side.needs.needs[0].title == "worker-1 failed"
    assert page.feed is not None
    assert page.feed.live_state_of("worker-1").cause == "ValueError"
    QTest.mouseClick(notice.buttons[0], Qt.MouseButton.LeftButton)
    window.wait_until(lambda: "ValueError: no such column" in page.run_view.log.view.shown_lines)


def test_the_window_follows_a_host_that_is_lost_and_back(window: Window, lab3: Lab, tmp_path: Path) -> None:
    window.launch(read_topology(sleeping(tmp_path / "talk")))
    window.wait_started()
    page, feed = window.page, window.wait_running()
    window.wait_until(lambda: all(len(track.ring) for track in feed.picture.tracks.values()))

    primary = lab3[feed.picture.primary]
    # If sessions stayed open, the window might reach the host again before it noticed the loss.
    primary.stop_sshd(sessions=True)
    try:
        window.wait_until(lambda: feed.picture.is_stale)
        assert "as of" in page.bar.state.text()
        assert feed.live_state_of("worker-0").is_unknown
        assert "failed" not in page.bar.state.text()
    finally:
        primary.start_sshd()
    window.wait_until(lambda: not feed.picture.is_stale and feed.picture.state == "running")
    assert not feed.live_state_of("worker-0").is_unknown

    window.stop_run()
