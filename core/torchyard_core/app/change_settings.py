"""The use case "show and change the user's settings", shared by the command line and the window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchyard_core.atomic_write import write_atomically
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.home import Home
from torchyard_core.problems import did_you_mean
from torchyard_core.user_settings import UserSettings, parse_user_settings
from torchyard_core.yaml_io.document import Document, parse_document
from torchyard_core.yaml_io.file_reader import path_exists, read_text
from torchyard_core.yaml_io.in_place_edits import InPlaceEdits, UnsupportedStyle
from torchyard_core.yaml_io.model_validation import validate
from torchyard_core.yaml_io.writer import dump_flow

PRIVATE_MODE = 0o600


@dataclass(frozen=True)
class Setting:
    """The description of a key of the settings file."""

    key: str
    title: str
    sentence: str
    default: str
    """A description of the value that applies if the key is missing."""
    example: str = ""
    choices: tuple[str, ...] = ()
    """The permitted values; empty if they are not a fixed list."""


SETTINGS = (
    Setting("zone", "Time zone", "The zone of times that you enter.", "this computer's", "Europe/Berlin"),
    Setting(
        "notifications",
        "Run messages",
        "The messages of the window about runs that ended or restarted.",
        "all",
        choices=("all", "failures", "none"),
    ),
    Setting(
        "bookings_url",
        "Calendar",
        "The address of the team's calendar.",
        "private, on this computer",
        "postgresql+psycopg://kim@db.example.org/gpus",
    ),
    Setting(
        "person",
        "Your name",
        "Your name in a private calendar. A team's calendar has your database role.",
        "your login",
        "kim",
    ),
    Setting(
        "keep_after_failure",
        "After a failure",
        "How long booked GPUs stay booked after their run failed; `until_end` keeps them until the booking ends.",
        "30min",
        "2h",
    ),
)
"""The settings in the order in which they are shown."""


class ChangeSettings:
    """Reads and changes the settings file of a home folder. Edits preserve comments and the text of other settings."""

    def __init__(self, home: Home):
        self.path = home.settings_file

    def read(self) -> tuple[UserSettings, Mapping[str, str]]:
        """Returns the settings, and the values of the keys in the file. Raises the errors of `read_user_settings`."""
        text = self._text()
        settings = parse_user_settings(text, self.path)
        return settings, {key: getattr(settings, key) for key, value in _data(text).items() if value is not None}

    def check(self, key: str, value: str) -> None:
        """Checks a new value of a key.

        An empty value is permitted. Raises UsageError or another TorchyardError for an invalid value.
        """
        setting(key)
        if not value:
            return
        _, problems = validate(UserSettings, {key: value}, {}, lambda place: None)
        if problems:
            raise UsageError(problems[0].message, code="bad_setting")
        if key == "zone":
            zone_of(value)
        elif key == "bookings_url":
            from torchyard_core.booking.store.database_engine import parsed

            parsed(value)

    def problem(self, key: str, value: str) -> TorchyardError | None:
        """Returns the reason why a new value is invalid, or None if the value is valid."""
        try:
            self.check(key, value)
        except TorchyardError as error:
            return error
        return None

    def change(self, key: str, value: str) -> str:
        """Writes the value of a key. An empty value removes the key, and the default then applies.

        Returns the previous value, or "" if the file did not contain the key. Raises the errors of `read` and `edited`.
        """
        _, before = self.read()
        self.write(self.edited(key, value))
        return before.get(key, "")

    def edited(self, key: str, value: str) -> str:
        """Returns the text of the file with a new value for a key.

        Raises the errors of `read` and `check`, and UsageError if the layout of the file does not support the change.
        """
        self.check(key, value)
        settings, before = self.read()
        text = self._text()
        if value == before.get(key, ""):
            return text
        old = _data(text)
        new = {**old, key: value} if value else {one: other for one, other in old.items() if one != key}
        edited = _with_edit(text, old, new)
        wanted = settings.model_copy(update={key: value or UserSettings.model_fields[key].default})
        if edited is None or self._parsed(edited) != wanted:
            raise UsageError(
                f"`{key}` cannot be changed in place: the layout of {self.path} is unusual.",
                code="settings_problems",
                hint=f"Write `{key}: {dump_flow(value)}` into it." if value else f"Remove `{key}` from it.",
            )
        return edited

    def write(self, text: str) -> None:
        """Writes the text to the settings file, unless the file already contains it.

        Raises FileProblem if the file cannot be written.
        """
        if text != self._text():
            write_atomically(self.path, text, PRIVATE_MODE)

    def _text(self) -> str:
        return read_text(self.path) if path_exists(self.path) else ""

    def _parsed(self, text: str) -> UserSettings | None:
        try:
            return parse_user_settings(text, self.path)
        except TorchyardError:
            return None


def setting(key: str) -> Setting:
    """Returns the description of a key. Raises UsageError for an unknown key, with a similar key as a suggestion."""
    for one in SETTINGS:
        if one.key == key:
            return one
    keys = [one.key for one in SETTINGS]
    message = f"there is no setting `{key}`{did_you_mean(key, keys)}"
    raise UsageError(message, code="unknown_setting", hint=f"The settings: {', '.join(keys)}.")


def _data(text: str) -> dict[str, Any]:
    return dict(parse_document(text, "settings").data or {}) if _has_content(text) else {}


def _has_content(text: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


def _with_edit(text: str, old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Returns the text with the new values, or None if the values cannot be replaced in place in this file."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if text and not text.endswith("\n"):
        text += newline
    if not old:
        return text + "".join(f"{key}: {dump_flow(value)}{newline}" for key, value in new.items())
    document = parse_document(text, "settings")
    if not new:
        return _without_last_key(document)
    edits = InPlaceEdits(document)
    try:
        edits.record((), old, new)
        return edits.text_with_edits(0, len(text))
    except UnsupportedStyle:
        return None


def _without_last_key(document: Document) -> str | None:
    """Removes the line of the only key from the text of a file.

    Returns None if the key's value has several lines, or if the line does not begin with the key.
    """
    [(place, number)] = [(place, line) for place, line in document.composed.key_lines.items() if len(place) == 1]
    lines = document.text.splitlines(keepends=True)
    left = "".join([*lines[: number - 1], *lines[number:]])
    return left if lines[number - 1].startswith(f"{place[0]}:") and not _has_content(left) else None
