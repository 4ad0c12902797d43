"""A restart in the window: an ended run, launched again from its newest checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.topology.file import topology_from_text
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.launch_job import LaunchJob

if TYPE_CHECKING:
    from torchyard_core.app.desktop import Desktop
    from torchyard_core.app.launch_run import LaunchUseCase


class RestartJob(LaunchJob):
    """One restart, from `start` to one of `started`, `failed` and `cancelled`, as of a LaunchJob."""

    def __init__(self, run: KnownRun, text: str, file: str, fleet_model: FleetModel, parent: QObject | None = None):
        """`text` is the topology as it was run, from `file`, as the run's record has them."""
        super().__init__(topology_from_text(text, file or run.name), fleet_model, run.name, parent)
        self._ended_run = run

    def _make(self, desktop: Desktop) -> LaunchUseCase:
        from torchyard_core.app.restart_run import RestartRun

        return RestartRun(desktop, self._ended_run, self._callbacks())
