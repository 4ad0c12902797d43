"""Copies of a sweep's study that commands make: on this computer, and in the team's database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchyard_core.app.team_studies import TeamStudies
from torchyard_core.cli.context import CommandContext
from torchyard_core.cli.output import remark
from torchyard_core.cli.run_lookup import history_of
from torchyard_core.errors import TorchyardError
from torchyard_core.launch.runs.sweep_copies import SweepCopies
from torchyard_core.sweeps.trial_table import SweepTable

if TYPE_CHECKING:
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_core.launch.launch import StartedRun

EVERY_S = 10.0
LEAVE_S = 20.0
"""Maximum time in seconds that the command waits at its end for the last copy."""


def share_study(studies: TeamStudies, table: SweepTable, *, at_once: bool = False) -> None:
    """Copies a sweep's study to the team's database, if the team has one. An error is printed but not raised."""
    try:
        studies.copy(table, at_once=at_once)
    except TorchyardError as error:
        what = f"the study of sweep {table.run_id} was not copied to the team's database"
        remark(f"torchyard: {what}: {error.sentence()} The sweep is not affected.")


class StudyUpdates:
    """Copies the study of a followed sweep to the team's database, at intervals and when the sweep has ended.

    At the end of the sweep, all readers of the table call `read_last`, so that the table is fetched only once.
    """

    def __init__(self, chosen: CommandContext, fleet: Fleet):
        self._studies = TeamStudies(chosen.home)
        self._copies = SweepCopies(chosen.home.sweeps)
        self._history = history_of(chosen)
        self._fleet = fleet
        self._fetching = threading.Lock()
        self._ended = threading.Event()
        self._told: set[str] = set()
        self._has_last = False
        self._last: SweepTable | None = None

    @contextmanager
    def following(self, started: StartedRun) -> Iterator[None]:
        """Copies the study to the team's database during and after the block. Has no effect if there is no database."""
        if not self._studies.url:
            yield
            return
        thread = threading.Thread(target=self._run, args=(started,), name="study-updates", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(LEAVE_S)

    def read_last(self, started: StartedRun, state: str) -> SweepTable | None:
        """Copies the table and the study of an ended sweep to this computer. Raises TorchyardError or OSError.

        If the sweep ended before its coordinator wrote a table, a table without trials is derived from this computer's
        history. Returns None if the history does not contain the sweep.

        Args:
            state: The state in which the run of the sweep has ended.
        """
        with self._fetching:
            self._last = self._copies.update(started.run_id, started.primary)
            self._has_last = True
            return self._last or self._table_of_record(started.run_id, state)

    def _table_of_record(self, run_id: str, state: str) -> SweepTable | None:
        record = self._history.load(run_id)
        if record is None:
            return None
        of_run = run_id, record.name, state, record.sweep, record.restarted_from
        return self._copies.table_before_trials(*of_run)

    def _run(self, started: StartedRun) -> None:
        while not self._ended.wait(EVERY_S):
            self._update(started)
        self._update(started, at_once=True)

    def _update(self, started: StartedRun, *, at_once: bool = False) -> None:
        try:
            with self._fetching:
                if self._has_last:
                    table = self._last
                else:
                    table = self._copies.update(started.run_id, self._fleet.link(started.primary.host))
        except TorchyardError:
            return  # The command itself reports a host that does not answer.
        except Exception as error:  # A full disk, for example, must not end the thread with a traceback.
            if str(error) not in self._told:
                self._told.add(str(error))
                remark(f"torchyard: the study of sweep {started.run_id} was not copied to this computer: {error}.")
            return
        if table is not None:
            share_study(self._studies, table, at_once=at_once)
