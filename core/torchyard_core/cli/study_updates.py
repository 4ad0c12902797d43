"""Copies of a sweep's study that commands make: on this computer, and in the team's database."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from torchyard_core.app.team_studies import TeamStudies
from torchyard_core.cli.context import CommandContext
from torchyard_core.cli.output import remark
from torchyard_core.errors import TorchyardError
from torchyard_core.launch.runs.sweep_results import SweepCopies
from torchyard_core.sweeps.trial_table import SweepTable

if TYPE_CHECKING:
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_core.launch.launch import StartedRun

EVERY_S = 10.0
LEAVE_S = 20.0
"""Maximum time in seconds for which the end of the command waits for the last copy."""


def share_study(studies: TeamStudies, table: SweepTable, *, at_once: bool = False) -> None:
    """Copies a sweep's study to the team's database, if there is one. Prints an error, and does not raise it."""
    try:
        studies.copy(table, at_once=at_once)
    except TorchyardError as error:
        what = f"the study of sweep {table.run_id} was not copied to the team's database"
        remark(f"torchyard: {what}: {error.sentence()} The sweep is not affected.")


class StudyUpdates:
    """Copies the study of a sweep to the team's database at intervals while the sweep is followed, and at the end.

    Used as a context manager. Does nothing without a team's database.
    """

    def __init__(self, chosen: CommandContext, fleet: Fleet, started: StartedRun):
        self._studies = TeamStudies(chosen.home)
        self._copies = SweepCopies(chosen.home.sweeps)
        self._fleet = fleet
        self._started = started
        self._ended = threading.Event()
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StudyUpdates:
        if self._studies.url:
            self._thread = threading.Thread(target=self._run, name="study-updates", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LEAVE_S)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._update()
        self._update(at_once=True)

    def _update(self, *, at_once: bool = False) -> None:
        try:
            link = self._fleet.link(self._started.primary.host)
            table = self._copies.update(self._started.run_id, link)
        except TorchyardError:
            return  # The command itself reports a host that does not answer.
        except Exception as error:  # A full disk, for example, must not end the thread with a traceback.
            if str(error) not in self._told:
                self._told.add(str(error))
                remark(
                    f"torchyard: the study of sweep {self._started.run_id} was not copied to this computer: {error}."
                )
            return
        if table is not None:
            share_study(self._studies, table, at_once=at_once)
