"""Opens the settings by key and from the rail, and changes, corrects, undoes and resets them.

Another program also changes them.
"""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QApplication, QMenu

from tests.window.user import User
from torchyard_gui.theme.theme import theme
from torchyard_gui.windows.settings_dialog import SettingsDialog

TEXT = "# mine\nperson: kim   # me\n"


def journey(user: User) -> None:
    file = user.arguments[0].settings_file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(TEXT)
    user.key("ctrl+comma")
    dialog = opened(user)
    user.expect(lambda: dialog.rows["person"].text.text() == "kim", "the file is shown")
    user.picture("settings")

    zone = user.gui(lambda: dialog.rows["zone"].text)
    user.click(zone)
    user.type("Asia/Seul")
    user.expect(lambda: "did you mean “Asia/Seoul”" in dialog.rows["zone"].row.note.text(), "the error is at the field")
    user.picture("invalid")
    assert file.read_text() == TEXT
    user.key("BackSpace", "BackSpace")
    user.type("oul")
    user.key("Escape")  # Escape closes the completion list.
    user.key("Return")
    user.expect(lambda: file.read_text() == f"{TEXT}zone: Asia/Seoul\n", "Enter writes the zone")
    user.click(user.gui(lambda: dialog.rows["notifications"].choice.button("failures")))
    user.expect(lambda: file.read_text() == f"{TEXT}zone: Asia/Seoul\nnotifications: failures\n", "a click writes")
    user.click(user.button("Undo", dialog))
    user.click(user.button("Undo", dialog))
    user.expect(lambda: file.read_text() == TEXT, "two changes are undone")

    user.gui(lambda: file.write_text("person: lee\nkeep_after_failure: 2h\n"))
    user.expect(lambda: dialog.rows["keep_after_failure"].text.text() == "2h", "another program's change is shown")
    user.click(user.gui(lambda: dialog.rows["person"].reset))
    user.expect(lambda: file.read_text() == "keep_after_failure: 2h\n", "the default is restored")

    user.click(user.gui(lambda: dialog.mode.button("dark")))
    user.expect(lambda: theme().is_dark, "the window is dark")
    user.picture("settings-dark")
    user.gui(lambda: file.write_text("zone: [\n"))
    user.expect(dialog.notice.isVisible, "an invalid file is reported")
    user.picture("invalid-file")
    user.gui(lambda: file.write_text(TEXT))
    user.expect(lambda: not dialog.notice.isVisible(), "the corrected file is read")
    user.key("Escape")
    user.expect(lambda: QApplication.activeWindow() is user.window, "Esc closes the settings")

    user.click(user.gui(lambda: user.window.rail.settings_button))
    dialog = opened(user)
    user.click(user.button("Join or leave a team's calendar …", dialog))
    user.expect(lambda: user.window.current == "bookings", "the Bookings page is shown")
    user.expect(lambda: "calendar" in QApplication.activeWindow().windowTitle().lower(), "the calendar dialog is open")
    user.picture("calendar")
    user.key("Escape")
    user.expect(lambda: QApplication.activeWindow() is user.window, "Esc closes it")
    user.key("F10")
    user.expect(lambda: isinstance(QApplication.activePopupWidget(), QMenu), "the menu opens")
    user.key("e", "Up", "Return")  # Choose the last entry of the menu Edit.
    opened(user)
    user.key("Escape")


def opened(user: User) -> Any:
    user.expect(lambda: isinstance(QApplication.activeWindow(), SettingsDialog), "the settings are open")
    return user.gui(QApplication.activeWindow)
