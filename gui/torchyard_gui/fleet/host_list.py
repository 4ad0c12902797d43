"""The list of hosts and clusters as cards. If a host or cluster has a problem, its card has a button for the suggested
action.
"""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QItemSelectionModel, QModelIndex, QRect, QTimer, Signal
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QAbstractItemView, QListView, QPushButton, QStyle, QWidget

from torchyard_gui.bridge.host_status import CheckedEntry
from torchyard_gui.fleet.fingerprint import Fingerprint
from torchyard_gui.fleet.host_card import GAP, HostCard
from torchyard_gui.fleet.host_list_model import USE, Entry, HostListModel
from torchyard_gui.fleet.labels import fingerprints
from torchyard_gui.fleet.suggested_action import suggested_action
from torchyard_gui.theme.theme import theme

MARGIN = 24
FRAME_MS = 60
PHASES = 40


class HostList(QListView):
    """List view that shows the hosts of a HostListModel as cards."""

    action_pressed = Signal(str, str)
    """Emitted with the name of a host or cluster and the suggested action whose button was pressed."""
    chosen_changed = Signal()

    def __init__(self, rows: HostListModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.rows = rows
        self.card = HostCard(self)
        self._buttons: dict[str, QPushButton] = {}
        self._fingerprints: dict[str, list[Fingerprint]] = {}
        self._kept: list[str] = []
        self._kept_current = ""
        self._frame = 0
        self._clock = QTimer(self, interval=FRAME_MS)
        self._clock.timeout.connect(self._move)
        self.setObjectName("hosts")
        self.setAccessibleName(self.tr("Hosts and clusters"))
        self.setItemDelegate(self.card)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setResizeMode(QListView.ResizeMode.Adjust)
        self.setMouseTracking(True)
        self.setViewportMargins(MARGIN, 0, MARGIN - 10, 0)
        self.setStyleSheet("QListView { background: transparent; } QListView::item { padding: 0; border: none; }")
        rows.modelAboutToBeReset.connect(self._keep)
        self.setModel(rows)
        rows.modelReset.connect(self._restore)
        rows.dataChanged.connect(self._rows_changed)
        self.selectionModel().selectionChanged.connect(lambda *_: self.chosen_changed.emit())
        theme().changed.connect(self.viewport().update)

    @property
    def chosen(self) -> list[str]:
        """Names of the selected hosts and clusters, from top to bottom."""
        rows = sorted(index.row() for index in self.selectionModel().selectedIndexes())
        return [self.rows.names[row] for row in rows if row < len(self.rows.names)]

    def choose(self, name: str) -> None:
        """Selects a host and scrolls to it."""
        index = self.rows.index_of(name)
        if index.isValid():
            self.selectionModel().setCurrentIndex(index, QItemSelectionModel.SelectionFlag.ClearAndSelect)
            self.scrollTo(index)

    def choose_all(self, names: Iterable[str]) -> None:
        """Selects hosts. The first one becomes the view's current item."""
        first, *others = names
        self.choose(first)
        for name in others:
            index = self.rows.index_of(name)
            if index.isValid():
                self.selectionModel().select(index, QItemSelectionModel.SelectionFlag.Select)

    def action_button(self, name: str) -> QPushButton | None:
        """Returns the button on the card of a host, or None if the card has no button or is not visible."""
        return self._buttons.get(name)

    def card_rect(self, index: QModelIndex) -> QRect:
        return self.visualRect(index).adjusted(0, 0, 0, -GAP)

    def updateGeometries(self) -> None:
        super().updateGeometries()
        self._place_buttons()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        super().scrollContentsBy(dx, dy)
        self._place_buttons()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        # The heights of cards depend on the width at which their text is wrapped.
        self.scheduleDelayedItemsLayout()

    def _rows_changed(self, first: QModelIndex, last: QModelIndex, roles: list[int]) -> None:
        if list(roles) == [USE]:
            return
        self.scheduleDelayedItemsLayout()
        self._animate()

    def _animate(self) -> None:
        """Animates the progress bars while an activity is in progress on a host, and stops the animation otherwise.

        Nothing is animated if the user has disabled animations.
        """
        under_way = any((status := self._status(name)) is not None and status.doing for name in self.rows.names)
        moves = self.style().styleHint(QStyle.StyleHint.SH_Widget_Animation_Duration, None, self) > 0
        if under_way and moves and self.isVisible():
            if not self._clock.isActive():
                self._clock.start()
        else:
            self._clock.stop()

    def hideEvent(self, event: QHideEvent) -> None:
        self._clock.stop()
        super().hideEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._animate()

    def _move(self) -> None:
        self._frame = (self._frame + 1) % (2 * PHASES)
        self.card.phase = 1 - abs(self._frame - PHASES) / PHASES
        for name in self.rows.names:
            status = self._status(name)
            if status is not None and status.doing is not None:
                self.viewport().update(self.visualRect(self.rows.index_of(name)))

    def _status(self, name: str) -> Entry | None:
        return self.rows.status_at(self.rows.index_of(name))

    def _place_buttons(self) -> None:
        """Places a button on each visible card with a problem and, if the problem concerns a host key, the key's
        fingerprints.
        """
        sight = self.viewport().rect()
        wanted: set[str] = set()
        for row, name in enumerate(self.rows.names):
            index = self.rows.index(row)
            card = self.card_rect(index)
            status = self.rows.status_at(index)
            if status is None or not card.isValid() or not card.intersects(sight):
                continue
            rect = self.card.button_rect(status, card)
            found = suggested_action(status)
            if found is None or rect.isEmpty():
                continue
            wanted.add(name)
            button = self._buttons.get(name) or self._make_button(name)
            button.setText(found.text)
            button.setAccessibleName(self.tr("{action} for {host}").format(action=found.text, host=name))
            button.setProperty("action", found.action)
            button.setGeometry(rect)
            button.show()
            self._place_fingerprints(name, status, card)
        for name in self._buttons.keys() - wanted:
            button = self._buttons.pop(name)
            if button.hasFocus():
                self.setFocus()
            button.hide()
            button.deleteLater()
        for name in self._fingerprints.keys() - wanted:
            self._drop_fingerprints(name)

    def _place_fingerprints(self, name: str, status: CheckedEntry, card: QRect) -> None:
        """Places the fingerprints of a key on the card of a host, as selectable text."""
        wanted = fingerprints(status)
        shown = self._fingerprints.get(name, [])
        if len(shown) != len(wanted):
            self._drop_fingerprints(name)
            shown = [Fingerprint(f"{title}, {name}", self.viewport()) for title, _ in wanted]
            if shown:
                self._fingerprints[name] = shown
        for field, (_, text), rect in zip(shown, wanted, self.card.fingerprint_rects(status, card), strict=True):
            field.setText(text)
            field.setGeometry(rect)
            field.show()

    def _drop_fingerprints(self, name: str) -> None:
        for field in self._fingerprints.pop(name, []):
            field.hide()
            field.deleteLater()

    def _make_button(self, name: str) -> QPushButton:
        button = QPushButton(self.viewport())
        button.setObjectName(f"action-{name}")
        button.clicked.connect(lambda: self._pressed(name))
        self._buttons[name] = button
        return button

    def _pressed(self, name: str) -> None:
        self.choose(name)
        self.action_pressed.emit(name, str(self._buttons[name].property("action")))

    def _keep(self) -> None:
        self._kept = self.chosen
        self._kept_current = str(self.currentIndex().data() or "")

    def _restore(self) -> None:
        """Restores the selection after the rows have changed."""
        selection = self.selectionModel()
        for name in self._kept:
            index = self.rows.index_of(name)
            if index.isValid():
                selection.select(index, QItemSelectionModel.SelectionFlag.Select)
        current = self.rows.index_of(self._kept_current)
        if current.isValid():
            selection.setCurrentIndex(current, QItemSelectionModel.SelectionFlag.NoUpdate)
        self.chosen_changed.emit()
        self._animate()
