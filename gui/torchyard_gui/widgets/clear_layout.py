"""Takes widgets out of a layout for good."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtWidgets import QLayout, QWidget


def drop(layout: QLayout, widgets: Iterable[QWidget]) -> None:
    """Takes these out. They are deleted when the loop next turns, and hidden at once: nobody sees them till then."""
    for widget in widgets:
        layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()


def drop_all(layout: QLayout) -> None:
    """Takes every widget out that is in a layout now."""
    items = [layout.itemAt(number) for number in range(layout.count())]
    drop(layout, [widget for item in items if item is not None and (widget := item.widget()) is not None])
