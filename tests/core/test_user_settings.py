"""Tests of reading and writing `settings.yaml`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from torchyard_core.errors import FileProblem, UsageError
from torchyard_core.user_settings import UserSettings, read_user_settings


def test_without_a_file_everything_is_as_by_default(tmp_path: Path) -> None:
    assert read_user_settings(tmp_path / "settings.yaml") == UserSettings()
    (tmp_path / "settings.yaml").write_text("# nothing yet\n")
    assert read_user_settings(tmp_path / "settings.yaml") == UserSettings()


@pytest.mark.parametrize(
    ("written", "kept"),
    [("30min", timedelta(minutes=30)), ("45m", timedelta(minutes=45)), ("2h", timedelta(hours=2)), ("until_end", None)],
)
def test_how_long_gpus_are_kept_after_a_failure(tmp_path: Path, written: str, kept: timedelta | None) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"keep_after_failure: {written}\n")
    assert read_user_settings(file).keeps_after_failure == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("booking_url: x\n", "did you mean `bookings_url`"),
        ("zone: Europe/Berlin\nperson: [kim]\n", "settings.yaml:2"),
        ("keep_after_failure: a while\n", "30min"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match="settings") as error:
        read_user_settings(file)
    assert message in str(error.value)


def test_a_file_that_is_no_yaml_is_a_file_problem(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("zone: [\n")
    with pytest.raises(FileProblem):
        read_user_settings(file)
