"""Tests that the digits example can be drawn on an empty canvas, saved, launched on three hosts and stopped."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.end_to_end.running import DIGITS, log_of, programs_on
from tests.gui.end_to_end.conftest import OpenWindow
from tests.gui.end_to_end.simulated_user import LAUNCHED_WITHIN_MS, SimulatedUser
from tests.lab import Desktop, Lab
from torchyard_core.topology.file import read_topology
from torchyard_core.topology.model import Role, StrategyKind
from torchyard_gui.topology.labels import strategy_name

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("bare_hosts")]

TRAINED_WITHIN_MS = 180_000

TRAINING = """
import json, os, socket, time

# Reports a loss like train.py, but without torch, because only the window is tested.
mouth = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ear = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
name = os.environ["TORCHYARD_REPLICA"]
for step in range(1, 3000):
    print(f"{name} step {step}", flush=True)
    metrics = {"step": step, "loss": 2 / step, "throughput": 96.0}
    said = {"replica": name, "local_rank": 0, "metrics": metrics}
    try:
        mouth.sendto(json.dumps(said).encode(), ear)
    except OSError:
        pass
    time.sleep(0.2)
"""


def draw_digits(person: SimulatedUser) -> None:
    """Draws a chief and two workers on three hosts, with mouse, keys and inspector."""
    draw, page = person.draw, person.topology
    # The user adds hosts to the canvas in three ways: by a click, by the search, and by a drop.
    draw.choose(page.palette_.hosts, "gpu-a")
    draw.on_canvas()
    person.keys(Qt.Key.Key_A)
    assert page.palette_.search.hasFocus()
    draw.type("gpu-b")
    draw.keys(Qt.Key.Key_Return)
    page.palette_.search.clear()
    assert draw.drop(page.palette_.hosts, "gpu-c", "")
    assert page.editor.shown_hosts() == ("gpu-a", "gpu-b", "gpu-c")
    # The user drops the chief on its host, and adds the workers by the search.
    assert draw.drop(page.palette_.roles, "chief", "gpu-a")
    draw.on_canvas()
    person.keys(Qt.Key.Key_A)
    draw.type("2 worker")
    draw.keys(Qt.Key.Key_Return)
    page.palette_.search.clear()
    assert sum(draw.counts().values()) == 3
    # The user drags one worker to its host, and types the pin of the other worker.
    draw.select("worker-1")
    draw.carry("worker-1", "gpu-c")
    draw.select("worker-0")
    pin = page.inspector.place.pin
    assert pin.text() == ""
    pin.setFocus()
    QTest.keyClicks(pin, "gpu-b")
    QTest.keyClick(pin, Qt.Key.Key_Return)
    assert [draw.where(name) for name in ("chief-0", "worker-0", "worker-1")] == ["gpu-a", "gpu-b", "gpu-c"]
    # The inspector shows the program if nothing is selected.
    draw.on_canvas()
    person.keys(Qt.Key.Key_Escape)
    assert page.editor.selection == ()
    draw.pick(page.bar.strategy, strategy_name(StrategyKind.ALL_REDUCE))
    draw.fill(page.inspector.program.program, "script", "train.py")
    draw.fill(page.inspector.program.program, "env", "OMP_NUM_THREADS=1")
    draw.fill(page.inspector.topology, "name", "digits-three-hosts")


def test_the_example_is_drawn_saved_launched_watched_and_stopped(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    person = window_of(desktop)
    person.hosts_were_asked()
    page = person.topology

    draw_digits(person)
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    person.save_as(folder / "three-hosts.yaml")

    saved = read_topology(folder / "three-hosts.yaml").topology
    assert saved is not None
    assert saved == page.document.value
    assert saved.strategy.kind is StrategyKind.ALL_REDUCE
    assert sorted((pool.role, pool.replicas) for pool in saved.pools) == [(Role.CHIEF, 1), (Role.WORKER, 2)]
    assert saved.pins == {"chief-0": "gpu-a", "worker-0": "gpu-b", "worker-1": "gpu-c"}

    # Once all checks are done, the window shows the run.
    panel = person.press_launch()
    job = panel.job
    assert job is not None
    seen: set[tuple[str, str]] = set()

    def look(*_: object) -> None:
        seen.update((row.name, row.state) for row in panel.checklist.rows.values())

    # The states are recorded at each signal, because several signals may arrive before wait_until() checks again.
    for told in (job.checked, job.progressed):
        told.connect(look)
    person.on_the_runs_page()
    assert {("starting", "pending"), ("host", "passed")} <= seen
    assert all(row.state in ("passed", "warning") for row in panel.checklist.rows.values()), seen
    person.wait_until(lambda: person.picture.state == "running")
    names = ["chief-0", "worker-0", "worker-1"]
    person.wait_until(lambda: [track.state for track in person.picture.tracks.values()] == ["running"] * 3)
    assert sorted(person.picture.tracks) == names
    assert [person.picture.tracks[name].host for name in names] == ["gpu-a", "gpu-b", "gpu-c"]

    # The values of samples appear in the time series and in the plots.
    def measured(name: str) -> list[float]:
        return [value for value in person.picture.tracks[name].ring.values("loss") if not math.isnan(value)]

    person.wait_until(lambda: all(len(measured(name)) >= 2 for name in names))
    view = person.runs.run_view
    person.wait_until(lambda: "samples/s" in person.runs.bar.state.text())
    person.press(person.runs.bar.views.button("plots"))
    assert view.view == "plots"
    person.wait_until(lambda: all(len(view.plots.curve("loss", name).getData()[1]) >= 2 for name in names))
    first = len(measured("worker-1"))
    person.wait_until(lambda: len(view.plots.curve("loss", "worker-1").getData()[1]) > first)
    person.press(person.runs.bar.views.button("canvas"))

    # The logs of two replicas grow while they are shown.
    person.open_log()
    person.wait_until(lambda: any(line.startswith("chief-0 step ") for line in person.log_lines()))
    replica = view.log.replica
    replica.setFocus()
    QTest.keyClick(replica, Qt.Key.Key_Down)
    assert replica.currentText() == "worker-0"
    person.wait_until(lambda: any(line.startswith("worker-0 step ") for line in person.log_lines()))
    last = person.log_lines()[-1]
    person.wait_until(lambda: person.log_lines()[-1] != last)

    person.stop_the_run()
    person.wait_until(lambda: person.picture.is_over)
    assert person.picture.state == "stopped", person.picture.reason
    assert {track.state for track in person.picture.tracks.values()} == {"stopped"}
    person.wait_until(lambda: not programs_on(lab3))
    assert person.button(person.runs.bar, "Restart").isEnabled()
    (listed,) = person.runs.model.runs
    assert listed.state == "stopped"


def test_the_stop_question_can_be_answered_with_no_and_a_launch_taken_back(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    file = tmp_path / "long" / "long.yaml"
    file.parent.mkdir()
    (file.parent / "train.py").write_text(TRAINING)
    file.write_text(
        "version: 1\nname: long\npools:\n"
        "  - {name: workers, role: worker, replicas: 3, gpus: 0, placement: spread}\n"
        "program: {launcher: command, command: [python3, train.py]}\n"
    )
    person = window_of(desktop, file)
    # The user launches before the hosts are checked, and cancels the launch with Esc.
    panel = person.press_launch()
    QTest.keyClick(panel, Qt.Key.Key_Escape)
    person.wait_until(lambda: not panel.is_launching and not panel.isVisible(), LAUNCHED_WITHIN_MS)
    assert person.window.current == "topology"
    person.wait_until(lambda: not programs_on(lab3))

    person.press_launch()
    person.on_the_runs_page()
    person.wait_until(lambda: person.picture.state == "running")
    person.press(person.button(person.runs.bar, "Stop"))
    person.wait_until(lambda: person._stop_dialog() is not None)
    QTest.keyClick(person._stop_dialog(), Qt.Key.Key_Escape)
    assert not person.picture.is_over

    person.stop_the_run()
    person.wait_until(lambda: person.picture.state == "stopped")
    person.wait_until(lambda: not programs_on(lab3))


@pytest.mark.train
@pytest.mark.timeout(300)  # Three processes import torch during this time.
def test_the_digits_training_itself_drawn_on_an_empty_canvas_trains_to_its_good_end(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, warm_python: str, tmp_path: Path
) -> None:
    desktop.use(lab3, python=warm_python)
    person = window_of(desktop)
    person.hosts_were_asked()
    draw_digits(person)
    folder = tmp_path / "digits"
    folder.mkdir()
    shutil.copy(DIGITS / "train.py", folder)
    person.save_as(folder / "three-hosts.yaml")

    person.press_launch()
    person.on_the_runs_page()
    person.press(person.runs.bar.views.button("plots"))

    def losses() -> list[float]:
        curve = person.runs.run_view.plots.curve("loss", "chief-0").getData()[1]
        return [] if curve is None else [float(value) for value in curve if not math.isnan(value)]

    person.wait_until(losses, TRAINED_WITHIN_MS)
    person.wait_until(lambda: person.picture.is_over, TRAINED_WITHIN_MS)
    assert person.picture.state == "succeeded", person.picture.reason
    assert {track.state for track in person.picture.tracks.values()} == {"succeeded"}
    # The loss has decreased, and the plot shows its last value.
    log = log_of(desktop, person.picture.run_id, "chief-0").splitlines()
    learned = [float(line.rpartition(" ")[2]) for line in log if line.startswith("epoch ")]
    assert learned[-1] < learned[0] / 2
    last = person.picture.tracks["chief-0"].ring.last("loss")
    assert last is not None
    assert last < learned[0] / 2
    person.wait_until(lambda: losses()[-1] == pytest.approx(last))
    assert not person.runs.run_view.notice.isVisible()
    assert "succeeded" in person.runs.bar.state.text().lower()
