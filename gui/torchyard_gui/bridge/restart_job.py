"""An ended run that is launched again from its newest checkpoint: a launch as any other, of what hosts remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from torchyard_core.errors import HostError, Unreachable
from torchyard_core.launch.confirmations import settle
from torchyard_core.launch.runs.history import History
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.topology.file import topology_from_text
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.launch_job import LaunchJob

if TYPE_CHECKING:
    from torchyard_core.launch.launch import Launch


class RestartJob(LaunchJob):
    """From `start` to one of `started`, `failed` and `cancelled`, as a LaunchJob."""

    def __init__(self, run: KnownRun, text: str, file: str, fleet_model: FleetModel, parent: QObject | None = None):
        """`text` is the topology as it was run, from `file`, as the run's record has them."""
        super().__init__(topology_from_text(text, file or run.name), fleet_model, run.name, parent)
        self._run_before = run

    # On the thread

    def _made(self, tell: Callable[..., None]) -> Launch:
        from torchyard_core.launch.launch import Launch
        from torchyard_core.launch.restart import (
            about_a_foreign_run,
            about_foreign_secrets,
            allowed_secrets,
            ended_run,
        )
        from torchyard_core.launch.secrets import secret_values

        fleet, run = self._model.fleet, self._run_before
        reached = fleet.links([host for host in run.hosts if host in fleet.hosts], install=False)
        links = {host: link for host, link in reached.items() if not isinstance(link, HostError)}
        if not links:
            for error in reached.values():
                if isinstance(error, HostError):
                    raise error
            raise Unreachable(run.primary, f"none of the hosts of run {run.run_id} is in the fleet.")
        again = ended_run(run, links, History(self._model.home.history).load(run.run_id))
        settle(about_a_foreign_run(again), self._ask)
        about_secrets = about_foreign_secrets(again)
        settle(about_secrets, self._ask)
        confirmed = again.topology.program.secrets if about_secrets is not None else ()
        return Launch(
            again.source,
            again.topology,
            again.name,
            fleet,
            secret_values(allowed_secrets(again, confirmed)),
            lambda event: None,
            lambda check: tell("check", self._with_remark(check)),
            lambda step, done, total: tell("progress", step, done, total),
            ask=self._ask,
            caches=self._model.home.caches,
            again=again,
            reserving=self._reserving(again.name),
        )
