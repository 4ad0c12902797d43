"""The folder of a user's Torchyard files: `TORCHYARD_HOME`, by default the platform's folder for application data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path

from torchyard_core.errors import UsageError


def expand_user(path: Path | str) -> Path:
    """Replaces a leading `~` or `~name` by the home folder.

    Leaves the path unchanged if that folder is unknown, as a shell does.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


@dataclass(frozen=True)
class Home:
    """The paths of a user's Torchyard files. Folders are created when the first file in them is written."""

    path: Path

    @staticmethod
    def default() -> Home:
        """Returns the folder named by TORCHYARD_HOME, or the platform's data folder. Raises UsageError as `at` does."""
        named = os.environ.get("TORCHYARD_HOME")
        return Home.at(Path(named)) if named else Home(user_data_path("torchyard", appauthor=False))

    @staticmethod
    def at(path: Path) -> Home:
        """Returns the folder at a path entered by the user.

        Raises UsageError if the path begins with `~` or `~name` and that home folder is unknown.
        """
        try:
            return Home(path.expanduser())
        except RuntimeError as error:
            message = f"{path}: whose home `{path.parts[0]}` is cannot be found out."
            raise UsageError(message, code="no_home", hint="Name the folder in full.") from error

    @property
    def fleet_file(self) -> Path:
        return self.path / "fleet.yaml"

    @property
    def settings_file(self) -> Path:
        """The file of user settings; see `torchyard_core.user_settings`."""
        return self.path / "settings.yaml"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    @property
    def history(self) -> Path:
        """The folder with one file for each run that this desktop has launched."""
        return self.path / "history"

    @property
    def sweeps(self) -> Path:
        """The folder with copies of the tables and studies of sweeps."""
        return self.path / "sweeps"

    @property
    def run_notes(self) -> Path:
        """The file with the user's notes and tags of runs."""
        return self.path / "run-notes.json"

    @property
    def caches(self) -> Path:
        """The folder for data that can be computed or measured again, such as file hashes and bandwidths."""
        return self.path / "caches"

    @property
    def bookings_file(self) -> Path:
        """The file of the private calendar, used if the settings name no team database."""
        return self.path / "bookings.sqlite3"

    @property
    def bookings_seen(self) -> Path:
        """The last copy of the team's calendar, used while the team's database is unavailable."""
        return self.caches / "bookings.sqlite3"
