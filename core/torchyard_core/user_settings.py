"""The user's settings in `settings.yaml` in `TORCHYARD_HOME`. All keys are optional, and an unknown key is an error."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from torchyard_core.errors import UsageError
from torchyard_core.problems import has_errors
from torchyard_core.topology.model import FrozenModel, Text
from torchyard_core.yaml_io.model_validation import validate
from torchyard_core.yaml_io.yaml_file import parse_document, path_exists, read_text

UNTIL_END = "until_end"
_LENGTH = re.compile(r"(\d{1,5})\s*(min|m|h)")


def _length(text: str) -> str:
    if text != UNTIL_END and not _LENGTH.fullmatch(text):
        raise ValueError(f"must be a length like 30min or 2h, or {UNTIL_END}, not '{text}'")
    return text


class UserSettings(FrozenModel):
    """The content of the settings file."""

    bookings_url: str | None = None
    """The team's calendar, postgresql+psycopg://ROLE@HOST/DB; without it, a private file in the same folder."""
    person: str | None = None
    """Who you are in a private calendar; without it, your login. In a team's calendar it is the database role."""
    zone: str | None = None
    """The time zone of times that you write, like Europe/Berlin; without it, this computer's."""
    keep_after_failure: Annotated[Text, AfterValidator(_length)] = "30min"
    """How long a run that failed keeps the GPUs that were booked for it: 30min, 2h, or until_end."""
    notifications: Literal["all", "failures", "none"] = "all"
    """The messages of the window about runs that are not on the screen."""

    @property
    def keeps_after_failure(self) -> timedelta | None:
        """How long a failed run keeps its GPUs. None means until the end of the booking."""
        match = _LENGTH.fullmatch(self.keep_after_failure)
        if match is None:
            return None
        return timedelta(**{"hours" if match[2] == "h" else "minutes": int(match[1])})


def read_user_settings(path: Path) -> UserSettings:
    """Reads the settings file, or returns the defaults if it does not exist.

    Raises:
        FileProblem: The file cannot be read.
        UsageError: The file has errors, all of which are listed.
    """
    return parse_user_settings(read_text(path), path) if path_exists(path) else UserSettings()


def parse_user_settings(text: str, path: Path) -> UserSettings:
    """Returns the settings in the text of a file. Raises UsageError with all problems."""
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return UserSettings()  # The file contains only comments.
    document = parse_document(text, str(path))
    settings, found = validate(UserSettings, document.data, document.composed.written, document.line)
    problems = (*document.problems, *found)
    if settings is None or has_errors(problems):
        lines = "\n".join(problem.printed(str(path)) for problem in problems)
        raise UsageError(lines, code="settings_problems", hint="Correct the settings file.")
    return settings
