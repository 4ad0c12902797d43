"""Advice and script profiles for the window, computed on background threads and delivered on the GUI thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from torchyard_core.errors import RunFailed, TorchyardError
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.fleet_model import FleetModel

if TYPE_CHECKING:
    from torchyard_core.advisor.profile import Profile
    from torchyard_core.advisor.recommendation import Advice
    from torchyard_core.app.profile_script import ProfileScript

Failed = Callable[[TorchyardError], None]


class AdviceSource:
    """Computes advice for the edited topology, and measures its script on hosts of the fleet."""

    def __init__(self, fleet: FleetModel) -> None:
        self._fleet = fleet
        self._measuring: ProfileScript | None = None

    def advise(
        self,
        source: TopologyFile,
        facts: Sequence[HostFacts],
        done: Callable[[Advice], None],
        failed: Failed,
        owner: QObject,
        *,
        without_history: bool = False,
    ) -> Job:
        """Predicts the speed of a topology and recommends changes, on a background thread.

        Args:
            facts: Facts of the hosts, with the GPUs that are in use or booked now.
            without_history: Whether to ignore the measurements of past runs.
        """
        home, inventory = self._fleet.home, self._fleet.inventory

        def work() -> Advice:
            from torchyard_core.app.advise import AdviceOptions, advise_topology
            from torchyard_core.app.launch_run import InvalidTopology

            try:
                options = AdviceOptions(without_history=without_history)
                return advise_topology(source, home, inventory, tuple(map(without_users, facts)), facts, options)
            except InvalidTopology as error:
                raise RunFailed(error.first_error.message, code=error.code) from None

        return self._fleet.jobs.run(work, done, failed, owner=owner)

    def measure(
        self, source: TopologyFile, say: Callable[[str], None], done: Callable[[], None], failed: Failed, owner: QObject
    ) -> Job:
        """Measures the script on a background thread. `say` is called with progress messages."""
        model = self._fleet
        model.questions.begin()

        def work() -> tuple[Profile, ...]:
            from torchyard_core.app.desktop import Desktop
            from torchyard_core.app.launch_run import InvalidTopology
            from torchyard_core.app.profile_script import ProfileScript

            desktop = Desktop.open(model.home, model.fleet)
            try:
                self._measuring = ProfileScript(
                    desktop, source, on_message=lambda message: model.jobs.tell(say, message)
                )
                return self._measuring.run()
            except InvalidTopology as error:
                raise RunFailed(error.first_error.message, code=error.code) from None
            finally:
                self._measuring = None
                desktop.calendar.close()

        return model.jobs.run(work, lambda _: done(), failed, owner=owner)

    def stop_measuring(self) -> None:
        """Stops the measurement in progress, which then fails with an error, and withdraws its login question."""
        if self._measuring is not None:
            self._measuring.cancel()
        self._fleet.questions.hush()


def without_users(host: HostFacts) -> HostFacts:
    """Returns the facts of a host as if none of its GPUs were in use or booked."""
    return replace(host, busy_gpus=frozenset(), gpu_users={}, gpu_bookings={}, gpu_exclusions={}, booked_by="")
