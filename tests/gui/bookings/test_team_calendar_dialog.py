"""Tests of the dialog with which users join, create and leave a team's calendar, with a PostgreSQL server."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit

from tests.core.booking.cluster import Cluster
from tests.core.booking.conftest import postgres as postgres
from tests.gui.bookings.conftest import Desk
from torchyard_core.user_settings import read_user_settings
from torchyard_gui.bookings.dialogs.team_calendar_dialog import TeamCalendarDialog

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def dialog(desk: Desk) -> TeamCalendarDialog:
    desk.open()
    desk.wait_until(desk.page.legend.share.isVisible)
    QTest.mouseClick(desk.page.legend.share, LEFT)
    assert isinstance(desk.page.dialog, TeamCalendarDialog)
    return desk.page.dialog


def address_of(server: Cluster, database: str) -> str:
    return f"/{database}?host={server.folder}&port={server.port}"


def test_what_is_wrong_is_said_beside_the_field_or_in_the_answer(desk: Desk, dialog: TeamCalendarDialog) -> None:
    QTest.mouseClick(dialog.test_button, LEFT)
    assert dialog.rows["address"].problem.startswith("The calendar has no address. Write HOST/DATABASE")
    assert dialog.address.hasFocus()
    dialog.address.setText("127.0.0.1:1/gpus")
    dialog.role.setText("two words")
    QTest.mouseClick(dialog.test_button, LEFT)
    assert dialog.rows["role"].problem.startswith("“two words” is not the name of a role.")
    assert dialog.rows["address"].problem == ""
    assert dialog.role.hasFocus()
    dialog.role.setText("kim")
    QTest.keyClick(dialog.address, Qt.Key.Key_Return)
    assert not dialog.ok.isEnabled()
    desk.wait_until(lambda: "does not answer" in dialog.answer.text())
    assert dialog.answer.text().endswith("Check the address.")
    assert dialog.ok.isEnabled()
    assert dialog.password.echoMode() is QLineEdit.EchoMode.Password
    QTest.keyClick(dialog, Qt.Key.Key_Escape)
    assert desk.page.dialog is None
    assert not desk.model.home.settings_file.exists()


def test_a_member_tests_and_joins(desk: Desk, dialog: TeamCalendarDialog, postgres: Cluster) -> None:
    dialog.address.setText(address_of(postgres, postgres.empty()))
    dialog.role.setText("kim")
    QTest.mouseClick(dialog.test_button, LEFT)
    desk.wait_until(lambda: "you are a member, and it has 0 bookings" in dialog.answer.text())
    settings = desk.model.home.settings_file
    assert not settings.exists()
    before = desk.calendar
    QTest.mouseClick(dialog.ok, LEFT)
    desk.wait_until(lambda: desk.page.dialog is None)
    url = unquote(str(read_user_settings(settings).bookings_url))
    assert url == f"postgresql+psycopg://kim@{address_of(postgres, 'team')}"
    desk.wait_until(lambda: desk.calendar is not before and desk.model.has_loaded)
    assert desk.page.toast.isVisible()
    desk.page.acts.team.trigger()
    again = desk.page.dialog
    assert isinstance(again, TeamCalendarDialog)
    assert (again.role.text(), unquote(again.address.text())) == ("kim", address_of(postgres, "team"))
    QTest.mouseClick(again.leave_button, LEFT)
    desk.wait_until(lambda: desk.page.dialog is None)
    assert read_user_settings(settings).bookings_url is None


def test_an_admin_creates_it_sees_the_passwords_once_and_joins(
    desk: Desk, dialog: TeamCalendarDialog, postgres: Cluster
) -> None:
    with postgres.connect("owner", "postgres") as connection:
        connection.execute("CREATE DATABASE anew")
    dialog.what.set_value("create")
    dialog.address.setText(address_of(postgres, "anew"))
    dialog.role.setText("owner")
    dialog.admin.setText("")
    QTest.mouseClick(dialog.ok, LEFT)
    assert dialog.rows["admin"].problem == "The calendar needs an admin."
    QTest.mouseClick(dialog.test_button, LEFT)
    desk.wait_until(lambda: "It has no calendar yet." in dialog.answer.text())
    dialog.admin.setText("ada")
    dialog.members.setText("kim, newcomer")
    QTest.mouseClick(dialog.ok, LEFT)
    desk.wait_until(lambda: dialog.ok.text() == "Join as ada")
    assert dialog.passwords.text().count("password, shown only now") == 1, "ada and kim have theirs"
    dialog.accept()
    desk.wait_until(lambda: dialog.what.value == "join")
    assert (dialog.role.text(), dialog.answer.text()) == ("ada", "Enter the password of ada.")
    QTest.mouseClick(dialog.ok, LEFT)
    desk.wait_until(lambda: desk.page.dialog is None)
    assert "ada@/anew" in str(read_user_settings(desk.model.home.settings_file).bookings_url)
    with postgres.connect("owner", "postgres") as connection:
        connection.execute("DROP DATABASE anew WITH (FORCE)")
        connection.execute("DROP ROLE newcomer")
