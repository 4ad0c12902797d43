"""Tests of errors on hosts and in scripts: the window shows each where it occurs, with a next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtTest import QTest

from tests.end_to_end.running import programs_on, topology
from tests.gui.end_to_end.conftest import OpenWindow
from tests.gui.end_to_end.simulated_user import LAUNCHED_WITHIN_MS, SimulatedUser
from tests.gui.topology.page_driver import LEFT
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_gui.fleet.dialogs.host_key_dialogs import HostKeyDialog

pytestmark = pytest.mark.lab

SAYS_HELLO = "import os; print('hello from', os.environ['TORCHYARD_REPLICA'])"
FAILS = """
    import os, time
    if os.environ["TORCHYARD_REPLICA"] == "worker-1":
        raise ValueError("this shard of the data is empty")
    time.sleep(600)
"""


def on_three_hosts(folder: Path, script: str) -> Path:
    return topology(
        folder,
        """
        pools:
          - {name: workers, role: worker, replicas: 3, gpus: 0, placement: spread}
        program:
          launcher: command
          command: [python3, script.py]
          failure_grace_s: 0.5
        """,
        script_py=script,
    )


def succeeded(person: SimulatedUser) -> None:
    """Waits until the run's page shows that the run has succeeded."""
    person.on_the_runs_page()
    person.wait_until(lambda: person.picture.is_over)
    assert person.picture.state == "succeeded", person.picture.reason
    assert person.picture.name == "test"


def test_a_host_that_is_down_is_named_and_tried_again(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    lab3["gpu-c"].stop_sshd()
    person = window_of(desktop, on_three_hosts(tmp_path / "hello", SAYS_HELLO))
    panel = person.press_launch()
    person.wait_until(panel.again.isVisible, LAUNCHED_WITHIN_MS)

    # The checklist shows the cause, and no process is left.
    row = panel.row("host")
    assert row.row.state == "failed"
    (told,) = [text for text in row.texts if "gpu-c" in text]
    assert "22" in told
    assert "torchyard " not in told
    assert person.window.current == "topology"
    wait_until(lambda: not programs_on(lab3))

    # After the SSH server has been started again, the user launches again.
    lab3["gpu-c"].start_sshd()
    person.press(panel.again)
    succeeded(person)


def test_an_unknown_key_is_trusted_in_the_dialog_and_the_launch_goes_on(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    desktop.known_hosts.write_text(lab3["gpu-a"].known_hosts + lab3["gpu-b"].known_hosts)
    person = window_of(desktop, on_three_hosts(tmp_path / "hello", SAYS_HELLO))
    panel = person.press_launch()
    person.wait_until(panel.again.isVisible, LAUNCHED_WITHIN_MS)
    assert panel.row("host").row.state == "failed"
    assert "gpu-c" in panel.notice.text

    person.press(person.button(panel.notice, "Trust gpu-c"))
    dialog = trust_dialog(person)
    assert dialog.shown.fingerprint.text() == lab3["gpu-c"].host_key_fingerprint
    person.press(dialog.trust_button)

    succeeded(person)
    assert lab3["gpu-c"].known_hosts.split()[2] in desktop.known_hosts.read_text()


def test_a_key_that_is_not_trusted_keeps_the_launch_where_it_is(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    before = lab3["gpu-a"].known_hosts + lab3["gpu-b"].known_hosts
    desktop.known_hosts.write_text(before)
    person = window_of(desktop, on_three_hosts(tmp_path / "hello", SAYS_HELLO))
    panel = person.press_launch()
    person.wait_until(panel.again.isVisible, LAUNCHED_WITHIN_MS)
    person.press(person.button(panel.notice, "Trust gpu-c"))
    dialog = trust_dialog(person)
    person.press(dialog.cancel_button)

    person.wait_until(lambda: person.fleet_page.dialog is None)
    assert desktop.known_hosts.read_text() == before
    assert not panel.is_launching
    wait_until(lambda: not programs_on(lab3))


def trust_dialog(person: SimulatedUser) -> HostKeyDialog:
    """Waits until the dialog shows the host's key; returns the dialog."""

    def there() -> HostKeyDialog | None:
        found = [box for box in person.window.findChildren(HostKeyDialog) if box.isVisible()]
        return found[0] if found and found[0].trust_button.isVisible() else None

    person.wait_until(there)
    dialog = there()
    assert dialog is not None
    return dialog


def test_a_script_that_fails_has_its_cause_on_the_page_of_the_run(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    person = window_of(desktop, on_three_hosts(tmp_path / "fails", FAILS))
    person.press_launch()
    person.on_the_runs_page()
    person.wait_until(lambda: person.picture.is_over)
    view = person.runs.run_view

    assert person.picture.state == "failed"
    person.wait_until(view.notice.isVisible)
    assert "The run failed: " in view.notice.text
    assert "worker-1" in view.notice.text
    (need,) = view.side.needs.needs
    assert view.side.needs.isVisible()
    assert need.title == "worker-1 failed"
    assert "this shard of the data is empty" in need.detail
    assert person.picture.tracks["worker-1"].state == "failed"
    assert {person.picture.tracks[name].state for name in ("worker-0", "worker-2")} == {"stopped"}

    QTest.mouseClick(view.notice.buttons[0], LEFT)
    assert view.log.replica.currentText() == "worker-1"
    person.wait_until(lambda: any("ValueError: this shard of the data is empty" in line for line in person.log_lines()))
    person.wait_until(lambda: not programs_on(lab3))
