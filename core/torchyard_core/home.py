"""Folder of the user's own files: `TORCHYARD_HOME`, else the platform's folder for application data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path

from torchyard_core.errors import UsageError


def expand_user(path: Path | str) -> Path:
    """Replaces a leading `~` or `~name`; leaves the path as it is, like a shell, where that home is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


@dataclass(frozen=True)
class Home:
    """Paths of the user's own files. Folders are created when the first file in them is written."""

    path: Path

    @staticmethod
    def default() -> Home:
        """The folder named by the environment, else the platform's. Raises UsageError."""
        named = os.environ.get("TORCHYARD_HOME")
        return Home.at(Path(named)) if named else Home(user_data_path("torchyard", appauthor=False))

    @staticmethod
    def at(path: Path) -> Home:
        """The folder at a path that the user named. Raises UsageError for a `~name` whose home is unknown."""
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
        """The user's settings; see `torchyard_core.user_settings`."""
        return self.path / "settings.yaml"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    @property
    def history(self) -> Path:
        """Folder with a file for each run that this desktop launched."""
        return self.path / "history"

    @property
    def run_notes(self) -> Path:
        """Notes and tags of runs."""
        return self.path / "run-notes.json"

    @property
    def caches(self) -> Path:
        """Values that can be measured again: hashes of uploaded files, bandwidths."""
        return self.path / "caches"

    @property
    def bookings_file(self) -> Path:
        """The private calendar, where no team's database is set."""
        return self.path / "bookings.sqlite3"

    @property
    def bookings_seen(self) -> Path:
        """The last copy of a team's calendar, read while its database cannot be reached."""
        return self.caches / "bookings.sqlite3"
