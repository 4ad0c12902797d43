"""The hosts as the planner is to see them: what was found there, with who uses their GPUs now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.fleet.gpu_occupancy import with_use
from torchyard_core.launch.runs.history import History
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.host_status import HostStatus

TELL_AFTER_MS = 50
"""Hosts answer in bursts; who plans on them plans once for each."""


class PlannedHosts(QObject):
    """Keeps what it made of each host: samples come once a second, and mostly say the same."""

    changed = Signal()
    """What the planner sees is another."""

    def __init__(self, parent: QObject, history: Path) -> None:
        """`history`: the folder of the runs that were launched from here."""
        super().__init__(parent)
        self._history = History(history)
        self._own_runs: dict[str, str] = {}
        """Names by ID."""
        self._made: dict[str, tuple[HostFacts, object, HostFacts]] = {}
        """By host: what was found, the sample that was laid over it, and what came of it."""
        self._booked: dict[str, str] = {}
        self._is_later = False
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(TELL_AFTER_MS)
        self._soon.timeout.connect(self.changed)

    def of(self, status: HostStatus) -> HostFacts:
        """One host; the same object for as long as nothing that matters has changed."""
        found, sample, made = self._made.get(status.name, (None, None, None))
        if made is None or found is not status.facts or sample is not status.sample:
            now = self._with_bookings(self._with_own_runs(with_use(status.facts, status.sample), status.sample))
            made = now if now != made else made
            self._made[status.name] = status.facts, status.sample, made
        return made

    def look(self, name: str, status: HostStatus | None) -> None:
        """Tells of a host that is another to the planner than before."""
        before = self._made.get(name)
        if status is None or before is None or self.of(status) is not before[2]:
            self.tell()

    def tell(self) -> None:
        """Tells, soon, whatever has changed."""
        self._soon.start()

    def _with_own_runs(self, facts: HostFacts, sample: Mapping[str, Any] | None) -> HostFacts:
        """Whoever is told that a GPU is theirs wants to know by what."""
        users = dict(facts.gpu_users)
        for gpu in sample["gpus"] if sample is not None else ():
            runs = (str(process["replica"]).partition("/")[0] for process in gpu["processes"] if process["replica"])
            name = next(filter(None, map(self._name_of, runs)), "")
            if name and gpu["uuid"] in users:
                users[gpu["uuid"]] = self.tr("your run {name}").format(name=name)
        return replace(facts, gpu_users=users) if users != facts.gpu_users else facts

    def set_booked(self, booked: Mapping[str, str], *, is_later: bool = False) -> None:
        """What others have booked, by slot, with who that is: it is not to be had. `is_later`: planned is for a time of
        which who is on a GPU now says nothing."""
        if booked != self._booked or is_later != self._is_later:
            self._booked, self._is_later = dict(booked), is_later
            self._made.clear()
            self.tell()

    def _with_bookings(self, facts: HostFacts) -> HostFacts:
        if self._is_later:
            facts = replace(facts, busy_gpus=frozenset(), gpu_users={}, use_known=True)
        if not facts.gpus:
            whose = self._booked.get(f"{facts.name}:cpu")
            return replace(facts, booked_by=whose) if whose else facts
        booked = {gpu.uuid: self._booked[gpu.uuid] for gpu in facts.gpus if gpu.uuid in self._booked}
        return replace(facts, busy_gpus=facts.busy_gpus | frozenset(booked), gpu_bookings=booked) if booked else facts

    def _name_of(self, run_id: str) -> str:
        """Of a run that was launched from here; "" for one that was not."""
        if run_id not in self._own_runs and (record := self._history.load(run_id)) is not None:
            self._own_runs[run_id] = record.name
        return self._own_runs.get(run_id, "")

    def stop(self) -> None:
        self._soon.stop()
