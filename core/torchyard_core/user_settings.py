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
from torchyard_core.yaml_io.document import parse_document
from torchyard_core.yaml_io.file_reader import path_exists, read_text
from torchyard_core.yaml_io.model_validation import validate

UNTIL_END = "until_end"
_LENGTH = re.compile(r"(\d{1,5})\s*(min|m|h)")


def _length(text: str) -> str:
    if text != UNTIL_END and not _LENGTH.fullmatch(text):
        raise ValueError(f"must be a length like 30min or 2h, or {UNTIL_END}, not '{text}'")
    return text


class UserSettings(FrozenModel):
    """The content of the settings file."""

    bookings_url: str | None = None
    """The URL of the team's calendar, `postgresql+psycopg://ROLE@HOST/DB`. None means a private calendar in a file."""
    person: str | None = None
    """The user's name in a private calendar; None means the login name. A team's calendar uses the database role."""
    zone: str | None = None
    """The time zone of times that the user enters, such as `Europe/Berlin`. None means this computer's time zone."""
    keep_after_failure: Annotated[Text, AfterValidator(_length)] = "30min"
    """How long a failed run keeps its booked GPUs: a duration such as `30min`, or `until_end`."""
    notifications: Literal["all", "failures", "none"] = "all"
    """Which messages the window shows about runs that are not visible: all, those about failures, or none."""

    @property
    def keeps_after_failure(self) -> timedelta | None:
        """How long a failed run keeps its booked GPUs. None means until the end of the booking."""
        match = _LENGTH.fullmatch(self.keep_after_failure)
        if match is None:
            return None
        return timedelta(**{"hours" if match[2] == "h" else "minutes": int(match[1])})


def read_user_settings(path: Path) -> UserSettings:
    """Reads the settings file, or returns the defaults if it does not exist.

    Raises:
        FileProblem: The file cannot be read, or is not valid YAML.
        UsageError: The file has errors, which the message lists.
    """
    return parse_user_settings(read_text(path), path) if path_exists(path) else UserSettings()


def parse_user_settings(text: str, path: Path) -> UserSettings:
    """Returns the settings in the text of a file.

    Raises FileProblem for invalid YAML, and UsageError with all problems.
    """
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return UserSettings()  # The file contains nothing but comments and empty lines.
    document = parse_document(text, str(path))
    settings, found = validate(UserSettings, document.data, document.composed.written, document.line)
    problems = (*document.problems, *found)
    if settings is None or has_errors(problems):
        lines = "\n".join(problem.printed(str(path)) for problem in problems)
        raise UsageError(lines, code="settings_problems", hint="Correct the settings file.")
    return settings
