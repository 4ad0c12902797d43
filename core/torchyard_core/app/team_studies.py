"""The use case "share a sweep's study": copy it from this computer to the team's database, if there is one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torchyard_core.atomic_write import replace_content
from torchyard_core.errors import TorchyardError
from torchyard_core.home import Home
from torchyard_core.launch.runs.sweep_copies import SweepCopies
from torchyard_core.sweeps.trial_table import SweepTable
from torchyard_core.user_settings import read_user_settings

RETRY_S = 60.0
"""Time in seconds after a failed copy during which no other copy is attempted."""


class TeamStudies:
    """Copies studies from this computer to the team's database. Its methods are thread-safe and may block for seconds.

    A file beside each study records the database and the hash of the last copied version, so that an unchanged study is
    not copied again.
    """

    def __init__(self, home: Home, clock: Callable[[], float] = time.monotonic):
        self._home = home
        self._clock = clock
        self._lock = threading.Lock()
        self._failed_at: float | None = None
        self._raised: set[str] = set()
        """The messages of errors since the last successful copy."""

    @property
    def url(self) -> str:
        """The URL of the team's database, or "" if this desktop uses a private calendar or its settings are invalid."""
        try:
            url = read_user_settings(self._home.settings_file).bookings_url or ""
        except TorchyardError:
            return ""  # The code that opens the calendar reports this error.
        return "" if url.startswith("sqlite") else url

    def copy(self, table: SweepTable, *, at_once: bool = False) -> bool:
        """Updates the copy of a sweep's study. The study on this computer must belong to `table`.

        Does nothing without a team's database, or if this version of the study was copied already.

        Args:
            at_once: Whether to try even if another copy failed less than RETRY_S ago.

        Returns:
            True if nothing has to be copied until the study changes.

        Raises:
            TorchyardError: The study could not be copied. The same error is raised only once until a copy succeeds.
        """
        url = self.url
        if not url or not table.study:
            return True
        with self._lock:
            failed = self._failed_at
            if failed is not None and not at_once and self._clock() - failed < RETRY_S:
                return False
            if self._last(table.run_id) == (url, table.study):
                return True
            try:
                self._copy(url, table)
            except Exception as error:  # A faulty study or database must not end a command or a window.
                self._failed_at = self._clock()
                if str(error) in self._raised:
                    return False
                self._raised.add(str(error))
                if isinstance(error, TorchyardError):
                    raise
                raise TorchyardError(f"{type(error).__name__}: {error}", code="study_not_copied") from error
            self._failed_at = None
            self._raised.clear()
            return True

    def url_of_copy(self, run_id: str) -> str:
        """Returns the URL with which Optuna opens the team's studies, or "" if the sweep's study is not among them."""
        url = self.url
        if not url or self._last(run_id)[0] != url:
            return ""
        from torchyard_core.booking.store import dashboard_url

        return dashboard_url(url)

    def _copy(self, url: str, table: SweepTable) -> None:
        from torchyard_core.booking.store import copy_study  # Deferred, since this loads SQLAlchemy.

        copy_study(url, SweepCopies(self._home.sweeps).study_file(table.run_id), study_name(table))
        with suppress(OSError):  # Without the marker file, the study is copied again, which is harmless.
            replace_content(self._mark(table.run_id), json.dumps({"database": url, "study": table.study}) + "\n")

    def _last(self, run_id: str) -> tuple[str, str]:
        """Returns the database URL and the study's hash of the last copy, or empty strings."""
        try:
            mark = json.loads(self._mark(run_id).read_text(encoding="utf-8"))
            return str(mark["database"]), str(mark["study"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", ""

    def _mark(self, run_id: str) -> Path:
        return self._home.sweeps / f"{run_id}.team.json"


def study_name(table: SweepTable) -> str:
    """Returns the name of a sweep's study in the team's database, which is unique because of the run's ID."""
    return f"{table.name} {table.run_id}"
