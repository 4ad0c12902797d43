"""The find bar, which selects the replicas whose name, role, pool, host or pin matches a search string."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame

from torchyard_core.launch.rank_assignment import Plan, PlannedReplica
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.labels import role_name
from torchyard_gui.widgets.input_fields import SearchField
from torchyard_gui.widgets.layouts import hbox
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.widgets.text_labels import label

WIDTH = 300
MARGIN = 12


class FindBar(QFrame):
    """A bar that covers a part of the canvas while it is open. All matching replicas are selected.

    Enter keeps this selection, and Esc restores the previous selection.
    """

    def __init__(self, editor: Editor, scene: TopologyScene, view: CanvasView) -> None:
        super().__init__(view)
        self._editor = editor
        self._scene = scene
        self._view = view
        self._plan: Plan | None = None
        self._before: tuple[str, ...] = ()
        self.setProperty("popup", True)
        self.setAccessibleName(self.tr("Find replicas"))
        self.field = SearchField(self.tr("Name, pool, host, is:pinned, is:invalid"))
        self.field.setToolTip(
            self.tr("All words must match. Enter keeps the matches selected; Esc restores the previous selection")
        )
        self.found = label(role="small", ink="2")
        hbox((self.field, 1), self.found, parent=self, margins=(8, 6, 10, 6), spacing=8)
        self.field.textChanged.connect(self._search)
        self.field.installEventFilter(self)
        view.installEventFilter(self)
        self.hide()

    def show_plan(self, plan: Plan) -> None:
        self._plan = plan

    def open(self) -> None:
        """Opens the bar with the focus in its field."""
        if self.isHidden():
            self._before = self._editor.selection
        self.field.clear()
        self.found.setText("")
        self._place()
        self.show()
        self.raise_()
        self.field.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._view:
            if event.type() == QEvent.Type.Resize:
                self._place()
            return False
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._close()
                return True
            if event.key() == Qt.Key.Key_Escape:
                self._editor.select(self._before)
                self._close()
                return True
        elif event.type() == QEvent.Type.FocusOut and self._view.hasFocus():
            self.hide()
        return False

    def _close(self) -> None:
        self.hide()
        self._view.setFocus(Qt.FocusReason.OtherFocusReason)

    def _search(self, text: str) -> None:
        words = text.casefold().split()
        replicas = self._plan.replicas if self._plan is not None and words else ()
        names = [planned.name for planned in replicas if all(self._fits(planned, word) for word in words)]
        self._editor.select(names if words else self._before)
        if not words:
            self.found.setText("")
            return
        tip = self.tr("1 found") if len(names) == 1 else self.tr("{count} found").format(count=len(names))
        self.found.setText(tip)
        announce(self, tip)
        if names:
            self._view.show_replicas(names)

    def _fits(self, planned: PlannedReplica, word: str) -> bool:
        if word == "is:invalid":
            return planned.name in self._scene.troubled or planned.host is None
        pin = self._editor.value.pins.get(planned.name, "")
        if word == "is:pinned":
            return bool(pin)
        has = (planned.name, role_name(planned.role), planned.replica.pool.name, planned.host or "", pin)
        return any(word in one.casefold() for one in has)

    def _place(self) -> None:
        width = min(WIDTH, self._view.width() - 2 * MARGIN)
        self.setGeometry(self._view.width() - width - MARGIN, MARGIN, width, self.sizeHint().height())
