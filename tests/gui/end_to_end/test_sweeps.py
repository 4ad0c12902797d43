"""Tests that the window follows a sweep of real trials, stops and resumes it, and opens its best trial.

Another test starts a sweep with the form, and finds its study in the team's database.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import optuna
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.booking.cluster import Cluster
from tests.core.booking.conftest import postgres as postgres
from tests.core.booking.store.test_studies import content, read_back
from tests.end_to_end.running import topology
from tests.gui.end_to_end.conftest import OpenWindow
from tests.gui.end_to_end.simulated_user import LAUNCHED_WITHIN_MS
from tests.lab import Desktop, Lab
from torchyard_gui.sweeps.page import SweepsPage
from torchyard_gui.sweeps.search_form.dialog import SearchDialog

pytestmark = pytest.mark.lab

SCRIPT = """
    import json, os, socket, sys, time
    trial, x = int(sys.argv[1]), float(sys.argv[2])
    if trial == 2:
        sys.exit("no such file: digits.csv")
    if trial in (5, 6):
        time.sleep(600)
    address = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
    message = {"replica": os.environ["TORCHYARD_REPLICA"], "local_rank": 0}
    message["metrics"] = {"step": 1, "loss": (x - 1) ** 2}
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps(message).encode(), address)
"""
"""A program that fails in the second trial, and does not end in the fifth and the sixth."""
SEARCH = """version: 1
parameters: {x: {distribution: uniform, low: -5, high: 5}}
objective: {metric: loss, goal: minimize}
sampler: {kind: tpe, seed: 1}
trials: 6
parallel: 2
"""
PROGRAM = """pools: [{name: workers, role: worker, replicas: 1}]
program:
  script: script.py
  args: ["{trial}", "{params.x}"]
  max_restarts: 0
  stop_grace_s: 1
  failure_grace_s: 0.1
"""


def test_a_sweep_is_followed_stopped_resumed_and_its_best_trial_opened(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    file = topology(tmp_path / "program", PROGRAM, script_py=SCRIPT)
    search = tmp_path / "search.yaml"
    search.write_text(SEARCH)
    person = window_of(desktop)
    person.hosts_were_asked()
    desktop.torchyard("sweep", file, search, "--detach", "-y")
    page = cast("SweepsPage", person.window.page("sweeps"))
    person.keys(Qt.Key.Key_5, Qt.KeyboardModifier.ControlModifier)

    def states() -> dict[str, str]:
        table = page.model.table(page.run_id)
        return {} if table is None else {trial.trial: trial.state for trial in table.trials}

    early = {"1": "complete", "2": "failed", "3": "complete", "4": "complete"}
    person.wait_until(lambda: states() == {**early, "5": "running", "6": "running"}, LAUNCHED_WITHIN_MS)
    page.choose("2")
    assert "no such file: digits.csv" in page.about.text()
    first = page.run_id

    QTest.keyClick(page.list, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
    person.wait_until(lambda: page.dialog is not None and page.dialog.isVisible())
    assert page.dialog is not None
    person.press(page.dialog.yes)
    person.wait_until(lambda: page.actions_.resume.isEnabled(), LAUNCHED_WITHIN_MS)
    person.wait_until(lambda: states() == {**early, "5": "interrupted", "6": "interrupted"}, LAUNCHED_WITHIN_MS)

    person.press(page.bar.buttons[page.actions_.resume])
    person.wait_until(lambda: page.run_id != first or page.notice.kind == "fail", LAUNCHED_WITHIN_MS)
    assert page.run_id != first, page.notice.text
    ended = {"5": "interrupted", "6": "interrupted", "7": "complete", "8": "complete"}
    person.wait_until(lambda: states() == {**early, **ended}, LAUNCHED_WITHIN_MS)
    person.wait_until(lambda: page.bar.state.text().startswith("succeeded · 6 of 6"), LAUNCHED_WITHIN_MS)
    assert not page.actions_.resume.isEnabled()
    assert Path(page.model.study_file(page.run_id)).exists()

    person.press(page.bar.buttons[page.actions_.best])
    person.wait_until(lambda: person.window.current == "topology")
    table = page.model.table(page.run_id)
    assert table is not None
    assert table.best is not None
    assert person.topology.document.value.program.args[1] == str(table.best.params["x"])
    assert person.topology.document.path is None


CONTROL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


def test_the_form_starts_a_sweep_by_keyboard_and_the_window_copies_its_study_to_the_team(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, postgres: Cluster, tmp_path: Path
) -> None:
    postgres.empty()
    (desktop.home / "settings.yaml").write_text(f"bookings_url: {postgres.url('kim', 'team')}\n")
    person = window_of(desktop, topology(tmp_path / "program", PROGRAM, script_py=SCRIPT))
    person.hosts_were_asked()
    person.draw.on_canvas()
    person.keys(Qt.Key.Key_Return, CONTROL | SHIFT)
    dialog = person.window.findChild(SearchDialog)
    assert isinstance(dialog, SearchDialog)
    person.wait_until(dialog.isActiveWindow)
    [row] = dialog.form.parameters.rows
    assert row.name.text() == "x"
    dialog.form.trials.setFocus()
    for key in (Qt.Key.Key_End, Qt.Key.Key_Backspace, Qt.Key.Key_Backspace, Qt.Key.Key_0):
        person.keys(key)
    person.keys(Qt.Key.Key_Return, CONTROL)
    assert dialog.form.rows["trials",].problem
    person.keys(Qt.Key.Key_Backspace)
    person.keys(Qt.Key.Key_4)
    person.keys(Qt.Key.Key_Return, CONTROL)

    page = cast("SweepsPage", person.window.page("sweeps"))
    person.wait_until(lambda: page.run_id or person.panel.again.isVisible(), LAUNCHED_WITHIN_MS)
    assert page.run_id, [line.texts for line in person.panel._rows.values()]
    assert person.window.current == "sweeps"
    assert not dialog.isVisible()
    person.wait_until(lambda: page.bar.state.text().startswith("succeeded · 4 of 4"), LAUNCHED_WITHIN_MS)
    table = page.model.table(page.run_id)
    assert table is not None
    name = f"{table.name} {page.run_id}"

    def copied() -> list[str]:
        with postgres.connect("lee", "team") as connection:
            query = (
                "SELECT t.state FROM torchyard_studies.trials t JOIN torchyard_studies.studies s USING (study_id)"
                " WHERE s.study_name = %s ORDER BY number"
            )
            return [row[0] for row in connection.execute(query, (name,)).fetchall()]

    person.wait_until(lambda: copied() == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"])
    here = optuna.load_study(study_name=None, storage=f"sqlite:///{page.model.study_file(page.run_id)}").get_trials()
    person.wait_until(lambda: content(read_back(postgres, name)) == content(here))
