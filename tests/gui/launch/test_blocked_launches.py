"""Tests of launches on lab hosts that need a key, are unreachable, or ask a question, and of cancelled launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton

from tests.core.cli.sample_runs import sleeping
from tests.end_to_end.running import programs_on
from tests.gui.job_threads import job_threads
from tests.gui.launch.window import Window, red_lines, runs_left
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.topology.file import read_topology

pytestmark = pytest.mark.lab


def test_an_unknown_key_offers_trust_and_then_the_launch_goes_on(
    qtbot: Any, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    desktop.use(lab3, trust=False)
    window = Window(qtbot, desktop)
    try:
        asked: list[str] = []
        window.panel.trust_requested.connect(asked.append)
        window.launch(read_topology(sleeping(tmp_path / "talk", seconds=600, hosts=["gpu-b"])))
        window.wait_until(lambda: not window.panel.is_launching)
        assert not window.started
        assert window.panel.checklist.unknown_keys == ["gpu-b"]
        assert "torchyard " not in " ".join(red_lines(window.panel))
        button = window.panel.notice.buttons[0]
        assert "gpu-b" in button.text()
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)
        assert asked == ["gpu-b"]

        # On the Fleet page, the user compares the fingerprint.
        done: list[bool] = []
        problems: list[Any] = []
        window.fleet.ask_key(
            "gpu-b",
            lambda key: window.fleet.trust(key, lambda: done.append(True), problems.append) and None,
            problems.append,
        )
        window.wait_until(lambda: done or problems)
        assert not problems
        window.panel.trusted("gpu-b")
        window.wait_started()
        window.wait_running()
        window.stop_run()
    finally:
        window.close()


def test_a_host_that_is_down_is_a_red_line_and_nothing_is_left_on_the_others(
    request: pytest.FixtureRequest, lab3: Lab, tmp_path: Path
) -> None:
    lab3["gpu-c"].stop_sshd()
    try:
        # The server is stopped before the window is created, because an existing connection would keep the host
        # reachable.
        window: Window = request.getfixturevalue("window")
        window.launch(read_topology(sleeping(tmp_path / "talk")))
        window.wait_until(lambda: not window.panel.is_launching)
    finally:
        lab3["gpu-c"].start_sshd()
    assert not window.started
    row = window.panel.row("host")
    assert row.row.state == "failed"
    assert any("gpu-c" in line for line in row.texts)
    assert sorted(host for hosts in row.row.fine.values() for host in hosts) == ["gpu-a", "gpu-b"]
    window.wait_until(lambda: programs_on(lab3) == [])
    assert window.panel.again.isVisible()

    QTest.mouseClick(window.panel.again, Qt.MouseButton.LeftButton)
    window.wait_started()
    window.wait_running()
    window.stop_run()


def test_a_start_on_a_lost_host_has_an_unknown_result(
    window: Window, lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel, host, call = window.panel, lab3["gpu-b"], DaemonClient.call

    def losing(link: DaemonClient, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        answer = call(link, method, params, timeout_s)
        if method != "run.start":
            return answer
        host.stop_sshd(sessions=True)
        wait_until(lambda: not link.is_open)
        return call(link, method, params, timeout_s)

    over: list[bool] = []
    panel.launch_over.connect(over.append)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(DaemonClient, "call", losing)
            window.launch(read_topology(sleeping(tmp_path / "talk", hosts=["gpu-b"])))
            window.wait_until(lambda: not panel.is_launching)
        assert over == [True]
        assert panel.about.text() == "It is unknown whether the run has started."
        (said,) = red_lines(panel)
        assert "it may have begun" in said
        assert said.endswith("It is known once gpu-b can be reached.")
        buttons = panel.row("starting").steps.findChildren(QPushButton)
        assert [button.text() for button in buttons] == ["Show the runs", "Stop the run …"]
        assert not panel.again.isVisible()  # If the user launched again, there would be a second run.
        (noted,) = window.runs.history.records()
        assert not noted.is_confirmed
    finally:
        host.start_sshd()
    window.page.show_run(noted.run_id)
    window.wait_running()
    window.stop_run()


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
    window.wait_until(lambda: not panel.is_launching)

    assert not window.started
    assert "Nothing is left" in panel.notice.text
    # The keepers may still be exiting.
    window.wait_until(lambda: programs_on(lab3) == [])
    window.wait_until(lambda: not [run for host in lab3.hosts for run in runs_left(host)])
    assert window.runs.history.records() == []


def test_large_files_are_asked_about_before_they_are_sent(
    window: Window, lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_core.launch.confirmations.LARGE_FILE", 1_000_000)
    file = sleeping(tmp_path / "talk", seconds=600, hosts=["gpu-b"])
    (file.parent / "weights.bin").write_bytes(bytes(range(256)) * 8192)
    (file.parent / "more.bin").write_bytes(bytes(range(256)) * 5000)
    panel = window.panel
    window.launch(read_topology(file))
    window.wait_until(lambda: panel.question.isVisible())
    said = panel.question.sentence.text()
    assert "holds 2 files over 1 MB: weights.bin (2.1 MB), more.bin (1.3 MB)." in said
    assert panel.question.question.text() == "Send it to 1 host?"
    assert "-y" not in panel.question.advice.text()
    assert panel.row("sending").row.state == "pending"

    # Enter chooses *No*.
    panel.activateWindow()
    window.wait_until(lambda: panel.question.no.hasFocus())
    QTest.keyClick(panel.question.no, Qt.Key.Key_Return)
    window.wait_until(lambda: not panel.is_launching)
    assert not panel.checklist.has_failed
    assert "Nothing was launched or sent" in panel.notice.text
    assert [button.text() for button in panel.notice.buttons] == ["Show the field"]
    assert not panel.question.isVisible()
    window.wait_until(lambda: not runs_left(lab3["gpu-b"]))

    QTest.mouseClick(panel.again, Qt.MouseButton.LeftButton)
    window.wait_until(lambda: panel.question.isVisible())
    QTest.mouseClick(panel.cancel_button, Qt.MouseButton.LeftButton)
    window.wait_until(lambda: not panel.is_launching)
    assert "was cancelled" in panel.notice.text

    QTest.mouseClick(panel.again, Qt.MouseButton.LeftButton)
    window.wait_until(lambda: panel.question.isVisible())
    QTest.mouseClick(panel.question.yes, Qt.MouseButton.LeftButton)
    window.wait_started()
    window.wait_running()
    window.stop_run()


def test_a_window_that_is_closed_while_the_launch_asks_leaves_no_thread(
    window: Window, lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_core.launch.confirmations.LARGE_FILE", 1_000_000)
    file = sleeping(tmp_path / "talk", seconds=600, hosts=["gpu-b"])
    (file.parent / "weights.bin").write_bytes(bytes(range(256)) * 8192)
    window.launch(read_topology(file))
    window.wait_until(lambda: window.panel.question.isVisible())
    window.close()
    window.wait_until(lambda: not job_threads("LaunchJob._run"))
    window.wait_until(lambda: not runs_left(lab3["gpu-b"]))
