"""Simulates mouse and keyboard input on the Topology page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QPoint, QPointF, Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QDragMoveEvent, QDropEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.topology.inspector.field_group import Group
from torchyard_gui.topology.inspector.fields import ChoiceField, LineField, LinesField
from torchyard_gui.topology.page import TopologyPage
from torchyard_gui.topology.palette_list import PaletteList

LEFT = Qt.MouseButton.LeftButton
PLAIN = Qt.KeyboardModifier.NoModifier
CONTROL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier


class FleetOf(QObject):
    """A fake fleet model with a fixed list of hosts."""

    facts_changed = Signal()

    def __init__(self, hosts: Sequence[HostFacts]) -> None:
        super().__init__()
        self.hosts = list(hosts)
        self.watched = False
        self.checks = 0
        self.other: dict[str, HostState] = {}
        """States of hosts that are not ready."""

    def check(self) -> None:
        self.checks += 1

    def watch(self, on: bool, by: str = "") -> None:
        self.watched = on

    def facts(self) -> Sequence[HostFacts]:
        return tuple(self.hosts)

    def states(self) -> dict[str, HostState]:
        return {host.name: HostState.READY if host.checked else HostState.UNKNOWN for host in self.hosts} | self.other


class FewFiles:
    """Keeps the page's recent files and settings in memory, and not in the user's files."""

    def __init__(self) -> None:
        self.recent_files: list[Path] = []
        self.canvas_by_group = False
        self.minimap = ""

    def remember_file(self, path: Path) -> None:
        self.recent_files.insert(0, path)


class Window(QWidget):
    """A window with the page and the page's bar, which closes as the program's window does."""

    def __init__(self, page: TopologyPage) -> None:
        super().__init__()
        self.page = page
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(page.bar)
        layout.addWidget(page, 1)
        self.resize(1376, 830)

    def closeEvent(self, event: Any) -> None:
        if self.page.can_close():
            event.accept()
        else:
            event.ignore()


@dataclass
class Driver:
    """A simulated user of the page."""

    qtbot: QtBot
    page: TopologyPage
    window: Window
    fleet: FleetOf
    recent: FewFiles

    # State of the page

    @property
    def value(self) -> Topology:
        return self.page.document.value

    def counts(self) -> dict[str, int]:
        return {pool.name: pool.replicas for pool in self.value.pools}

    def where(self, name: str) -> str:
        """Returns the host and GPUs of a replica, such as `gpu-b:2` or `cpu-d`; returns "" if it is not placed."""
        planned = self.page.current_plan.replica(name)
        gpus = ",".join(str(gpu.index) for gpu in planned.gpus)
        return (planned.host or "") + (f":{gpus}" if gpus else "")

    def undo_text(self) -> str:
        return self.page.editor.stack.undoText()

    def notice(self) -> str:
        return self.page.notice_bar.text if self.page.notice_bar.isVisible() else ""

    def codes(self) -> list[str]:
        """Validates the topology; returns the codes of the problems."""
        self.page.checks.now()
        return [problem.code for problem in self.page.problems.problems]

    # Input by keyboard

    def keys(self, key: Qt.Key, modifiers: Qt.KeyboardModifier = PLAIN) -> None:
        """Presses a key in the widget that has the focus."""
        widget = QApplication.focusWidget() or self.window
        QTest.keyClick(widget, key, modifiers)

    def type(self, text: str) -> None:
        QTest.keyClicks(QApplication.focusWidget(), text)

    def on_canvas(self) -> None:
        self.page.view.setFocus()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        self.qtbot.waitUntil(condition, timeout=30_000)

    # Input on the canvas

    def at(self, name: str) -> QPoint:
        """Returns the centre of a chip."""
        rect = self.page.scene.rect_of(name)
        assert not rect.isNull(), f"{name} is not on the canvas"
        return self.page.view.mapFromScene(rect.center())

    def slot(self, target: str) -> QPoint:
        """Returns a point in a slot such as `gpu-b:2`, in the header of a rack such as `gpu-b`, or beside all racks."""
        host, _, gpu = target.partition(":")
        if gpu:
            return self.page.view.mapFromScene(self.page.scene.rect_of_slot(host, int(gpu)).center())
        if host:
            rect = self.page.scene.rect_of_rack(host)
            return self.page.view.mapFromScene(rect.topLeft() + QPointF(120, 12))
        return QPoint(self.page.view.viewport().width() - 6, self.page.view.viewport().height() - 70)

    def click(self, name: str, modifiers: Qt.KeyboardModifier = PLAIN) -> None:
        QTest.mouseClick(self.page.view.viewport(), LEFT, modifiers, self.at(name))

    def select(self, *names: str) -> None:
        for number, name in enumerate(names):
            self.click(name, CONTROL if number else PLAIN)
        assert set(self.page.editor.selection) == set(names)

    def carry(self, name: str, target: str, *, drop: bool = True) -> str:
        """Drags a chip to a target without dropping it; returns the caption beside the cursor."""
        viewport = self.page.view.viewport()
        start, end = self.at(name), self.slot(target)
        QTest.mousePress(viewport, LEFT, PLAIN, start)
        for step in range(1, 6):
            QTest.mouseMove(viewport, start + (end - start) * step / 5)
        gesture = self.page.view.gesture
        caption = getattr(gesture, "caption", "")
        if drop:
            QTest.mouseRelease(viewport, LEFT, PLAIN, end)
        return caption

    def drop(self, rows: PaletteList, key: str, target: str) -> bool:
        """Drops a row of the palette on the canvas; returns whether the canvas accepts it."""
        viewport = self.page.view.viewport()
        at, mime, copy = self.slot(target), rows.mime_of(key), Qt.DropAction.CopyAction
        enter = QDragEnterEvent(at, copy, mime, LEFT, PLAIN)
        QApplication.sendEvent(viewport, enter)
        move = QDragMoveEvent(at, copy, mime, LEFT, PLAIN)
        QApplication.sendEvent(viewport, move)
        if not move.isAccepted():
            return False
        QApplication.sendEvent(viewport, QDropEvent(QPointF(at), copy, mime, LEFT, PLAIN))
        return True

    # Input through the palette

    def row(self, rows: PaletteList, key: str) -> QPoint:
        item = rows.row_of(key)
        assert item is not None
        return rows.visualItemRect(item).center()

    def choose(self, rows: PaletteList, key: str, modifiers: Qt.KeyboardModifier = PLAIN) -> None:
        if not rows.isVisible():
            (section,) = (section for section in self.page.palette_.sections if section.rows is rows)
            QTest.mouseClick(section.head, LEFT)
        QTest.mouseClick(rows.viewport(), LEFT, modifiers, self.row(rows, key))

    # Input in the inspector

    def fill(self, group: Group, key: str, text: str) -> None:
        """Replaces the text of a field and presses Enter, or Ctrl+Enter in a multi-line field."""
        field = group.field(key)
        field.setFocus()
        QTest.keyClick(field, Qt.Key.Key_A, CONTROL)
        if text:
            QTest.keyClicks(field, text)
        else:
            QTest.keyClick(field, Qt.Key.Key_Delete)
        if isinstance(field, LinesField):
            QTest.keyClick(field, Qt.Key.Key_Return, CONTROL)
        else:
            assert isinstance(field, LineField)
            QTest.keyClick(field, Qt.Key.Key_Return)

    def pick(self, field: ChoiceField, text: str) -> None:
        """Chooses an entry of a combo box with the keyboard."""
        field.setFocus()
        row = field.findText(text)
        assert row >= 0, f"there is no {text}"
        QTest.keyClick(field, Qt.Key.Key_Home)
        for _ in range(row):
            QTest.keyClick(field, Qt.Key.Key_Down)

    def pick_from_popup(self, field: ChoiceField, text: str) -> None:
        """Chooses an entry in the popup of a combo box."""
        field.showPopup()
        view = field.view()
        view.setCurrentIndex(field.model().index(field.findText(text), 0))
        QTest.keyClick(view, Qt.Key.Key_Return)
