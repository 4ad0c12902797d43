"""Words in the middle of a list or table that has no rows: why, and so that it does not look broken."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QAbstractItemView, QLabel

MARGIN = 16
HEIGHT = 88


class NothingFound(QLabel):
    """Lies over a view for as long as that has no row and there is something to say."""

    def __init__(self, view: QAbstractItemView, said: Callable[[], str]) -> None:
        """`said`: the words for an empty view, "" for none; `look` once they may be others."""
        super().__init__(view.viewport())
        self._view = view
        self._said = said
        self.setProperty("ink", "2")
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        model = view.model()
        for changed in (model.modelReset, model.rowsInserted, model.rowsRemoved, model.layoutChanged):
            changed.connect(self.look)
        view.viewport().installEventFilter(self)
        self.look()

    def look(self) -> None:
        """Shows itself, or goes."""
        said = self._said() if self._view.model().rowCount() == 0 else ""
        self.setText(said)
        self.setVisible(bool(said))
        self._place()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._place()
        return False

    def _place(self) -> None:
        around = self._view.viewport().rect().adjusted(MARGIN, MARGIN, -MARGIN, -MARGIN)
        self.setGeometry(around.x(), around.y(), around.width(), min(around.height(), HEIGHT))
