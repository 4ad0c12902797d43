"""Combines the facts of hosts with the current users and the bookings of GPUs, for the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.fleet.gpu_occupancy import with_occupancy
from torchyard_core.launch.runs.history import History
from torchyard_core.topology.host_facts import NO_AGENT, HostFacts
from torchyard_gui.bridge.host_states import HostState, state_name
from torchyard_gui.bridge.host_status import CheckedEntry, HostStatus

TELL_AFTER_MS = 50
"""Delay in milliseconds before `changed` is emitted, so that a burst of answers from hosts starts the planner once."""


class HostAvailability(QObject):
    """Combines the facts, the telemetry and the bookings of each host.

    The results are cached, because samples arrive once a second and rarely differ from the previous ones.
    """

    changed = Signal()
    """Emitted when the facts for the planner, or the state of a host, may have changed."""

    def __init__(self, parent: QObject, history: Path) -> None:
        """Creates empty caches.

        Args:
            history: Folder with the records of the runs that were launched from this computer.
        """
        super().__init__(parent)
        self._history = History(history)
        self._own_runs: dict[str, str] = {}
        """Names of this desktop's runs, by ID."""
        self._made: dict[str, tuple[HostFacts, object, HostFacts]] = {}
        """For each host, the facts and the sample from which the result was computed, and the result."""
        self._states: dict[str, HostState] = {}
        """The state of each host when its facts were last requested."""
        self._booked: dict[str, str] = {}
        self._is_later = False
        self._soon = QTimer(self, singleShot=True, interval=TELL_AFTER_MS)
        self._soon.timeout.connect(self.changed)

    def of(self, status: HostStatus) -> HostFacts:
        """Returns the facts of a host for the planner. The same object is returned until these facts change."""
        self._states[status.name] = status.condition
        found, sample, made = self._made.get(status.name, (None, None, None))
        failure = "" if status.facts.checked or status.check is None else check_failure(status)
        if made is None or found is not status.facts or sample is not status.sample or failure != made.check_failure:
            facts = replace(with_occupancy(status.facts, status.sample), check_failure=failure)
            now = self._with_bookings(self._with_own_runs(facts, status.sample))
            made = now if now != made else made
            self._made[status.name] = status.facts, status.sample, made
        return made

    def look(self, name: str, status: HostStatus | None) -> None:
        """Schedules the signal `changed` if the facts of a host for the planner, or the state of the host, have
        changed.
        """
        before, state = self._made.get(name), self._states.get(name)
        if status is None or before is None or self.of(status) is not before[2] or status.condition is not state:
            self.notify()

    def notify(self) -> None:
        """Schedules the signal `changed`."""
        self._soon.start()

    def _with_own_runs(self, facts: HostFacts, sample: Mapping[str, Any] | None) -> HostFacts:
        """Replaces the user's login by the run's name, for each GPU that a run of this desktop uses."""
        users = dict(facts.gpu_users)
        for gpu in sample["gpus"] if sample is not None else ():
            runs = (str(process["replica"]).partition("/")[0] for process in gpu["processes"] if process["replica"])
            name = next(filter(None, map(self._name_of, runs)), "")
            if name and gpu["uuid"] in users:
                users[gpu["uuid"]] = self.tr("your run {name}").format(name=name)
        return replace(facts, gpu_users=users) if users != facts.gpu_users else facts

    def set_booked(self, booked: Mapping[str, str], *, is_later: bool = False) -> None:
        """Sets the GPUs that other users have booked.

        Args:
            booked: Description of the booking for each booked slot.
            is_later: Whether the planned time begins later than now. If so, the current GPU use does not matter.
        """
        if booked != self._booked or is_later != self._is_later:
            self._booked, self._is_later = dict(booked), is_later
            self._made.clear()
            self.notify()

    def _with_bookings(self, facts: HostFacts) -> HostFacts:
        if self._is_later:
            facts = replace(facts, busy_gpus=frozenset(), gpu_users={}, use_known=True)
        if not facts.gpus:
            whose = self._booked.get(f"{facts.name}:cpu")
            return replace(facts, booked_by=whose) if whose else facts
        booked = {gpu.uuid: self._booked[gpu.uuid] for gpu in facts.gpus if gpu.uuid in self._booked}
        return replace(facts, busy_gpus=facts.busy_gpus | frozenset(booked), gpu_bookings=booked) if booked else facts

    def _name_of(self, run_id: str) -> str:
        """Returns the name of a run that was launched from this computer, or "" for any other run."""
        if run_id not in self._own_runs and (record := self._history.load(run_id)) is not None:
            self._own_runs[run_id] = record.name
        return self._own_runs.get(run_id, "")

    def stop(self) -> None:
        self._soon.stop()


def check_failure(status: CheckedEntry) -> str:
    """Returns the name of the state that makes a host or cluster unusable, for `HostFacts.check_failure`."""
    return NO_AGENT if status.condition is HostState.NO_AGENT else state_name(status.condition)
