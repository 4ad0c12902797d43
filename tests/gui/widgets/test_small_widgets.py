"""Tests of small widgets: searches, menus, dialogs, notices, toasts and indicators."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtGui import QAction, QUndoStack
from PySide6.QtWidgets import QLineEdit, QMenu, QWidget
from pytestqt.qtbot import QtBot

from torchyard_core import next_steps as steps
from torchyard_gui.widgets import (
    Card,
    ElidedLabel,
    EmptyState,
    FormRow,
    NoticeBar,
    SearchField,
    Segmented,
    Toast,
    screen_reader,
)
from torchyard_gui.widgets.dialogs import ConfirmationDialog
from torchyard_gui.widgets.indicators import MeterBar
from torchyard_gui.widgets.layouts import clear_menu
from torchyard_gui.widgets.next_steps import button_text, with_buttons


def test_escape_empties_a_search_first(qtbot: QtBot) -> None:
    field = SearchField("Find …")
    qtbot.addWidget(field)
    qtbot.keyClicks(field, "gpu")
    qtbot.keyClick(field, Qt.Key.Key_Escape)
    assert field.text() == ""


def test_an_emptied_menu_keeps_actions_of_others_and_no_submenu(qtbot: QtBot) -> None:
    menu, stack = QMenu(), QUndoStack()
    qtbot.addWidget(menu)
    undo = stack.createUndoAction(stack, "Undo")
    for _ in range(3):
        menu.addAction(undo)
        menu.addMenu("More").addAction("own")
        clear_menu(menu)
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        assert menu.isEmpty()
        assert menu.findChildren(QMenu) == []
    assert undo.text().startswith("Undo"), "QMenu.clear() would delete this action"


@pytest.mark.parametrize(("tabs", "result"), [(0, 0), (1, 1)])
def test_enter_presses_the_focused_button_of_a_confirmation(tabs: int, result: int, qtbot: QtBot) -> None:
    """At first, the button that declines has the focus. Enter presses another button only if the user has moved the
    focus there.
    """
    dialog = ConfirmationDialog("Remove it?", "It is deleted.", "Remove", "Keep")
    qtbot.addWidget(dialog)
    with qtbot.waitActive(dialog):
        dialog.open()
    for _ in range(tabs):
        qtbot.keyClick(dialog.focusWidget(), Qt.Key.Key_Tab)
    with qtbot.waitSignal(dialog.finished) as finished:
        qtbot.keyClick(dialog.focusWidget(), Qt.Key.Key_Return)
    assert finished.args == [result]


def test_a_click_on_a_segment_chooses_it_and_says_so_once(qtbot: QtBot) -> None:
    control = Segmented([("host", "By host"), ("group", "By group")])
    qtbot.addWidget(control)
    heard: list[str] = []
    control.changed.connect(heard.append)
    qtbot.mouseClick(control.button("group"), Qt.MouseButton.LeftButton)
    qtbot.mouseClick(control.button("group"), Qt.MouseButton.LeftButton)
    assert heard == ["group"]
    assert control.value == "group"


def test_a_notice_says_which_of_its_buttons_was_pressed(qtbot: QtBot) -> None:
    bar = NoticeBar()
    qtbot.addWidget(bar)
    assert bar.isHidden()
    bar.show_notice("warn", "digits.yaml was changed on disk.", "Load it", "Keep mine")
    with qtbot.waitSignal(bar.action_triggered) as pressed:
        qtbot.mouseClick(bar.buttons[1], Qt.MouseButton.LeftButton)
    assert pressed.args == [1]


def test_a_notice_is_announced_once_and_keeps_its_buttons(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(screen_reader, "EVERY_MS", 0)
    monkeypatch.setattr(screen_reader, "send", lambda event: heard.append(event.message()))
    window = QWidget()
    qtbot.addWidget(window)
    bar, toast = NoticeBar(window), Toast(window)
    bar.show_notice("warn", "The calendar is away.", "Try again")
    assert heard == [], "the text is not visible yet"
    window.show()
    again = bar.buttons[0]
    bar.show_notice("warn", "The calendar is away.", "Try again")
    bar.reword("The calendar is away, for 2 min.")
    assert bar.buttons == [again]
    assert bar.accessibleName() == "The calendar is away, for 2 min."
    bar.show_notice("fail", "Write `python` in it.", is_known=True)
    toast.say("Booked.")
    assert heard == ["The calendar is away.", "Booked."]
    assert bar.text == "Write “python” in it."
    bar.clear()
    bar.show_notice("warn", "The calendar is away.")
    assert heard[2:] == ["The calendar is away."]


def test_a_second_notice_takes_the_firsts_place(qtbot: QtBot) -> None:
    bar = NoticeBar()
    qtbot.addWidget(bar)
    bar.show_notice("warn", "one", "Load it", "Keep mine")
    bar.show_notice("fail", "two")
    assert (bar.text, bar.kind, bar.buttons) == ("two", "fail", [])


def test_a_long_line_is_shortened_and_shown_in_full_on_hover(qtbot: QtBot) -> None:
    line = ElidedLabel("a host with a very long name indeed")
    qtbot.addWidget(line)
    line.resize(90, 20)
    line.show()
    assert line.shown_text().endswith("…")
    assert line.toolTip() == line.text()
    line.resize(600, 20)
    assert line.shown_text() == line.text()
    assert line.toolTip() == ""


def test_a_field_is_outlined_while_something_is_wrong_with_it(qtbot: QtBot) -> None:
    row = FormRow("Hosts", QLineEdit(), "Names of hosts")
    qtbot.addWidget(row)
    row.set_problem("There is no host gpu-x.")
    assert row.field.property("invalid") is True
    assert row.note.text() == "There is no host gpu-x."
    row.set_problem("")
    assert row.field.property("invalid") is False
    assert row.note.text() == "Names of hosts"


def test_unknown_is_not_drawn_as_zero(qtbot: QtBot) -> None:
    bar = MeterBar(None)
    qtbot.addWidget(bar)
    bar.resize(80, 8)
    unknown = bar.grab().toImage()
    bar.set_value(0.0)
    assert bar.grab().toImage() != unknown


def test_an_empty_states_button_does_its_action(qtbot: QtBot) -> None:
    action = QAction("Add a host …")
    empty = EmptyState("No hosts", "Add one to begin.", action)
    qtbot.addWidget(empty)
    with qtbot.waitSignal(action.triggered):
        qtbot.mouseClick(empty.buttons[0], Qt.MouseButton.LeftButton)
    assert empty.buttons[0].text() == "Add a host …"


def test_a_toast_disappears_by_itself(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    window.resize(400, 300)
    window.show()
    toast = Toast(window)
    toast.say("Saved", for_ms=30)
    assert toast.isVisible()
    qtbot.waitUntil(toast.isHidden)


def test_a_card_is_selected_and_deselected(qtbot: QtBot) -> None:
    card = Card()
    qtbot.addWidget(card)
    card.set_selected(True)
    assert card.property("selected") is True
    card.set_selected(False)
    assert card.property("selected") is False


def test_checks_of_several_hosts_have_one_button() -> None:
    trust = steps.TrustKey("gpu-a")
    one, other, every = steps.CheckHosts(("gpu-a",)), steps.CheckHosts(("gpu-b", "gpu-a")), steps.CheckHosts()
    assert with_buttons([one, trust, other, one]) == [steps.CheckHosts(("gpu-a", "gpu-b")), trust]
    assert with_buttons([trust, one, every]) == [trust, every]
    assert with_buttons([one, trust]) == [one, trust]


def test_the_check_of_a_single_host_or_cluster_names_it() -> None:
    checks = [steps.CheckHosts(("hpc",)), steps.CheckHosts(("gpu-a", "gpu-b")), steps.CheckHosts()]
    assert [button_text(step) for step in checks] == ["Check hpc", "Check the hosts", "Check the hosts"]
