"""Tests of the window with a real cluster: a launch from the Topology page's place, the queue, and the nodes' names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory, on_cluster
from tests.end_to_end.slurm.jobs import COMMAND, WAITS, ClusterDesktop
from tests.gui.launch.window import Window
from tests.lab.slurm import SlurmCluster
from torchyard_core.sweeps.search_file import search_from_text
from torchyard_core.sweeps.trial_table import Trial
from torchyard_core.topology.file import read_topology
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.bridge.sweeps_model import SweepsModel
from torchyard_gui.canvas import labels
from torchyard_gui.runs.replica_columns import HOST

pytestmark = pytest.mark.lab
__all__ = ["on_cluster"]


@pytest.fixture
def desktop(on_cluster: DesktopFactory) -> ClusterDesktop:
    return on_cluster()


@pytest.fixture
def window(qtbot: Any, desktop: ClusterDesktop) -> Iterator[Window]:
    made = Window(qtbot, desktop)
    yield made
    made.close()


def racks(window: Window) -> list[str]:
    scene = window.page.run_view.scene
    return [labels.rack_name(scene._racks[host].content) for host in scene.hosts]


def test_a_run_launched_in_the_window_waits_with_slurm_s_reason_and_then_shows_its_nodes(
    window: Window, desktop: ClusterDesktop, cluster: SlurmCluster
) -> None:
    place = PlanningPlace(window.fleet, "hpc", window.page)
    place.begin()
    (hpc,) = place.clusters
    place.check(hpc)
    window.wait_until(lambda: place.status(hpc).description is not None or place.status(hpc).error is not None)
    assert place.status(hpc).error is None
    job = desktop.occupy()
    pools = [{"name": "workers", "role": "worker", "replicas": 2, "gpus": 1, "placement": "spread"}]
    file = desktop.write(WAITS, pools=pools, program=COMMAND)
    window.panel.launch(read_topology(file), place=place.place)
    assert "preparing" not in window.panel.checklist.rows
    window.wait_started()
    notice = window.page.run_view.notice
    window.wait_until(lambda: "waits in the queue: Resources" in notice.text)
    assert racks(window) == ["Any node with 1 × A100", "Any node with 1 × A100"]
    frame = window.page.run_view.scene.frame
    assert (frame.heading.name, frame.heading.summary) == ("hpc", "Slurm chooses 2 nodes")
    cluster.run("scancel", job)
    window.wait_running()
    window.wait_until(lambda: racks(window) == ["n1", "n2"])
    rows = window.page.run_view.table.replicas
    assert [rows.index(row, HOST).data() for row in range(rows.rowCount())] == ["n1", "n2"]
    assert frame.heading.summary == "2 nodes"
    assert notice.isHidden()
    window.page.model.refresh()
    window.wait_until(lambda: [run.is_fresh for run in window.runs.runs] == [True])
    (cluster.controller.home / "end").touch()
    window.wait_over()
    assert racks(window) == ["n1", "n2"]


def test_a_sweep_launched_in_the_window_on_a_cluster_is_an_array_of_jobs_and_one_of_its_trials_is_stopped(
    window: Window, desktop: ClusterDesktop, cluster: SlurmCluster
) -> None:
    job = desktop.occupy()
    file = desktop.write(WAITS, replicas=1, program={**COMMAND, "command": ["python3", "program.py", "{params.x}"]})
    search = search_from_text(
        "version: 1\nparameters: {x: {distribution: int, low: 1, high: 2}}\n"
        "objective: {metric: loss, goal: minimize}\nsampler: {kind: grid}\n"
    )
    started: list[str] = []
    window.panel.sweep_started.connect(started.append)
    window.panel.launch(read_topology(file), search=search, place="hpc")
    window.wait_until(lambda: started or not window.panel.is_launching)
    assert started, window.said()
    (array,) = (one for one in cluster.jobs() if one != job)
    assert array.endswith("_[1-2%1]")
    window.page.model.refresh()
    window.wait_until(lambda: [run.state for run in window.runs.runs if run.is_sweep] == ["waiting"])

    cluster.run("scancel", job)
    sweeps = SweepsModel(window.runs, window.runs)

    def trial(number: str) -> Trial | None:
        (sweep,) = sweeps.sweeps
        sweeps.update(sweep)
        table = sweeps.table(sweep.run_id)
        return table.trial(number) if table is not None else None

    def is_in(number: str, state: str) -> bool:
        found = trial(number)
        return found is not None and found.state == state

    window.wait_until(lambda: is_in("1", "running"))
    assert sweeps.sweeps[0].state == "running"
    running = trial("1")
    assert running is not None
    sweeps.stop_trial(sweeps.sweeps[0], running, lambda error: pytest.fail(error.sentence()))
    window.wait_until(lambda: is_in("1", "failed"))
    (cluster.controller.home / "end").touch()

    def has_ended() -> bool:
        window.runs.refresh()
        return all(run.has_ended for run in window.runs.runs)

    window.wait_until(has_ended)
    sweeps.close()
