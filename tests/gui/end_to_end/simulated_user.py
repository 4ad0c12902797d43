"""A simulated user of the whole window, who uses mouse and keys on real widgets and reads what they show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QDialog, QFileDialog, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from tests.gui.theme_fixture import without_theme
from tests.gui.topology.page_driver import CONTROL, LEFT, PLAIN, Driver
from torchyard_core.home import Home
from torchyard_gui import app
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.run_state import RunState
from torchyard_gui.fleet.page import FleetPage
from torchyard_gui.launch.panel import LaunchPanel
from torchyard_gui.runs.page import RunsPage, StopDialog
from torchyard_gui.runs.restart import RestartDialog
from torchyard_gui.topology.page import TopologyPage
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.signal_connections import SignalConnections

SOON_MS = 60_000
LAUNCHED_WITHIN_MS = 90_000


class SimulatedUser:
    """A user who opens the window of a home folder. `draw` operates the Topology page."""

    def __init__(self, qtbot: QtBot, home: Path, fleet_file: Path | None = None, file: Path | None = None) -> None:
        self.qtbot = qtbot
        place = Home(home)
        with without_theme():
            self.window: MainWindow = app.make_window(place, fleet_file or place.fleet_file, file)
        # With unsaved changes, the window would not close without a question.
        qtbot.addWidget(self.window, before_close_func=lambda _: self.topology.document.start_new())
        self.window.show()
        self.window.activateWindow()
        # A dialog, such as the question for a password, may be active before the window has been.
        self.wait_until(lambda: QApplication.activeWindow() in (self.window, *self.window.findChildren(QDialog)))
        self.wait_until(lambda: all(self.window.has_page(key) for key in self.window.keys))
        self.draw = Driver(qtbot, self.topology, self.window, self.fleet, self.window.settings)  # type: ignore[arg-type]  # The classes differ, but have the same methods.

    # Parts of the window

    @property
    def topology(self) -> TopologyPage:
        return self.window.page("topology")  # type: ignore[return-value]  # page() is declared to return a QWidget.

    @property
    def runs(self) -> RunsPage:
        return self.window.page("runs")  # type: ignore[return-value]  # page() is declared to return a QWidget.

    @property
    def fleet_page(self) -> FleetPage:
        return self.window.page("fleet")  # type: ignore[return-value]  # page() is declared to return a QWidget.

    @property
    def fleet(self) -> FleetModel:
        wiring = self.window.findChild(SignalConnections)
        assert isinstance(wiring, SignalConnections)
        return wiring.fleet

    @property
    def panel(self) -> LaunchPanel:
        panel = self.window.findChild(LaunchPanel)
        assert isinstance(panel, LaunchPanel), "the launch panel is not there"
        return panel

    @property
    def picture(self) -> RunState:
        """The state of the run that the Runs page shows."""
        assert self.runs.feed is not None
        return self.runs.feed.picture

    # Waiting, mouse and keyboard input, and finding buttons

    def wait_until(self, condition: Callable[[], object], within_ms: int = SOON_MS) -> None:
        self.qtbot.waitUntil(lambda: bool(condition()), timeout=within_ms)

    def press(self, button: QAbstractButton) -> None:
        assert button.isVisible(), f"not visible: “{button.text()}”"
        assert button.isEnabled(), f"“{button.text()}” cannot be pressed"
        QTest.mouseClick(button, LEFT)

    def keys(self, key: Qt.Key, modifiers: Qt.KeyboardModifier = PLAIN) -> None:
        QTest.keyClick(QApplication.focusWidget() or self.window, key, modifiers)

    def button(self, around: QWidget, text: str) -> QPushButton:
        """Returns the first visible button whose text contains `text`. If a button has no text, its accessible name
        is used instead.
        """
        buttons = [button for button in around.findChildren(QPushButton) if button.isVisible()]
        found = [button for button in buttons if text in (button.text() or button.accessibleName())]
        assert found, f"no button says “{text}”"
        return found[0]

    def click_in(self, widget: QWidget, at: QPoint) -> None:
        QTest.mouseClick(widget, LEFT, PLAIN, at)

    # Actions of the user

    def hosts_were_asked(self) -> None:
        """Waits until each host has either answered or failed."""
        self.wait_until(lambda: self.fleet.has_looked, LAUNCHED_WITHIN_MS)
        self.wait_until(lambda: all(status.doing is None for status in self.fleet.hosts), LAUNCHED_WITHIN_MS)

    def save_as(self, path: Path) -> None:
        """Saves the topology under a name, with Ctrl+S and the save dialog."""
        self.draw.on_canvas()
        self.keys(Qt.Key.Key_S, CONTROL)
        self.type_file_name(path)

    def type_file_name(self, path: Path) -> None:
        """Enters a file name in the save dialog, and waits until the file is saved."""
        self.wait_until(lambda: self._file_dialog() is not None)
        dialog = self._file_dialog()
        assert dialog is not None
        dialog.selectFile(str(path))
        QTest.keyClick(dialog, Qt.Key.Key_Return)
        self.wait_until(lambda: self.topology.document.path == path and not self.topology.document.is_modified)

    def _file_dialog(self) -> QFileDialog | None:
        return next((box for box in self.window.findChildren(QFileDialog) if box.isVisible()), None)

    def press_launch(self) -> LaunchPanel:
        self.press(self.topology.bar.launch)
        self.wait_until(lambda: self.panel.isVisible() or self.window.current == "runs")
        return self.panel

    def on_the_runs_page(self) -> None:
        """Waits until the Runs page shows the launched run."""
        panel = self.panel

        def there() -> bool:
            assert not panel.again.isVisible(), (panel.notice.text, [row.texts for row in panel._rows.values()])
            return self.window.current == "runs" and self.runs.feed is not None

        self.wait_until(there, LAUNCHED_WITHIN_MS)
        assert not panel.isVisible()
        assert self.picture.run_id == (panel.job.run_id if panel.job else "")

    def restart_the_run(self) -> None:
        """Presses *Restart*, and confirms the dialog."""
        self.press(self.button(self.runs.bar, "Restart"))
        self.wait_until(self._restart_dialog)
        dialog = self._restart_dialog()
        assert dialog is not None
        self.press(self.button(dialog, "Restart"))

    def _restart_dialog(self) -> RestartDialog | None:
        return next((box for box in self.window.findChildren(RestartDialog) if box.isVisible()), None)

    def stop_the_run(self) -> None:
        """Stops the run and confirms the dialog."""
        self.press(self.button(self.runs.bar, "Stop"))
        self.wait_until(lambda: self._stop_dialog() is not None)
        dialog = self._stop_dialog()
        assert dialog is not None
        self.press(dialog.stop)

    def _stop_dialog(self) -> StopDialog | None:
        return next((box for box in self.window.findChildren(StopDialog) if box.isVisible()), None)

    def log_lines(self) -> list[str]:
        """Returns the lines that the log shows."""
        return self.runs.run_view.log.view.shown_lines

    def open_log(self) -> None:
        log = self.runs.run_view.log
        if not log.is_open:
            QTest.mouseClick(log.toggle, LEFT)
        assert log.view.isVisible()
