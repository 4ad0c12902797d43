"""The bar above a sweep, with the name, the state and the best trial of the sweep, and with actions."""

from __future__ import annotations

from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QFrame, QWidget

from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.sweeps.trial_table import SweepTable
from torchyard_gui.sweeps.labels import mark_of, progress, sweep_state
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import StateTitle
from torchyard_gui.widgets.buttons import action_button
from torchyard_gui.widgets.layouts import hbox

NARROW = 1150
"""Width of the bar in pixels below which the button for the best trial has a shorter text."""


class SweepBar(QFrame):
    """The bar above a sweep. Its buttons trigger actions of the page."""

    def __init__(self, new: QAction, best: QAction, resume: QAction, stop: QAction, parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("bar", True)
        self.setFixedHeight(theme().metrics.bar)
        self.title = StateTitle()
        self.name, self.state = self.title.name, self.title.state
        self.buttons = {action: action_button(action, action.iconText()) for action in (best, resume, stop, new)}
        for action, button in self.buttons.items():
            button.setIcon(action.icon())
            button.setAccessibleName(action.text())
        self._best, self._new = best, new
        hbox((self.title, 1), *self.buttons.values(), parent=self, margins=(16, 0, 16, 0), spacing=8)
        self.show_sweep(None, None)

    def show_sweep(self, run: KnownRun | None, table: SweepTable | None) -> None:
        """Shows the state of a sweep. If the sweep is None, shows the name of the page."""
        for action, button in self.buttons.items():
            button.setVisible(run is not None or action is self._new)
        if run is None:
            self.name.setText(self.tr("Sweeps"))
            self.title.show_state("", "")
            return
        self.name.setText(run.name or run.run_id)
        self.name.setToolTip(run.run_id)
        parts = [sweep_state(run), *(progress(table) if table is not None else [])]
        self.title.show_state("unknown" if run.is_stale else mark_of(run.state), " · ".join(parts))
        self.state.setToolTip("\n".join(part for part in (*parts, run.reason) if part))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Shortens the text of the button for the best trial in a narrow bar, so that the sweep's state fits."""
        super().resizeEvent(event)
        is_narrow = event.size().width() < NARROW
        self.buttons[self._best].setText(self._best.iconText() if is_narrow else self._best.text())
