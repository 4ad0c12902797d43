"""Tests of changes to the settings file: all other text is preserved, and invalid values and files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard_core.app.change_settings import SETTINGS, ChangeSettings
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.home import Home
from torchyard_core.user_settings import UserSettings


def changed(tmp_path: Path, before: str | None, *edits: tuple[str, str]) -> str:
    home = Home(tmp_path / "home")
    if before is not None:
        home.path.mkdir()
        home.settings_file.write_bytes(before.encode())
    change = ChangeSettings(home)
    for key, value in edits:
        change.change(key, value)
        assert getattr(change.read()[0], key) == (value or UserSettings.model_fields[key].default)
    return home.settings_file.read_bytes().decode()


def test_each_key_of_the_file_has_a_description() -> None:
    assert {one.key for one in SETTINGS} == set(UserSettings.model_fields)


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        (None, "zone", "Asia/Seoul", "zone: Asia/Seoul\n"),
        ("# mine\n", "zone", "Asia/Seoul", "# mine\nzone: Asia/Seoul\n"),
        ("zone:   UTC   # of the office\nperson: kim\n", "zone", "Asia/Seoul",
         "zone:   Asia/Seoul   # of the office\nperson: kim\n"),
        ("person: 'kim'", "zone", "UTC", "person: 'kim'\nzone: UTC\n"),
        ("person: kim\r\n# end\r\n", "zone", "UTC", "person: kim\r\nzone: UTC\r\n# end\r\n"),
        ("{person: kim}\n", "zone", "UTC", "{person: kim, zone: UTC}\n"),
        ("person: kim # me\nzone: UTC\n# end\n", "person", "", "zone: UTC\n# end\n"),
        ("# mine\nzone: UTC\n# end\n", "zone", "", "# mine\n# end\n"),
        ("zone: UTC\n", "person", "007", "zone: UTC\nperson: '007'\n"),
        ("zone: UTC # mine\n", "zone", "UTC", "zone: UTC # mine\n"),
    ],
)  # fmt: skip
def test_an_edit_keeps_every_other_character(
    tmp_path: Path, before: str | None, key: str, value: str, after: str
) -> None:
    assert changed(tmp_path, before, (key, value)) == after


def test_an_edit_and_its_reset_restore_the_file(tmp_path: Path) -> None:
    text = "# mine\nperson: kim  # me\n\n# end\n"
    assert (
        changed(tmp_path, text, ("zone", "UTC"), ("keep_after_failure", "2h"), ("keep_after_failure", ""), ("zone", ""))
        == text
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("zone", "Europe/Berlim", "did you mean `Europe/Berlin`"),
        ("keep_after_failure", "a while", "must be a length like 30min or 2h"),
        ("bookings_url", "nonsense", "cannot be read"),
        ("notifications", "some", "some"),
        ("zome", "UTC", "did you mean `zone`"),
    ],
)
def test_an_invalid_value_is_refused_and_the_file_stays(tmp_path: Path, key: str, value: str, message: str) -> None:
    home = Home(tmp_path)
    home.settings_file.write_text("person: kim\n")
    with pytest.raises(TorchyardError) as error:
        ChangeSettings(home).change(key, value)
    assert message in error.value.message
    assert "settings.yaml:" not in error.value.message
    assert home.settings_file.read_text() == "person: kim\n"


@pytest.mark.parametrize("text", ["---\nzone: UTC\n", "{zone: UTC}\n", "zone: |\n  UTC\n", "zone: [\n"])
def test_an_unusual_layout_or_an_unreadable_file_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path)
    home.settings_file.write_text(text)
    with pytest.raises(UsageError):
        ChangeSettings(home).change("zone", "")
    assert home.settings_file.read_text() == text
