"""Where a user's own files lie: `TORCHYARD_HOME`, else the platform's folder for application data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path

from torchyard_core.errors import UsageError


@dataclass(frozen=True)
class Home:
    """The user's folder and what is in it. Nothing is made before it is written."""

    path: Path

    @staticmethod
    def default() -> Home:
        """The folder named by the environment, else the platform's. Raises UsageError."""
        named = os.environ.get("TORCHYARD_HOME")
        return Home.at(Path(named)) if named else Home(user_data_path("torchyard", appauthor=False))

    @staticmethod
    def at(path: Path) -> Home:
        """The folder that somebody named. Raises UsageError for a `~name` whose home nobody knows."""
        try:
            return Home(path.expanduser())
        except RuntimeError as error:
            raise UsageError(
                f"{path}: whose home `{path.parts[0]}` is cannot be found out.",
                code="no_home",
                hint="Name the folder in full.",
            ) from error

    @property
    def fleet_file(self) -> Path:
        return self.path / "fleet.yaml"

    @property
    def settings_file(self) -> Path:
        """What this person has chosen: see `torchyard_core.user_settings`."""
        return self.path / "settings.yaml"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    @property
    def history(self) -> Path:
        """A file for each run that this desktop launched."""
        return self.path / "history"

    @property
    def caches(self) -> Path:
        """What can be found out anew: hashes of files that were sent, measured bandwidths."""
        return self.path / "caches"

    @property
    def bookings_file(self) -> Path:
        """The private calendar, where no team's database is set."""
        return self.path / "bookings.sqlite3"

    @property
    def bookings_seen(self) -> Path:
        """What was last seen of a team's calendar, for when its database is away."""
        return self.caches / "bookings.sqlite3"
