"""Tests of the Fleet page with mouse and keyboard, without reachable hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from tests.gui.fleet.hosts import WITHIN_MS, Show, press
from torchyard_core.errors import KeyChanged, Unreachable
from torchyard_core.fleet.host_check import failed_check
from torchyard_core.home import Home
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.fleet.host_dialogs import AddHostDialog, RemoveHostsDialog
from torchyard_gui.fleet.page import FleetPage
from torchyard_gui.theme.theme import theme

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def three(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot) -> Iterator[FleetModel]:
    """The model of a fleet with three unreachable hosts, and a ~/.ssh/config."""
    user = tmp_path / "user"
    (user / ".ssh").mkdir(parents=True)
    (user / ".ssh" / "config").write_text("Host alpha beta\n  User lee\nHost *.example.org\n  Port 2222\n")
    monkeypatch.setenv("HOME", str(user))
    home.path.mkdir(parents=True)
    hosts = [{"name": name, "labels": {"rack": rack}} for name, rack in zip("abc", ("r1", "r1", "r2"), strict=True)]
    home.fleet_file.write_text(yaml.safe_dump({"version": 1, "hosts": hosts}))
    model = FleetModel(home, home.fleet_file)
    yield model
    model.close()


def find(model: FleetModel, name: str, error: Unreachable | KeyChanged) -> None:
    """Sets the result of a check."""
    model._under_way[name] = job = model.jobs.run(lambda: None)
    model._arrived(name, job, "checking", failed_check(name, error.state, error))


def write(qtbot: QtBot, dialog: AddHostDialog, **texts: str) -> None:
    for key, text in texts.items():
        dialog.fields[key].clear()
        qtbot.keyClicks(dialog.fields[key], text)


def test_an_empty_fleet_says_what_to_do_first(home: Home, show: Show, qtbot: QtBot) -> None:
    home.path.mkdir(parents=True)
    home.fleet_file.write_text("version: 1\nhosts: []\n")
    page = show(FleetModel(home, home.fleet_file))
    assert page.empty.isVisible()
    assert not page.details.isVisible()
    press(qtbot, page.empty.buttons[0])
    assert isinstance(page.dialog, AddHostDialog)
    page.dialog.reject()


def test_arrows_choose_and_the_panel_follows(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    page.list.setFocus()
    assert page.list.chosen == ["a"]  # The first host is selected by default.
    qtbot.keyClick(page.list, Qt.Key.Key_Down)
    assert page.list.chosen == ["b"]
    assert page.details.title.text() == "b"
    qtbot.keyClick(page.list, Qt.Key.Key_Down, Qt.KeyboardModifier.ShiftModifier)
    assert page.list.chosen == ["b", "c"]
    assert page.details.title.text() == "2 hosts selected"


def test_a_click_on_a_card_chooses_it(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    rect = page.list.card_rect(page.rows.index_of("b"))
    qtbot.mouseClick(page.list.viewport(), LEFT, pos=rect.topLeft() + QPoint(40, 20))
    assert page.list.chosen == ["b"]


def test_search_finds_by_name_label_and_state_and_keeps_what_is_chosen(
    three: FleetModel, show: Show, qtbot: QtBot
) -> None:
    page = show(three)
    page.list.choose("c")
    qtbot.keyClicks(page.search_field, "rack=r2")
    assert page.rows.names == ["c"]
    assert page.list.chosen == ["c"]
    page.search_field.clear()
    qtbot.keyClicks(page.search_field, "nowhere")
    assert page.nothing_found.isVisible()
    qtbot.keyClick(page.search_field, Qt.Key.Key_Escape)
    assert page.rows.names == ["a", "b", "c"]


def test_each_trouble_stands_on_its_card_with_a_button(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    find(three, "a", Unreachable("a", "port 22 of a refused.", hint="Is sshd running there?"))
    find(three, "b", KeyChanged("b", "the host key of b has changed.", fingerprint="SHA256:x"))
    qtbot.waitUntil(lambda: page.list.action_button("b") is not None, timeout=WITHIN_MS)
    qtbot.waitUntil(
        lambda: [page.list.action_button(name).text() for name in "abc"] == ["Check again", "Trust …", "Check"],  # type: ignore[union-attr]
        timeout=WITHIN_MS,
    )
    page.list.choose("a")
    assert page.details.problems.text() == "Port 22 of a refused. Is sshd running there?"
    spoken = page.rows.index_of("a").data(Qt.ItemDataRole.AccessibleTextRole)
    assert spoken.startswith("a, unreachable since ")


def do_not_overlap(page: FleetPage) -> bool:
    """Asserts that cards are in order, and that the button of the first card lies on that card."""
    rects = [page.list.card_rect(page.rows.index_of(name)) for name in "abc"]
    button = page.list.action_button("a")
    is_apart = rects[0].bottom() < rects[1].top() < rects[1].bottom() < rects[2].top()
    return is_apart and button is not None and rects[0].contains(button.geometry())


def test_cards_do_not_overlap_however_narrow(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    find(three, "a", Unreachable("a", "word " * 40, hint="word " * 40))
    for width in (1400, 900, 760):
        page.window().resize(width, 700)
        qtbot.waitUntil(lambda: do_not_overlap(page))


def test_a_host_is_added_by_typing_with_what_is_wrong_beside_its_field(
    three: FleetModel, show: Show, qtbot: QtBot
) -> None:
    page = show(three)
    qtbot.keyClick(page, Qt.Key.Key_H, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    dialog = page.dialog
    assert isinstance(dialog, AddHostDialog)
    qtbot.waitUntil(lambda: dialog._known.stringList() == ["alpha", "beta"], timeout=WITHIN_MS)
    write(qtbot, dialog, name="a", port="70000")
    assert "already" in dialog.rows["name"].note.text()
    assert "at most 65535" in dialog.rows["port"].note.text()
    press(qtbot, dialog.add_button)
    assert dialog.isVisible()
    write(qtbot, dialog, name="alpha", port="2200")
    assert dialog.rows["port"].note.text() == ""
    assert "~/.ssh/config says how" in dialog.rows["address"].note.text()
    three.check = lambda names=None: None  # type: ignore[method-assign]  # no host is contacted
    dialog.fields["name"].completer().popup().hide()
    qtbot.keyClick(dialog.fields["port"], Qt.Key.Key_Return)
    assert page.list.chosen == ["alpha"]
    assert {"name": "alpha", "port": 2200} in yaml.safe_load(three.fleet_file.read_text())["hosts"]


def test_names_are_completed_from_the_ssh_configuration(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    page.add_host()
    dialog = page.dialog
    assert isinstance(dialog, AddHostDialog)
    qtbot.waitUntil(lambda: bool(dialog._known.stringList()), timeout=WITHIN_MS)
    field = dialog.fields["name"]
    qtbot.keyClicks(field, "et")
    popup = field.completer().popup()
    qtbot.waitUntil(popup.isVisible, timeout=WITHIN_MS)
    edge = popup.grab().toImage().pixelColor(0, popup.height() // 2)
    assert edge == theme().color("line"), "the list has a border"
    qtbot.keyClick(popup, Qt.Key.Key_Down)
    qtbot.keyClick(popup, Qt.Key.Key_Return)
    assert field.text() == "beta"
    dialog.reject()


def test_a_fleet_file_that_cannot_be_written_is_told_in_the_dialog(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    page.add_host()
    dialog = page.dialog
    assert isinstance(dialog, AddHostDialog)
    write(qtbot, dialog, name="d")
    three.fleet_file.write_text("version: 1\nhosts: [\n")
    press(qtbot, dialog.add_button)
    assert dialog.isVisible()
    assert "fleet.yaml" in dialog.notice.text
    dialog.reject()


def test_delete_asks_first_and_keeps_when_told_so(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    page.list.setFocus()
    page.list.choose("b")
    qtbot.keyClick(page.list, Qt.Key.Key_Delete)
    dialog = page.dialog
    assert isinstance(dialog, RemoveHostsDialog)
    press(qtbot, dialog.no)
    assert three.status("b") is not None
    qtbot.keyClick(page.list, Qt.Key.Key_Delete)
    dialog = page.dialog
    assert isinstance(dialog, RemoveHostsDialog)
    press(qtbot, dialog.yes)
    assert three.status("b") is None
    assert page.rows.names == ["a", "c"]


def test_a_broken_fleet_file_is_told_on_the_page_until_it_is_mended(
    three: FleetModel, show: Show, qtbot: QtBot
) -> None:
    page = show(three)
    good = three.fleet_file.read_text()
    three.fleet_file.write_text("version: 1\nhosts:\n  - {name: gpu-a, adress: x}\n")
    qtbot.waitUntil(page.notice.isVisible, timeout=WITHIN_MS)
    assert "fleet.yaml:3" in page.notice.text
    assert page.rows.names == ["a", "b", "c"]
    three.fleet_file.write_text(good)
    press(qtbot, page.notice.buttons[0])
    assert not page.notice.isVisible()


def test_the_command_that_does_the_same_can_be_copied(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    page.list.choose("b")
    page.acts.copy.trigger()
    assert QApplication.clipboard().text().endswith("hosts check b")
    QApplication.clipboard().clear()


def test_every_action_has_a_shortcut_a_tip_and_a_menu(three: FleetModel, show: Show) -> None:
    page = show(three)
    for action in page.page_actions():
        assert action.text()
        assert not action.shortcut().isEmpty()
        assert action.toolTip()
        assert action.property("menu")


def test_the_page_asks_hosts_once_by_itself(three: FleetModel, qtbot: QtBot) -> None:
    asked: list[object] = []
    three.check = lambda names=None: asked.append(names)  # type: ignore[method-assign]
    page = FleetPage(three)
    qtbot.addWidget(page)
    qtbot.addWidget(page.bar)
    page.show()
    page.hide()
    assert asked == [None]


def test_hosts_without_requests_are_not_called_silent(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    three.has_looked = False
    three.hosts_changed.emit()
    assert page.summary.text() == "Hosts not asked yet"
    three.has_looked = True
    find(three, "a", Unreachable("a", "a did not answer."))
    qtbot.waitUntil(lambda: page.summary.text() == "0 of 3 hosts answer")


def test_no_button_of_the_panel_stands_alone_in_its_row(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)

    def rows() -> list[int]:
        tops = [button.y() for button in page.details.buttons.values() if button.isVisible()]
        return [tops.count(top) for top in sorted(set(tops))]

    page.list.choose("a")
    qtbot.waitUntil(lambda: rows() == [3])
    assert all(button.width() >= button.sizeHint().width() for button in page.details.buttons.values())
    find(three, "b", KeyChanged("b", "the host key of b has changed.", fingerprint="SHA256:x"))
    page.list.choose("b")
    qtbot.waitUntil(lambda: rows() == [2, 2])


def test_there_is_nothing_to_search_in_where_there_is_no_host(home: Home, show: Show) -> None:
    home.path.mkdir(parents=True)
    home.fleet_file.write_text("version: 1\nhosts: []\n")
    page = show(FleetModel(home, home.fleet_file))
    assert not page.search_field.isVisible()
