"""Whose logs are read: all replicas', those that are chosen on the page, or one's."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QComboBox, QWidget

ALL, CHOSEN = "", "*"
"""Data of the entries that stand for several; else it is the replica's name."""


class LogChoice(QComboBox):
    """The entries for several stand above those for one."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._names: list[str] = []
        self._chosen: list[str] = []
        self.setMinimumWidth(150)
        self.setAccessibleName(self.tr("Whose log"))
        self.setToolTip(
            self.tr(
                "Whose log. Logs carry no times: of several, what was printed before you looked stands side by side "
                "by its position in each log, what comes later as it comes."
            )
        )
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)

    @property
    def names(self) -> list[str]:
        """The replicas whose logs are wanted."""
        data = self.currentData()
        if data is None:
            return []
        return {ALL: self._names, CHOSEN: self._chosen}.get(data, [data])

    def set_names(self, names: Sequence[str]) -> None:
        """The run has these replicas."""
        if list(names) != self._names:
            self._names = list(names)
            self._fill()

    def set_chosen(self, names: Sequence[str]) -> None:
        """These are chosen on the page."""
        if list(names) != self._chosen:
            self._chosen = list(names)
            self._fill()

    def show_one(self, name: str) -> bool:
        """Whether there is such a replica; then it is the one."""
        return name in self._names and self._show(name)

    def show_chosen(self) -> bool:
        return self._show(CHOSEN)

    def _show(self, data: str) -> bool:
        place = self.findData(data)
        if place >= 0:
            self.setCurrentIndex(place)
        return place >= 0

    def _fill(self) -> None:
        before = self.currentData()
        self.clear()
        if len(self._names) > 1:
            self.addItem(self.tr("All {count} replicas").format(count=len(self._names)), ALL)
        if len(self._chosen) > 1:
            self.addItem(self.tr("{count} chosen replicas").format(count=len(self._chosen)), CHOSEN)
        if self.count():
            self.insertSeparator(self.count())
        for name in self._names:
            self.addItem(name, name)
        first = self._names[0] if self._names else ALL
        if not self._show(before if before is not None else first):
            self._show(first)
