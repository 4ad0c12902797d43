"""Dialog to join, create or leave the calendar that a team shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QCheckBox, QDialog, QDialogButtonBox, QLineEdit, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.home import Home
from torchyard_core.identity import login_name
from torchyard_core.user_settings import read_user_settings
from torchyard_gui.bookings import labels
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.widgets import FormRow, Segmented, label
from torchyard_gui.widgets.buttons import push_button
from torchyard_gui.widgets.dialogs import dialog_layout
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.widgets.text_labels import set_ink

if TYPE_CHECKING:
    from torchyard_core.app.team_calendar import CalendarFound, Joined, TeamCalendar
    from torchyard_core.booking.store import Member, ServerFound, TeamSetup

Result = TypeVar("Result")
WIDTH = 540
NAMES = 120


class TeamCalendarDialog(QDialog):
    """Dialog to join, create or leave a team's calendar. Show it with `open()`.

    `changed` is emitted with a message once this desktop uses a different calendar.
    """

    changed = Signal(str)

    def __init__(self, model: BookingsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.setWindowTitle(self.tr("Team calendar"))
        self.setMinimumWidth(WIDTH)
        self._focused: QWidget | None = None
        self._made: TeamSetup | None = None
        """The result of *Create*, until the user joins the calendar."""
        role, address = _joined_calendar(model.home)
        self._is_member = bool(address)
        if self._is_member:
            now = self.tr("You are {person} in {place}.").format(person=role, place=address)
        else:
            now = self.tr("Bookings are in a file on this computer, which other users do not see.")
        self.what = Segmented([("join", self.tr("Join")), ("create", self.tr("Create"))])
        self.what.setAccessibleName(self.tr("Join or create"))
        self.explanation = label(ink="2", wrap=True)
        self.address = QLineEdit(address, placeholderText="db.example.org/gpus")
        self.role = QLineEdit(role)
        self.password = QLineEdit(echoMode=QLineEdit.EchoMode.Password)
        self.admin = QLineEdit(login_name())
        self.members = QLineEdit(placeholderText="kim, lee")
        self.rows = {
            "address": self._row(self.tr("Address"), self.address, self.tr("Server and PostgreSQL database")),
            "role": self._row(self.tr("Role"), self.role),
            "password": self._row(self.tr("Password"), self.password),
            "admin": self._row(self.tr("First admin"), self.admin, self.tr("Your role: it may change rules")),
            "members": self._row(self.tr("Members"), self.members, self.tr("Roles to create, separated by commas")),
        }
        self.copy_bookings = QCheckBox(self.tr("Copy the bookings of this computer into it (admins only)"))
        self.test_button = push_button(self.tr("Test"), self.test)
        self.answer = label(wrap=True)
        self.answer.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.passwords = label(wrap=True)
        self.passwords.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.copy_button = push_button(self.tr("Copy"), self._copy_passwords)
        self.outcome = QWidget()
        self.outcome.hide()
        vbox(self.passwords, hbox(self.copy_button, None), parent=self.outcome, margins=FLUSH, spacing=6)
        self.leave_button = push_button(self.tr("Leave"), self.leave, "danger")
        self.leave_button.setToolTip(self.tr("Use the calendar on this computer again; the team's is unchanged"))
        self.ok = push_button("", look="primary")
        self.buttons = QDialogButtonBox()
        self.buttons.addButton(self.ok, QDialogButtonBox.ButtonRole.AcceptRole)
        if self._is_member:
            self.buttons.addButton(self.leave_button, QDialogButtonBox.ButtonRole.ResetRole)
        self.buttons.addButton(self.tr("Cancel"), QDialogButtonBox.ButtonRole.RejectRole)
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        head = label(now, ink="2", wrap=True)
        test = hbox(self.test_button, (self.answer, 1), spacing=12)
        dialog_layout(
            self, head, hbox(self.what, None), self.explanation, *self.rows.values(), self.copy_bookings, test,
            self.outcome, self.buttons,
        )  # fmt: skip
        self.what.changed.connect(self._show_form)
        for field in (self.address, self.role, self.password, self.admin, self.members):
            field.textEdited.connect(lambda _: self._say(""))
        self._show_form()
        self.address.setFocus()

    def test(self) -> None:
        """Connects with the address, role and password in the form and shows the result. Changes nothing."""
        url = self._url()
        if url is None:
            return
        password = self.password.text()
        if self.is_create:
            self._run(lambda team: team.test_server(url, password), self._server_found)
        else:
            self._run(lambda team: team.test(url, password), self._calendar_found)

    def accept(self) -> None:
        """Creates the team's calendar, or joins it. The dialog closes after the user has joined."""
        if self._made is not None:
            self._join_made(self._made)
            return
        url = self._url()
        if url is None:
            return
        password = self.password.text()
        if self.is_create:
            admins, members = _names(self.admin.text()), _names(self.members.text())
            self.rows["admin"].set_problem("" if admins else self.tr("The calendar needs an admin."))
            if admins:
                self._run(lambda team: team.create(url, password, admins, members), self._created)
        else:
            copy = self.copy_bookings.isVisible() and self.copy_bookings.isChecked()
            self._run(lambda team: team.join(url, password, copy=copy), self._joined)

    def leave(self) -> None:
        """Switches back to the private calendar."""
        self._run(lambda team: team.leave(), lambda _: self._close(self.tr("You use the calendar on this computer.")))

    @property
    def is_create(self) -> bool:
        return self.what.value == "create"

    def _calendar_found(self, found: CalendarFound) -> None:
        role = self.tr("an admin") if found.is_admin else self.tr("a member")
        count = (
            self.tr("1 booking") if found.bookings == 1 else self.tr("{count} bookings").format(count=found.bookings)
        )
        text = self.tr("Connected to {place}: you are {role}, and it has {count}.")
        self._say(text.format(place=found.place, role=role, count=count), "run")

    def _server_found(self, found: ServerFound) -> None:
        if found.has_calendar:
            text = self.tr("Connected to {place}. It has a calendar: “Create” adds the members to it.")
        else:
            text = self.tr("Connected to {place}. It has no calendar yet.")
        self._say(text.format(place=found.place), "run")

    def _joined(self, joined: Joined) -> None:
        found = joined.calendar
        text = self.tr("You are {person} in {place}.").format(person=found.person, place=found.place)
        if joined.copied == 1:
            text += " " + self.tr("1 booking was copied.")
        elif joined.copied:
            text += " " + self.tr("{count} bookings were copied.").format(count=joined.copied)
        self._close(text)

    def _created(self, made: TeamSetup) -> None:
        """Shows the members' addresses and passwords, which cannot be shown again, and offers to join the calendar as
        admin.
        """
        self._made = made
        self.passwords.setText("\n".join(made.lines()))
        self.outcome.show()
        for row in self.rows.values():
            row.setEnabled(False)
        self.what.setEnabled(False)
        self.test_button.setEnabled(False)
        first = made.members[0]
        self.ok.setText(self.tr("Join as {role}").format(role=first.name))
        text = self.tr(
            "The calendar is ready. Passwords are shown only now: copy them, and give each member their own."
        )
        self._say(text, "run")

    def _join_made(self, made: TeamSetup) -> None:
        first: Member = made.members[0]
        if first.password is None:  # The role already existed, so only its owner knows its password.
            self._made = None
            self.outcome.hide()
            for row in self.rows.values():
                row.setEnabled(True)
            self.what.setEnabled(True)
            self.test_button.setEnabled(True)
            self.what.set_value("join")
            self.role.setText(first.name)
            self.password.clear()
            self.password.setFocus()
            self._say(self.tr("Enter the password of {role}.").format(role=first.name))
            return
        password, copy = first.password, self.copy_bookings.isChecked()
        self._run(lambda team: team.join(first.url, password, copy=copy), self._joined)

    def _copy_passwords(self) -> None:
        QGuiApplication.clipboard().setText(self.passwords.text())

    def _close(self, text: str) -> None:
        super().accept()
        self.changed.emit(text)

    def _row(self, name: str, field: QLineEdit, note: str = "") -> FormRow:
        return FormRow(name, field, note, name_width=NAMES)

    def _show_form(self) -> None:
        create = self.is_create
        for name in ("admin", "members"):
            self.rows[name].setVisible(create)
        if create:
            self.explanation.setText(self.tr("Creates the calendar in an empty PostgreSQL database, or adds members."))
            self.role.setPlaceholderText("postgres")
            self.rows["role"].set_note(self.tr("A role that may create roles"))
            self.rows["password"].set_note(self.tr("Used once, not kept"))
            self.ok.setText(self.tr("Create"))
        else:
            self.explanation.setText(self.tr("An admin of the team gives you the address, your role and a password."))
            self.role.setPlaceholderText("kim")
            self.rows["role"].set_note("")
            self.rows["password"].set_note(self.tr("Kept in the keyring of this computer; empty if in ~/.pgpass"))
            self.ok.setText(self.tr("Join"))
        self.copy_bookings.setVisible(not self._is_member)
        self._say("")

    def _url(self) -> str | None:
        """Returns the address including the role, or shows why it is invalid and returns None."""
        from torchyard_core.app.team_calendar import team_url
        from torchyard_core.booking.errors import BadRole

        for key in ("address", "role"):
            self.rows[key].set_problem("")
        try:
            url = team_url(self.address.text(), self.role.text())
        except TorchyardError as error:
            row = self.rows["role" if isinstance(error, BadRole) else "address"]
            row.set_problem(labels.error_text(error))
            row.field.setFocus()
            announce(self, labels.error_text(error), urgent=True)
            return None
        return url

    def _run(self, work: Callable[[TeamCalendar], Result], done: Callable[[Result], None]) -> None:
        """Runs work on a background thread. Meanwhile, the buttons that start work are disabled, and Cancel closes the
        dialog.
        """
        home = self.model.home

        def act() -> Result:
            # The database libraries are also imported on this thread, because importing them is slow.
            from torchyard_core.app.team_calendar import TeamCalendar

            return work(TeamCalendar(home))

        def arrived(result: Result) -> None:
            self._set_busy(False)
            done(result)

        self._set_busy(True)
        self._say(self.tr("Connecting …"))
        self.model.jobs.run(act, arrived, self._failed, owner=self)

    def _failed(self, error: TorchyardError) -> None:
        self._set_busy(False)
        self._say(labels.error_text(error), "fail")

    def _set_busy(self, busy: bool) -> None:
        if busy:
            self._focused = self.focusWidget()  # Qt takes the focus away from a button that is disabled.
        for button in (self.ok, self.test_button, self.leave_button):
            button.setEnabled(not busy)
        if not busy and self._focused is not None:
            self._focused.setFocus()

    def _say(self, text: str, ink: str = "2") -> None:
        self.answer.setText(text)
        set_ink(self.answer, ink)
        if text:
            announce(self, text, urgent=ink == "fail")


def _joined_calendar(home: Home) -> tuple[str, str]:
    """Returns the role and the address of the team's calendar according to the settings, or two empty strings."""
    try:
        url = read_user_settings(home.settings_file).bookings_url or ""
    except TorchyardError:
        return "", ""  # The page has already reported this error.
    role, _, address = url.partition("://")[2].rpartition("@")
    return unquote(role), "" if url.startswith("sqlite") else address


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.replace(";", ",").split(",") if name.strip()]
