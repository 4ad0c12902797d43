"""F6: the keyboard goes from pane to pane, and comes round."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget

from torchyard_gui.windows.navigation_rail import Rail


def next_pane(rail: Rail, panes: Sequence[QWidget], backwards: bool) -> None:
    """Give the keyboard to the pane after the one that has it; panes with nothing to type at are passed over."""
    around: list[QWidget] = [rail, *(pane for pane in panes if pane.isVisible())]
    focus = QApplication.focusWidget()
    here = next((number for number, pane in enumerate(around) if focus is not None and _within(pane, focus)), 0)
    step = -1 if backwards else 1
    for distance in range(1, len(around) + 1):
        pane = around[(here + step * distance) % len(around)]
        if pane is rail:
            rail.focus_current()
            return
        if (target := _first_field(pane)) is not None:
            target.setFocus(Qt.FocusReason.TabFocusReason)
            return


def _within(pane: QWidget, widget: QWidget) -> bool:
    return pane is widget or pane.isAncestorOf(widget)


def _first_field(pane: QWidget) -> QWidget | None:
    for widget in (pane, *pane.findChildren(QWidget)):
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.isEnabled() and widget.isVisible():
            return widget
    return None
