"""Tests of the Fleet page with mouse and keyboard; no host is reachable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from tests.gui.fleet.hosts import WITHIN_MS, Show, press
from tests.gui.geometry.painted_text import painted_texts
from torchyard_core.app.undeploy_hosts import Removed
from torchyard_core.errors import AgentMissing, AgentRefused, KeyChanged, Unreachable, agent_advice
from torchyard_core.fleet.host_check import READY, HostCheck, failed_check
from torchyard_core.fleet.host_key_trust import ShownKey
from torchyard_core.fleet.inventory import Host
from torchyard_core.home import Home
from torchyard_core.next_steps import DeployAgent, SetHostField
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import HostActivity
from torchyard_gui.fleet.dialogs.add_host_dialog import AddHostDialog
from torchyard_gui.fleet.dialogs.edit_hosts_dialog import EditHostsDialog
from torchyard_gui.fleet.dialogs.host_form import HostForm
from torchyard_gui.fleet.dialogs.host_key_dialogs import HostKeyListDialog
from torchyard_gui.fleet.dialogs.removal_dialogs import RemoveHostsDialog, UndeployDialog
from torchyard_gui.fleet.labels import heat_text, short_day
from torchyard_gui.fleet.page import FleetPage
from torchyard_gui.theme.theme import theme

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def three(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot) -> Iterator[FleetModel]:
    """Returns the model of a fleet with three unreachable hosts, and writes a ~/.ssh/config."""
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
    """Makes a check of a host fail with `error`."""
    model._under_way[name] = job = model.jobs.run(lambda: None)
    model._arrived(name, job, "checking", failed_check(name, error.state, error))


def write(qtbot: QtBot, dialog: HostForm, **texts: str) -> None:
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


def test_the_time_of_a_state_has_a_form_that_fits_a_narrow_card(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    find(three, "a", Unreachable("a", "a did not answer."))
    find(three, "b", KeyChanged("b", "the host key of b has changed.", fingerprint="SHA256:x"))
    late = datetime.now().astimezone().replace(hour=23, minute=59) - timedelta(days=1)
    for name, changes in (("a", {}), ("b", {}), ("c", {"state": READY, "check": HostCheck("c", READY)})):
        three._statuses[name] = replace(three._statuses[name], since=late, **changes)
        three.host_changed.emit(name)
    day = short_day(late)

    def times() -> list[str]:
        return [one.text for one in painted_texts(page.list.viewport()) if day in one.text or "since" in one.text]

    qtbot.waitUntil(lambda: times() == [f"since {day}", f"since {day}", f"since {day} 23:59"])
    page.window().resize(978, 776)
    qtbot.waitUntil(lambda: times() == [day, day, f"since {day}"])


def test_arrows_choose_and_the_panel_follows(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    page.list.setFocus()
    assert page.list.chosen == ["a"]  # At first, the first host is selected.
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


def test_a_card_that_only_has_the_focus_looks_unlike_a_selected_one(
    three: FleetModel, show: Show, qtbot: QtBot
) -> None:
    page = show(three)
    page.list.choose("b")
    page.list.setFocus()
    card = page.list.card_rect(page.list.currentIndex())

    def framed() -> int:
        """Returns the number of pixels of the accent colour along the upper edge of the card."""
        image = page.list.viewport().grab().toImage()
        accent = theme().color("accent").rgb()
        return sum(image.pixel(x, card.top() + 1) == accent for x in range(card.left(), card.right()))

    selected = framed()
    page.list.clearSelection()
    qtbot.waitUntil(lambda: page.list.chosen == [])
    assert page.list.hasFocus()
    assert 0 < framed() < selected


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
        lambda: [page.list.action_button(name).text() for name in "abc"] == ["Check again", "Trust …", "Check"],  # type: ignore[union-attr]  # The value is not None in this test.
        timeout=WITHIN_MS,
    )
    page.list.choose("a")
    assert page.details.problems.text() == "Port 22 of a refused. Is sshd running there?"
    spoken = page.rows.index_of("a").data(Qt.ItemDataRole.AccessibleTextRole)
    assert spoken.startswith("a, unreachable since ")


def test_a_card_edits_the_host_whose_jump_host_has_an_unknown_address(
    three: FleetModel, show: Show, qtbot: QtBot
) -> None:
    page = show(three)
    step = SetHostField("a", "proxy_jump")
    find(three, "a", Unreachable("bastion", "the address bastion is not known to this computer.", hint=step))
    qtbot.waitUntil(lambda: (button := page.list.action_button("a")) is not None and button.text() == "Edit …")
    button = page.list.action_button("a")
    assert button is not None
    press(qtbot, button)
    assert isinstance(page.dialog, EditHostsDialog)
    assert page.dialog.fields["name"].text() == "a"
    assert page.dialog.focusWidget() is page.dialog.fields["proxy_jump"]
    page.dialog.reject()


def do_not_overlap(page: FleetPage) -> bool:
    """Returns whether the cards do not overlap, and the first card's button lies on its card."""
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
    assert dialog.rows["name"].note.text() == "The fleet has an entry “a” already."
    assert "from 1 to 65535" in dialog.rows["port"].note.text()
    press(qtbot, dialog.agree_button)
    assert dialog.isVisible()
    write(qtbot, dialog, name="alpha", port="2200")
    assert dialog.rows["port"].note.text() == ""
    assert "is configured in your ~/.ssh/config" in dialog.rows["address"].note.text()
    three.check = lambda names=None: None  # type: ignore[method-assign]  # This prevents contact with hosts.
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
    press(qtbot, dialog.agree_button)
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
    three.check = lambda names=None: asked.append(names)  # type: ignore[method-assign]  # The test replaces this method.
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
    assert page.summary.text() == "Hosts not checked yet"
    three.has_looked = True
    find(three, "a", Unreachable("a", "a did not answer."))
    qtbot.waitUntil(lambda: page.summary.text() == "0 of 3 hosts answer")


def test_no_button_of_the_panel_stands_alone_in_its_row(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)

    def rows() -> list[int]:
        tops = [button.y() for button in page.details.buttons.values() if button.isVisible()]
        return [tops.count(top) for top in sorted(set(tops))]

    page.list.choose("a")
    qtbot.waitUntil(lambda: rows() == [2, 2, 2, 2])
    assert all(button.width() >= button.sizeHint().width() for button in page.details.buttons.values())
    places = {name: button.pos() for name, button in page.details.buttons.items()}
    find(three, "b", KeyChanged("b", "the host key of b has changed.", fingerprint="SHA256:x"))
    page.list.choose("b")
    assert {name: button.pos() for name, button in page.details.buttons.items()} == places


def test_there_is_nothing_to_search_in_where_there_is_no_host(home: Home, show: Show) -> None:
    home.path.mkdir(parents=True)
    home.fleet_file.write_text("version: 1\nhosts: []\n")
    page = show(FleetModel(home, home.fleet_file))
    assert not page.search_field.isVisible()


def test_a_host_is_edited_at_every_key_and_the_edit_is_undone(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    before = three.fleet_file.read_text()
    checked: list[object] = []
    three.check = lambda names=None: checked.append(names)  # type: ignore[method-assign]  # The test replaces this method.
    page.list.choose("b")
    qtbot.keyClick(page.list, Qt.Key.Key_F2)
    dialog = page.dialog
    assert isinstance(dialog, EditHostsDialog)
    assert {*dialog.rows, "local"} == set(Host.model_fields)
    assert dialog.fields["labels"].text() == "rack=r1"
    write(qtbot, dialog, port="70000")
    press(qtbot, dialog.agree_button)
    assert "from 1 to 65535" in dialog.rows["port"].note.text()
    write(qtbot, dialog, port="2200", python="/opt/torch/bin/python", name="beta")
    press(qtbot, dialog.agree_button)
    assert yaml.safe_load(three.fleet_file.read_text())["hosts"][1] == {
        "name": "beta",
        "labels": {"rack": "r1"},
        "port": 2200,
        "python": "/opt/torch/bin/python",
    }
    assert page.list.chosen == ["beta"]
    assert page.toast.isVisible()
    qtbot.keyClick(page.list, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert three.fleet_file.read_text() == before
    assert checked == [["beta"], ["b"]]
    assert not page.acts.undo_edit.isEnabled()


def test_several_hosts_are_edited_together_and_keep_what_is_not_edited(
    three: FleetModel, show: Show, qtbot: QtBot
) -> None:
    page = show(three)
    three.check = lambda names=None: None  # type: ignore[method-assign]  # The test replaces this method.
    page.list.choose_all("abc")
    page.acts.edit.trigger()
    dialog = page.dialog
    assert isinstance(dialog, EditHostsDialog)
    assert not dialog.rows["name"].isVisible()
    assert dialog.fields["labels"].placeholderText() == "different values"
    write(qtbot, dialog, user="lee")
    press(qtbot, dialog.agree_button)
    hosts = yaml.safe_load(three.fleet_file.read_text())["hosts"]
    assert [(host["name"], host["labels"]["rack"], host["user"]) for host in hosts] == [
        ("a", "r1", "lee"),
        ("b", "r1", "lee"),
        ("c", "r2", "lee"),
    ]
    assert page.list.chosen == ["a", "b", "c"]


def test_an_edit_of_a_host_that_was_changed_meanwhile_is_refused(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    page.edit_hosts("b")
    dialog = page.dialog
    assert isinstance(dialog, EditHostsDialog)
    write(qtbot, dialog, user="lee")
    text = three.fleet_file.read_text().replace("name: b", "name: b\n  port: 2222")
    three.fleet_file.write_text(text)
    press(qtbot, dialog.agree_button)
    assert dialog.isVisible()
    assert "was changed meanwhile" in dialog.notice.text
    assert three.fleet_file.read_text() == text
    dialog.reject()


def test_interpreters_are_listed_with_their_torch_and_one_is_chosen_by_enter(
    three: FleetModel, show: Show, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = show(three)
    system = {"path": "/usr/bin/python3", "version": "3.12.1", "torch": None, "torch_cuda": None, "problem": None}
    env = {**system, "path": "/opt/env/bin/python", "torch": "2.6.0", "torch_cuda": "12.4"}
    cpu = {**env, "torch": "2.5.0", "torch_cuda": None}
    old = {**system, "path": "/old/python", "version": "2.7.18", "problem": "/old/python is too old."}
    answers = {"a": [system, env, old], "b": [cpu, system]}
    monkeypatch.setattr(
        three, "find_interpreters", lambda name, done, failed, owner: three.jobs.run(lambda: answers[name], done)
    )
    page.edit_hosts("a", "b", field="python")
    dialog = page.dialog
    assert isinstance(dialog, EditHostsDialog)
    qtbot.waitUntil(dialog.fields["python"].hasFocus, timeout=WITHIN_MS)
    press(qtbot, dialog.interpreters.button)
    found = dialog.interpreters.list
    qtbot.waitUntil(found.isVisible, timeout=WITHIN_MS)
    assert [found.item(row).text() for row in range(found.count())] == [
        "/opt/env/bin/python\nPython 3.12.1 · torch 2.6.0 · CUDA 12.4 / Python 3.12.1 · torch 2.5.0 · CPU only",
        "/usr/bin/python3\nPython 3.12.1 · no torch",
        "/old/python\n/old/python is too old. · only on 1 of 2 hosts",
    ]
    qtbot.keyClick(found, Qt.Key.Key_Return)
    assert dialog.fields["python"].text() == "/opt/env/bin/python"
    assert dialog.isVisible()  # In the list of completions, Enter chooses an entry and does not save the dialog.
    dialog.reject()


def test_hosts_without_agent_cannot_be_searched_and_the_dialog_says_what_to_do(
    three: FleetModel, show: Show, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise AgentMissing("a", "there is no agent on a.", hint=DeployAgent("a"))

    page = show(three)
    monkeypatch.setattr(
        three, "find_interpreters", lambda name, done, failed, owner: three.jobs.run(absent, done, failed)
    )
    page.edit_hosts("a", field="python")
    dialog = page.dialog
    assert isinstance(dialog, EditHostsDialog)
    press(qtbot, dialog.interpreters.button)
    notice = dialog.interpreters.notice
    qtbot.waitUntil(notice.isVisible, timeout=WITHIN_MS)
    assert (notice.text, [button.text() for button in notice.buttons]) == ("There is no agent on a.", ["Deploy to a"])
    dialog.reject()


def test_hosts_are_filtered_by_state_and_a_host_whose_state_changes_leaves_the_list(
    three: FleetModel, show: Show, qtbot: QtBot
) -> None:
    page = show(three)
    find(three, "a", KeyChanged("a", "the host key of a has changed.", fingerprint="SHA256:x"))
    find(three, "b", Unreachable("b", "b did not answer."))
    texts = ["All states", "Key changed (1)", "Unreachable (1)", "Unknown (1)"]
    chosen = page.state_filter
    qtbot.waitUntil(lambda: [chosen.itemText(row) for row in range(chosen.count())] == texts, timeout=WITHIN_MS)
    chosen.setFocus()
    qtbot.keyClick(chosen, Qt.Key.Key_Down)
    assert page.rows.names == ["a"]
    find(three, "a", Unreachable("a", "a did not answer."))
    assert page.rows.names == []
    qtbot.waitUntil(page.nothing_found.isVisible, timeout=WITHIN_MS)
    qtbot.waitUntil(lambda: chosen.currentText() == "Key changed (0)", timeout=WITHIN_MS)
    chosen.choose(HostState.UNREACHABLE)
    assert page.rows.names == ["a", "b"]
    chosen.choose(None)
    assert page.rows.names == ["a", "b", "c"]


def test_the_focus_goes_to_the_list_and_not_to_a_dangerous_button_after_deploy(
    three: FleetModel, show: Show, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = show(three)
    monkeypatch.setattr(three, "_ask", lambda *given: None)
    deploy = page.details.buttons["deploy"]
    deploy.setFocus()
    three.deploy = lambda names: [three._change(name, doing=HostActivity("deploying")) for name in names]  # type: ignore[assignment, method-assign]  # The test replaces this method.
    qtbot.keyClick(deploy, Qt.Key.Key_Space)
    assert not deploy.isEnabled()
    assert QApplication.focusWidget() is page.list


def test_a_terminal_is_opened_on_the_host_and_a_missing_one_is_told(
    three: FleetModel, show: Show, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = show(three)
    page.list.choose("b")
    monkeypatch.delenv("TERMINAL", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    page.acts.terminal.trigger()
    assert page.notice.text == (
        "No terminal emulator was found. Install one, such as xterm, or name it in the environment variable TERMINAL."
    )
    seen = tmp_path / "seen"
    program = tmp_path / "myterm"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}.new\n/bin/mv {seen}.new {seen}\n')
    program.chmod(0o755)
    monkeypatch.setenv("TERMINAL", "myterm")
    page.acts.terminal.trigger()
    qtbot.waitUntil(seen.exists, timeout=WITHIN_MS)
    arguments = seen.read_text().splitlines()
    assert arguments[:2] == ["-e", "ssh"]
    assert arguments[-2:] == ["--", "b"]


def test_temperature_and_power_are_on_the_card_and_in_the_details(three: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(three)
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_mb": 81559, "memory_used_mb": 1, "utilisation": 9, "problem": None}
    gpu |= {"processes": [], "power_w": 600.0}
    gpus = [{**gpu, "index": number, "uuid": f"GPU-{number}", "temperature_c": 60 + number} for number in range(2)]
    gpus[1]["throttling"] = ["hw_thermal_slowdown"]
    host = {"cpu": 1, "cpus": 2, "memory_mb": 9, "memory_used_mb": 1}
    three._change("a", sample={"host": host, "gpus": gpus, "replicas": {}})
    page.list.choose("a")
    shown = page.details.gpus
    assert heat_text(shown.gpus) == "61 °C · 1.2 kW"
    assert [shown.heat(one) for one in shown.gpus] == ["60 °C · 600 W", "61 °C · 600 W · throttled"]
    assert "61 °C · 600 W · throttled" in shown.accessibleName()


def test_undeploy_asks_first_and_a_refusal_has_its_step(
    three: FleetModel, show: Show, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = show(three)
    asked: list[list[str]] = []
    monkeypatch.setattr(three, "undeploy", asked.append)
    page.list.choose_all("ab")
    page.list.setFocus()
    qtbot.keyClick(page.list, Qt.Key.Key_Delete, Qt.KeyboardModifier.ShiftModifier)
    dialog = page.dialog
    assert isinstance(dialog, UndeployDialog)
    press(qtbot, dialog.no)
    assert asked == []
    page.acts.undeploy.trigger()
    dialog = page.dialog
    assert isinstance(dialog, UndeployDialog)
    press(qtbot, dialog.yes)
    assert asked == [["a", "b"]]
    three.undeployed.emit(Removed("a", "node", {"removed": "~/.torchyard", "shared_with": ["c"]}))
    stays = "The store in ~/.torchyard of a stays, because it is shared with c."
    assert page.notice.text == f"Agent removed from a. {stays}"
    hint = agent_advice("b", "run_alive", "Stop it first.", "r-1")
    refusal = AgentRefused("b", "the run r-1 is alive there.", code="run_alive", hint=hint)
    three.undeployed.emit(Removed("b", error=refusal))
    assert page.notice.kind == "fail"
    assert page.notice.text.endswith("b: the run r-1 is alive there. Stop it first.")
    assert [button.text() for button in page.notice.buttons] == ["Stop the run …"]


def test_keys_of_several_hosts_are_trusted_one_by_one(
    three: FleetModel, show: Show, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = show(three)
    keys = {
        "a": ShownKey(Host(name="a"), "ssh-ed25519", "SHA256:a", "", None),
        "b": ShownKey(Host(name="b"), "ssh-ed25519", "SHA256:b", "", "SHA256:before"),
        "c": ShownKey(Host(name="c"), "ssh-ed25519", "SHA256:c", "", "SHA256:c"),
    }
    recorded: list[str] = []
    monkeypatch.setattr(
        three, "ask_key", lambda name, done, failed, owner: three.jobs.run(lambda: keys[name], done, failed)
    )
    monkeypatch.setattr(
        three,
        "trust",
        lambda key, done, failed, owner: three.jobs.run(
            lambda: recorded.append(key.host.name), lambda _: done(), failed
        ),
    )
    three.check = lambda names=None: None  # type: ignore[method-assign]  # The test replaces this method.
    page.list.choose_all("abc")
    page.acts.trust.trigger()
    dialog = page.dialog
    assert isinstance(dialog, HostKeyListDialog)
    qtbot.waitUntil(lambda: dialog.rows["b"].on_record.isVisible(), timeout=WITHIN_MS)
    qtbot.waitUntil(lambda: "Already trusted" in dialog.rows["c"].state.text(), timeout=WITHIN_MS)
    # No key is selected at first: the user selects each key that they trust.
    assert not any(row.box.isChecked() for row in dialog.rows.values())
    assert not dialog.rows["c"].box.isEnabled()
    qtbot.keyClick(dialog.rows["a"].box, Qt.Key.Key_Space)
    assert dialog.trust_button.text() == "Trust 1 key"
    press(qtbot, dialog.trust_button)
    qtbot.waitUntil(lambda: page.dialog is None, timeout=WITHIN_MS)
    assert recorded == ["a"]
