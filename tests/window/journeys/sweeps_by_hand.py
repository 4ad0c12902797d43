"""Looks at the trials of a sweep, stops and resumes the sweep, opens its best trial, and compares a trainer's step with
its prediction, by pointer and by keys. The hosts are simulated.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint

from tests.core.advisor.samples import profile
from tests.core.examples import host
from tests.gui.runs import fake_hosts
from tests.gui.runs.fake_hosts import Acting, ActingFleet
from tests.gui.sweeps.fake_sweep import ActingSweep
from tests.window.user import User
from torchyard_core.app import resume_sweep as use_case
from torchyard_core.app.profile_script import profile_cache
from torchyard_core.home import Home
from torchyard_core.launch.launch import StartedRun
from torchyard_core.sweeps.trial_table import Trial
from torchyard_gui.sweeps.trial_table import TRIAL, VALUE
from torchyard_gui.windows.signal_connections import SignalConnections

RESUMED, RUN = "20261120-171502-9f2a", "20261120-101010-4c4c"
BEGAN_S = 600


class Resumption:
    """Starts a simulated sweep in place of the launch that continues the ended one."""

    def __init__(self, sweep: ActingSweep, home: Home) -> None:
        self._sweep, self._home = sweep, home

    def run(self) -> StartedRun:
        sweep = self._sweep
        sweep.is_forgotten = False
        sweep.note_sweep(self._home)
        sweep.start()
        primary: Any = sweep.links[str(sweep.plan.primary)]
        return StartedRun(sweep.run_id, sweep.plan, primary, {primary.host: primary}, {})

    def cancel(self) -> None:
        pass


def prepare(home: Path) -> None:
    """Writes an empty fleet. The simulated hosts are not in the fleet file, so the window contacts no host."""
    home.mkdir()
    (home / "fleet.yaml").write_text("version: 1\nhosts: []\n")


def journey(user: User) -> None:
    sweep, run = user.gui(lambda: simulate(user.window.findChild(SignalConnections)))
    page = user.show_page("sweeps")
    user.expect(lambda: page.table.trials.rowCount() == 38 and page.sweep.is_fresh, "the trials are shown")
    look_at_trials(user, page)
    stop_and_resume(user, page, sweep)
    open_best(user, page)
    compare_with_prediction(user, run)


def simulate(wiring: Any) -> tuple[ActingSweep, Acting]:
    """Gives the window simulated hosts with a live sweep and a live run of a profiled script."""
    home = wiring.home
    fake_hosts.BEGAN = time.time() - BEGAN_S
    sweep, resumed = ActingSweep(), ActingSweep(RESUMED, ("gpu-e", "gpu-f"), count=40)
    resumed.is_forgotten = True
    run = Acting((host("gpu-c", 2), host("gpu-d", 2)), run_id=RUN)
    hosts: Any = ActingFleet(sweep, run, resumed)
    wiring.fleet._fleet, wiring.fleet.facts = hosts, hosts.known
    kind = run.facts[0].gpus[0].name
    profile_cache(home).keep(home.path, profile(kind=kind, is_gpu=True, compute_s=0.4))
    sweep.note_sweep(home)
    run.note(home, workdir=str(home.path))
    sweep.start()
    run.start()
    use_case.resume_sweep = lambda *_, **__: Resumption(resumed, home)  # type: ignore[assignment,return-value]  # Nothing is launched.
    return sweep, run


def look_at_trials(user: User, page: Any) -> None:
    user.expect(lambda: page.bar.state.shown_text() == page.bar.state.text(), "the state is readable")
    user.picture("sweeps")
    header = page.table.horizontalHeader()
    middle = user.gui(lambda: QPoint(header.sectionViewportPosition(VALUE) + 20, header.height() // 2))
    user.click(user.gui(header.viewport), middle)
    user.expect(lambda: trial_in(page, 0).trial == "33", "a click on the heading sorts by value")
    first = user.gui(lambda: page.table.visualRect(page.table.order.index(0, 0)).center())
    user.click(user.gui(page.table.viewport), first)
    user.expect(lambda: page.about.text().startswith("Trial 33 · complete"), "a click selects the best trial")
    failed = user.gui(lambda: next(trial for trial in page.history.trials() if trial.trial == "17"))
    user.click(page.history, user.gui(lambda: page.history.line_of(failed)[0].toPoint()))
    user.expect(lambda: page.table.trial.trial == "17", "a click in a plot selects a trial")
    user.expect(lambda: "CUDA out of memory" in page.about.text(), "and says why it failed")
    user.picture("failed-trial")
    user.key("Right", "Right")
    numbers = user.gui(lambda: [trial.trial for trial in page.history.trials()])
    third = numbers[numbers.index("17") + 2]
    user.expect(lambda: page.table.trial.trial == third, "arrows move to the next trials")
    user.key("F6", "F6")
    user.expect(lambda: page.list.hasFocus(), "F6 goes on to the rail, and then to the list")


def trial_in(page: Any, row: int) -> Trial:
    found: Trial = page.table.order.index(row, 0).data(TRIAL)
    return found


def stop_and_resume(user: User, page: Any, sweep: ActingSweep) -> None:
    user.key("ctrl+period")
    user.expect(lambda: page.dialog is not None and page.dialog.isActiveWindow(), "Ctrl+. asks")
    user.picture("stop-question")
    user.key("Escape")
    user.expect(lambda: page.dialog is None and user.window.isActiveWindow(), "Esc keeps the sweep running")
    user.click(user.button("Stop the sweep …", page.bar))
    user.expect(lambda: page.dialog is not None and page.dialog.isActiveWindow(), "the button asks")
    assert not sweep.stopped
    user.click(user.gui(lambda: page.dialog.yes))
    user.expect(lambda: sweep.stopped, "the sweep is asked to stop")
    user.gui(sweep.stop)
    user.key("F5")
    resume = user.button("Resume the sweep", page.bar)
    user.expect(lambda: page.bar.state.text().startswith("stopped") and resume.isEnabled(), "the sweep has ended")
    user.picture("stopped")
    user.click(resume)
    user.expect(lambda: page.run_id == RESUMED and page.table.trials.rowCount() == 40, "the new sweep is shown")
    user.expect(lambda: page.bar.state.text().startswith("running · 39 of 50 trials"), "and is known to run")
    user.picture("resumed")


def open_best(user: User, page: Any) -> None:
    best = user.gui(lambda: page.model.table(RESUMED).best)
    user.click(user.button("Open best as topology", page.bar))
    topology: Any = user.gui(lambda: user.window.page("topology"))
    user.expect(lambda: user.window.current == "topology", "the button opens the best trial")
    wanted = f"--lr={best.params['lr']}"
    user.expect(lambda: wanted in topology.document.value.program.args, "with its parameters")
    user.picture("best-trial")


def compare_with_prediction(user: User, run: Acting) -> None:
    user.key("ctrl+3")
    page: Any = user.gui(lambda: user.window.page("runs"))
    user.expect(lambda: user.window.current == "runs" and page.list_model.row_of(RUN) >= 0, "the run is listed")
    row = user.gui(lambda: page.list.visualRect(page.list_model.index(page.list_model.row_of(RUN))).center())
    user.click(user.gui(page.list.viewport), row)
    user.expect(lambda: page.feed.run.run_id == RUN and page.feed.was_heard and run.is_followed, "the run is shown")
    user.gui(lambda: run.measure(BEGAN_S, step={"exchange_s": 0.0123, "wait_s": 0.031}))
    user.expect(lambda: "samples/s" in page.bar.state.text(), "its throughput is shown")
    user.expect(lambda: page.bar.state.shown_text() == page.bar.state.text(), "the state is readable")
    scene, view = page.run_view.scene, page.run_view.canvas
    chip = user.gui(lambda: view.mapFromScene(scene.rect_of("worker-1").center()))
    user.click(user.gui(view.viewport), chip)
    step = page.run_view.side.step
    user.expect(lambda: page.run_view.chosen == ["worker-1"] and step.isVisible(), "the parts of its step are shown")
    user.expect(lambda: step.predicted["compute_s"].text() == "predicted 410 ms", "beside their prediction")
    assert user.gui(lambda: step.values["compute_s"].text()) == "500 ms"
    user.picture("step")
    user.key("alt+2")
    user.expect(lambda: page.run_view.view == "table", "Alt+2 shows the replicas")
    user.click(user.gui(page.run_view.table.viewport), QPoint(60, user.gui(lambda: row_of(page, "worker-0"))))
    user.key("Down")
    user.expect(lambda: page.run_view.chosen == ["worker-1"], "Down selects the next replica")
    user.picture("replicas")


def row_of(page: Any, name: str) -> int:
    """Returns the vertical centre of a replica's row."""
    table = page.run_view.table
    model = table.model()
    index = next(found for row in range(model.rowCount()) if (found := model.index(row, 0)).data() == name)
    return int(table.visualRect(index).center().y())
