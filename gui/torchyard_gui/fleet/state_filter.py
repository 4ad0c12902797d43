"""A filter that limits the list to hosts in one state, and shows how many hosts are in each state."""

from __future__ import annotations

from collections.abc import Mapping, Sized

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QWidget

from torchyard_gui.bridge.host_states import HostState, state_name
from torchyard_gui.theme.icons import state_icon


class StateFilter(QComboBox):
    """Combo box with the states in which there are hosts. It contains the chosen state even if no host is in that
    state.
    """

    changed = Signal()

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.setAccessibleName(self.tr("Filter by state"))
        self.setToolTip(self.tr("Show only hosts in a state"))
        self.setMinimumWidth(120)
        self._shown: dict[HostState, int] = {}
        self.addItem(self.tr("All states"), None)
        self.currentIndexChanged.connect(lambda: self.changed.emit())

    @property
    def state(self) -> HostState | None:
        found: HostState | None = self.currentData()
        return HostState(found) if found is not None else None

    def choose(self, state: HostState | None) -> None:
        self.setCurrentIndex(max(0, self.findData(state)))

    def show_counts(self, by_state: Mapping[HostState, Sized]) -> None:
        """Updates the listed states and their host counts without changing the chosen state."""
        chosen = self.state
        counts = {state: len(by_state.get(state, ())) for state in HostState if state in by_state or state is chosen}
        if counts == self._shown:
            return
        self._shown = counts
        self.blockSignals(True)
        while self.count() > 1:
            self.removeItem(1)
        for state, count in counts.items():
            name = state_name(state)
            self.addItem(state_icon(state.mark), f"{name[0].upper()}{name[1:]} ({count})", state)
        self.choose(chosen)
        self.blockSignals(False)
