"""Tests of the Fleet page with real hosts, which are checked, trusted, deployed, or unreachable."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from tests.gui.fleet.hosts import WITHIN_MS, DesktopModel, Show, at_rest, press, state_of
from tests.lab import Desktop, Lab
from torchyard_agent import __version__
from torchyard_core.identity import desktop_identity
from torchyard_gui.fleet.dialogs.host_key_dialogs import HostKeyDialog

pytestmark = pytest.mark.lab


def test_from_an_unknown_key_to_a_ready_host_by_the_buttons_on_its_card(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, show: Show, qtbot: QtBot
) -> None:
    desktop.known_hosts.write_text("")
    lab3["gpu-c"].stop_sshd()
    page = show(model := desktop_model(desktop))
    qtbot.keyClick(page.list, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: at_rest(model), timeout=WITHIN_MS)
    assert [status.state for status in model.hosts] == ["key unknown", "key unknown", "unreachable"]
    qtbot.waitUntil(lambda: page.summary.text().startswith("0 of 3 hosts answer"), timeout=WITHIN_MS)

    qtbot.waitUntil(lambda: page.list.action_button("gpu-b") is not None, timeout=WITHIN_MS)
    press(qtbot, page.list.action_button("gpu-b"))
    dialog = page.dialog
    assert isinstance(dialog, HostKeyDialog)
    qtbot.waitUntil(lambda: dialog.trust_button.isVisible(), timeout=WITHIN_MS)
    assert dialog.shown.fingerprint.text() == lab3["gpu-b"].host_key_fingerprint
    assert not dialog.on_record.isVisible()
    press(qtbot, dialog.trust_button)
    qtbot.waitUntil(lambda: state_of(model, "gpu-b") == "agent missing", timeout=WITHIN_MS)
    assert desktop.known_hosts.read_text() == lab3["gpu-b"].known_hosts

    qtbot.waitUntil(lambda: page.list.action_button("gpu-b").text() == "Deploy", timeout=WITHIN_MS)  # type: ignore[union-attr]  # The value is not None in this test.
    page.list.setFocus()
    qtbot.keyClick(page.list, Qt.Key.Key_Return)  # Enter does what the button does.
    qtbot.waitUntil(lambda: state_of(model, "gpu-b") == "ready", timeout=WITHIN_MS)
    with qtbot.waitSignal(model.use_changed, timeout=WITHIN_MS):
        pass
    assert model.status("gpu-b").sample is not None  # type: ignore[union-attr]  # The value is not None in this test.
    assert page.details.title.text() == "gpu-b"
    assert page.list.action_button("gpu-b") is None

    def told() -> list[str]:
        return [found.text() for found in page.details.findChildren(QLabel) if found.isVisible()]

    done = [f"Agent {__version__} installed", f"by {desktop_identity()}"]
    qtbot.waitUntil(lambda: set(done) <= set(told()), timeout=WITHIN_MS)
    page.list.choose("gpu-a")  # gpu-a has never been checked.
    assert not set(done) & set(told())
    page.list.choose("gpu-b")

    lab3["gpu-c"].start_sshd()
    press(qtbot, page.list.action_button("gpu-c"))
    qtbot.waitUntil(lambda: state_of(model, "gpu-c") == "key unknown", timeout=WITHIN_MS)


def test_a_changed_key_shows_both_fingerprints_and_what_that_can_mean(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, show: Show, qtbot: QtBot
) -> None:
    before = lab3["gpu-a"].host_key_fingerprint
    lab3["gpu-a"].change_host_key()
    page = show(model := desktop_model(desktop))
    model.check(["gpu-a"])
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "key changed", timeout=WITHIN_MS)
    qtbot.waitUntil(lambda: page.list.action_button("gpu-a").text() == "Trust …", timeout=WITHIN_MS)  # type: ignore[union-attr]  # The value is not None in this test.
    press(qtbot, page.list.action_button("gpu-a"))
    dialog = page.dialog
    assert isinstance(dialog, HostKeyDialog)
    qtbot.waitUntil(lambda: dialog.trust_button.isVisible(), timeout=WITHIN_MS)
    assert dialog.on_record.fingerprint.text() == before
    assert dialog.shown.fingerprint.text() == lab3["gpu-a"].host_key_fingerprint
    assert "an attacker intercepts" in dialog.notice.text
    qtbot.keyClick(dialog, Qt.Key.Key_Return)  # Enter must never trust a host key.
    assert state_of(model, "gpu-a") == "key changed"
    page.trust("gpu-a")
    dialog = page.dialog
    assert isinstance(dialog, HostKeyDialog)
    qtbot.waitUntil(lambda: dialog.trust_button.isVisible(), timeout=WITHIN_MS)
    press(qtbot, dialog.trust_button)
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "agent missing", timeout=WITHIN_MS)


def test_a_key_cannot_be_asked_of_a_host_that_is_down_and_can_be_tried_again(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, show: Show, qtbot: QtBot
) -> None:
    lab3["gpu-b"].stop_sshd()
    page = show(desktop_model(desktop))
    page.trust("gpu-b")
    dialog = page.dialog
    assert isinstance(dialog, HostKeyDialog)
    qtbot.waitUntil(dialog.notice.isVisible, timeout=WITHIN_MS)
    assert "refused" in dialog.notice.text
    lab3["gpu-b"].start_sshd()
    press(qtbot, dialog.notice.buttons[0])
    qtbot.waitUntil(lambda: "already" in dialog.heading.text(), timeout=WITHIN_MS)
    assert not dialog.trust_button.isVisible()
    dialog.reject()


def test_a_check_that_takes_long_is_cancelled_on_its_card_and_closing_leaves_nothing(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, show: Show, qtbot: QtBot
) -> None:
    lab3["gpu-a"].cut_cable()
    page = show(model := desktop_model(desktop))
    qtbot.keyClick(page.list, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: state_of(model, "gpu-c") == "agent missing", timeout=WITHIN_MS)
    qtbot.waitUntil(lambda: page.list.action_button("gpu-a").text() == "Cancel", timeout=WITHIN_MS)  # type: ignore[union-attr]  # The value is not None in this test.
    press(qtbot, page.list.action_button("gpu-a"))
    assert model.status("gpu-a").doing is None  # type: ignore[union-attr]  # The value is not None in this test.
    # The button now says *Check again*. The window is closed during the check.
    press(qtbot, page.list.action_button("gpu-a"))
    page.window().close()
    model.close()
