"""Dialog with the user's settings. Each change is applied immediately.

Each setting can be reset to its default. Changes can be undone, except those of the appearance.
"""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import available_timezones

from PySide6.QtCore import QCoreApplication, Qt, QUrl, Signal
from PySide6.QtGui import QCloseEvent, QDesktopServices, QKeySequence, QShortcut
from PySide6.QtWidgets import QCompleter, QDialog, QHBoxLayout, QLineEdit, QToolButton, QWidget

from torchyard_core.app.change_settings import SETTINGS, Setting
from torchyard_core.errors import TorchyardError
from torchyard_gui.bridge.settings_model import SettingsModel
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import ElidedLabel, FormRow, NoticeBar, SectionLabel, Segmented, label, scroll_area
from torchyard_gui.widgets.buttons import push_button, tool_button
from torchyard_gui.widgets.dialogs import dialog_layout
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.next_steps import error_text, quoted

NAMES = 124
WIDTH = 620
"""Width of the dialog in pixels."""


def _at_left(choice: Segmented) -> QWidget:
    """Returns a widget with a choice field on the left. The field keeps its natural width."""
    made = QWidget()
    hbox(choice, None, parent=made, margins=FLUSH)
    return made


class _SettingRow(QWidget):
    """One setting: its name, its field with a note or a problem, and a button that restores the default."""

    changed = Signal(str)
    """Emitted with a valid value that the user entered; "" stands for the default."""

    def __init__(self, setting: Setting, problem_of: Callable[[str], str]) -> None:
        super().__init__()
        self.setting = setting
        self._saved = ""
        self._problem_of = problem_of
        self.text: QLineEdit | None = None
        self.choice: Segmented | None = None
        if setting.choices:
            self.choice = Segmented([(one, self.tr(one.capitalize())) for one in setting.choices])
            self.choice.changed.connect(self.changed)
            self.choice.setAccessibleName(self.tr(setting.title))
            field = _at_left(self.choice)
        else:
            self.text = QLineEdit()
            self.text.setPlaceholderText(self.tr("Default: {value}").format(value=setting.default))
            self.text.textEdited.connect(lambda _: self._check())
            self.text.editingFinished.connect(self._finish)
            field = self.text
        note = quoted(self.tr(setting.sentence))
        if setting.example:
            note += " " + self.tr("Example: {example}").format(example=setting.example)
        self.row = FormRow(self.tr(setting.title), field, note, name_width=NAMES)
        self.reset = _reset_button(setting.title)
        self.reset.clicked.connect(self._reset)
        _beside(self.row, self.reset, parent=self)

    @property
    def value(self) -> str:
        if self.choice is not None:
            return self.choice.value
        assert self.text is not None
        return self.text.text().strip()

    @property
    def has_draft(self) -> bool:
        """Whether the text in the field differs from the saved value."""
        return self.text is not None and self.value != self._saved

    def show_value(self, value: str, *, enabled: bool) -> None:
        """Shows the value from the settings file, where "" stands for the default. Text that the user is editing is
        kept.
        """
        had_draft = self.has_draft
        self._saved = value
        if self.choice is not None:
            self.choice.blockSignals(True)
            self.choice.set_value(value or self.setting.default)
            self.choice.blockSignals(False)
        elif self.text is not None and not had_draft:
            self.text.setText(value)
        self._check()
        self.row.field.setEnabled(enabled)
        self.reset.setEnabled(enabled and bool(value))

    def restore(self) -> None:
        """Discards the text that the user has entered, and shows the saved value again."""
        if self.text is not None:
            self.text.setText(self._saved)
            self._check()

    def _check(self) -> None:
        self.row.set_problem(self._problem_of(self.value) if self.has_draft and self.value else "")

    def _reset(self) -> None:
        self.restore()
        self.changed.emit("")

    def _finish(self) -> None:
        self._check()
        if self.has_draft and not self.row.problem:
            self.changed.emit(self.value)


def _reset_button(name: str) -> QToolButton:
    text = QCoreApplication.translate("SettingsDialog", "Restore the default of “{name}”")
    return tool_button("undo", text.format(name=name))


def _beside(row: QWidget, reset: QWidget, parent: QWidget | None = None) -> QHBoxLayout:
    """Returns a layout of a row and its reset button. The button is level with the field of the row."""
    box = hbox((row, 1), reset, parent=parent, margins=FLUSH, spacing=6)
    box.setAlignment(reset, Qt.AlignmentFlag.AlignTop)
    return box


class SettingsDialog(QDialog):
    """Dialog that edits the settings file. It also shows changes that other programs make to the file."""

    calendar_wanted = Signal()
    """Emitted when the user wants to open the dialog to join or leave a team's calendar."""
    hosts_wanted = Signal()
    mode_wanted = Signal(str)
    """Emitted with the theme that the user chose: system, light or dark."""

    def __init__(self, model: SettingsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Settings"))
        self.model = model
        self.notice = NoticeBar()
        self.notice.action_triggered.connect(self._open_file)
        self.mode = Segmented(
            [("system", self.tr("Same as the system")), ("light", self.tr("Light")), ("dark", self.tr("Dark"))]
        )
        self.mode.setAccessibleName(self.tr("Appearance"))
        self.mode.set_value(theme().mode)
        self.mode.changed.connect(self._choose_mode)
        self.mode_reset = _reset_button(self.tr("Appearance"))
        self.mode_reset.clicked.connect(lambda: self.mode.set_value("system"))
        self.mode_reset.setEnabled(theme().mode != "system")
        appearance = FormRow(
            self.tr("Appearance"),
            _at_left(self.mode),
            self.tr("The colours of the window. Default: same as the system."),
            name_width=NAMES,
        )
        self.rows = {
            one.key: _SettingRow(one, lambda value, key=one.key: self._problem_text(key, value))  # type: ignore[misc]  # mypy cannot infer the type of a lambda's default argument.
            for one in SETTINGS
        }
        for key, row in self.rows.items():
            row.changed.connect(lambda value, key=key: self._change(key, value))
        self._complete_zones()
        self.calendar = push_button(self.tr("Join or leave a team's calendar …"), self._go_to_calendar)
        ssh = label(
            self.tr("Logins use your ~/.ssh/config. Settings of individual hosts are on the Fleet page."),
            ink="2",
            wrap=True,
        )
        self.hosts = push_button(self.tr("Show the Fleet page"), self._go_to_hosts)
        inside = QWidget()
        vbox(
            SectionLabel(self.tr("Window")),
            _beside(appearance, self.mode_reset),
            self.rows["notifications"],
            6,
            SectionLabel(self.tr("Bookings")),
            self.rows["zone"],
            self.rows["bookings_url"],
            hbox(NAMES, self.calendar, None, spacing=0),
            self.rows["person"],
            self.rows["keep_after_failure"],
            6,
            SectionLabel(self.tr("SSH")),
            hbox((ssh, 1), self.hosts),
            None,
            parent=inside,
            margins=(0, 0, 10, 0),
            spacing=10,
        )
        self.undo = push_button(self.tr("Undo"), self._undo, tip=self.tr("Undo the last change (Ctrl+Z)"))
        self.undo.setAutoDefault(False)
        path = ElidedLabel(str(model.path), role="small", ink="3", in_middle=True)
        self.done_ = push_button(self.tr("Close"), self.close, "primary")
        for button in (self.calendar, self.hosts, self.done_):
            button.setAutoDefault(False)
        QShortcut(QKeySequence.StandardKey.Undo, self, self._undo)
        area = scroll_area(inside)
        dialog_layout(self, self.notice, (area, 1), hbox((path, 1), self.undo, self.done_))
        self.setMinimumWidth(WIDTH)
        wanted = inside.sizeHint().height() + 120
        room = parent.window().height() - 60 if parent is not None else wanted
        self.resize(WIDTH, min(wanted, room))
        model.changed.connect(self._show)
        self._show()
        self.mode.button(theme().mode).setFocus()

    def _choose_mode(self, mode: str) -> None:
        self.mode_reset.setEnabled(mode != "system")
        self.mode_wanted.emit(mode)

    def reject(self) -> None:
        """Closes the dialog.

        If fields have invalid values, the dialog restores the saved values of these fields, names the settings in a
        notice, and stays open.
        """
        invalid = [row for row in self.rows.values() if row.row.problem]
        for row in invalid:
            row.restore()
        if invalid:
            names = ", ".join(f"“{row.row.name.text()}”" for row in invalid)
            self.notice.show_notice("warn", self.tr("{names} was not changed.").format(names=names))
            return
        super().reject()

    def closeEvent(self, event: QCloseEvent) -> None:
        if any(row.row.problem for row in self.rows.values()):
            event.ignore()
            self.reject()
            return
        super().closeEvent(event)

    def _show(self) -> None:
        error = self.model.error
        for key, row in self.rows.items():
            row.show_value(self.model.written.get(key, ""), enabled=error is None)
        self.undo.setEnabled(self.model.can_undo)
        if error is not None:
            self.notice.show_error(error, self.tr("Open the file"), closable=False)
        else:
            self.notice.clear()

    def _problem_text(self, key: str, value: str) -> str:
        problem = self.model.problem(key, value)
        return error_text(problem) if problem is not None else ""

    def _change(self, key: str, value: str) -> None:
        self._attempt(lambda: self.model.change(key, value))

    def _undo(self) -> None:
        self._attempt(self.model.undo)

    def _attempt(self, deed: Callable[[], object]) -> None:
        """Makes a change, and shows the result or, if the change fails, the error."""
        try:
            deed()
        except TorchyardError as error:
            self._show()
            self.notice.show_error(error)
            return
        self._show()

    def _complete_zones(self) -> None:
        field = self.rows["zone"].text
        assert field is not None
        completer = QCompleter(sorted(available_timezones()), self)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        field.setCompleter(completer)

    def _go_to_calendar(self) -> None:
        self.close()
        self.calendar_wanted.emit()

    def _go_to_hosts(self) -> None:
        self.close()
        self.hosts_wanted.emit()

    def _open_file(self) -> None:
        QDesktopServices.openUrl(QUrl.fromLocalFile(str(self.model.path)))
