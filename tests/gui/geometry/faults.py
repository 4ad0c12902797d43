"""Finds text in a window that is cut off, overlapping, blank, outside its area, or shortened without a tool tip.

The state of a run or sweep may not be shortened at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QGraphicsView,
    QHeaderView,
    QLabel,
    QLayout,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QStackedLayout,
    QTextEdit,
    QToolButton,
    QToolTip,
    QWidget,
)

from tests.gui.geometry.painted_text import LARGE, PaintedText, painted_texts
from torchyard_gui.widgets import StateTitle

SLACK = 1.5
"""Pixels by which ink may extend beyond its area, because of antialiasing and of rounding at fractional scales."""
SMALLEST = 4
"""Minimum width and height in pixels of a widget with text. A smaller widget would show nothing."""
ELLIPSIS = "…"
ROWS = 200
"""The number of rows of a list, from its beginning, whose texts are checked."""


@dataclass(frozen=True)
class Fault:
    """A fault in the display of text, such as `cut`, and the widget that contains the text."""

    kind: str
    widget: str
    text: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.widget} “{self.text}” {self.detail}"


@dataclass(frozen=True)
class _Run:
    """A painted text, with its position in window coordinates."""

    widget: QWidget
    text: str
    ink: QRectF


def faults_of(window: QWidget) -> list[Fault]:
    """Returns the faults of all visible text in a window or dialog."""
    found: list[Fault] = []
    runs: list[_Run] = []
    for widget in _visible_widgets(window):
        texts = painted_texts(widget)
        found += _blank(widget, texts)
        overlays = _overlays(widget, window)
        cuts = [(text, *_cut(widget, window, text)) for text in texts]
        # An editor paints a selected text several times, each time with another clip.
        whole = [(text.text, text.ink) for text, fault, _ in cuts if not fault]
        for text, fault, seen in cuts:
            if seen.isEmpty() or (fault and (text.text, text.ink) in whole):
                continue
            ink = seen.translated(QPointF(widget.mapTo(window, QPoint())))
            if any(QRectF(overlay).intersects(ink) for overlay in overlays):
                continue
            if fault:
                found.append(Fault("cut", _name(widget), text.text, fault))
            elif _is_elided(widget, text.text) and _is_essential(widget):
                found.append(Fault("elided", _name(widget), text.text, ""))
            elif _is_elided(widget, text.text) and not _has_tip(widget, text):
                found.append(Fault("elided without a tool tip", _name(widget), text.text, ""))
            runs.append(_Run(widget, text.text, ink))
        found += _layout_overlaps(widget)
    found += _text_overlaps(runs)
    return list(dict.fromkeys(found))


def _visible_widgets(window: QWidget) -> Iterator[QWidget]:
    """Yields the widgets of a window in the order in which they are painted."""
    yield window
    for child in window.children():
        if isinstance(child, QWidget) and child.isVisible() and not child.isWindow():
            yield from _visible_widgets(child)


def _scrolls(viewport: QWidget, widget: QWidget) -> tuple[bool, bool]:
    """Returns whether a widget's text can be scrolled horizontally, and whether it can be scrolled vertically."""
    area = viewport.parentWidget()
    if isinstance(area, QHeaderView):
        area = area.parentWidget()
    if not isinstance(area, QAbstractScrollArea):
        return False, False
    if isinstance(area, QGraphicsView):
        # The user can pan a canvas, but not the widgets over it.
        return viewport is widget, viewport is widget
    hidden = Qt.ScrollBarPolicy.ScrollBarAlwaysOff
    across, along = area.horizontalScrollBar(), area.verticalScrollBar()
    return (
        across.maximum() > across.minimum() and area.horizontalScrollBarPolicy() != hidden,
        along.maximum() > along.minimum() and area.verticalScrollBarPolicy() != hidden,
    )


def _cut(widget: QWidget, window: QWidget, text: PaintedText) -> tuple[str, QRectF]:
    """Returns how the text is cut off, or an empty string if it is not, and the visible part of its ink."""
    hard = QRectF(text.clip)  # The visible area.
    soft = QRectF(text.clip)  # The area that is visible or can be scrolled into view.
    across = along = False
    step: QWidget = widget
    while True:
        box = QRectF(QRect(step.mapTo(window, QPoint()) - widget.mapTo(window, QPoint()), step.size()))
        hard &= box
        scrolls = _scrolls(step, widget)
        across, along = across or scrolls[0], along or scrolls[1]
        soft = _widened(soft, across, along) & _widened(box, across, along)
        if step is window:
            break
        step = step.parentWidget()
    ink = text.ink
    if isinstance(widget, QLineEdit) and not isinstance(widget.parentWidget(), QAbstractSpinBox):
        return "", hard & ink  # A line edit scrolls its text when the cursor moves.
    if ink.right() > soft.right() + SLACK:
        return f"at the right by {ink.right() - soft.right():.0f} px", ink
    if ink.left() < soft.left() - SLACK:
        return f"at the left by {soft.left() - ink.left():.0f} px", ink
    if ink.bottom() > soft.bottom() + SLACK:
        return f"at the bottom by {ink.bottom() - soft.bottom():.0f} px", ink
    if ink.top() < soft.top() - SLACK:
        return f"at the top by {soft.top() - ink.top():.0f} px", ink
    return "", hard & ink


def _widened(box: QRectF, across: bool, along: bool) -> QRectF:
    """Returns a box that is unlimited in each direction in which the widget can be scrolled."""
    return box.adjusted(-LARGE if across else 0, -LARGE if along else 0, LARGE if across else 0, LARGE if along else 0)


def _own_texts(widget: QWidget) -> set[str]:
    """Returns the strings that a widget was given.

    An ellipsis in one of these strings does not mean that Qt has shortened it.
    """
    if isinstance(widget, QMenu):
        return {action.text().replace("&", "") for action in widget.actions()}
    view = widget.parentWidget()
    if isinstance(view, QAbstractItemView) and view.model() is not None:
        rows = range(min(view.model().rowCount(), ROWS))
        return {str(view.model().index(row, 0).data()) for row in rows}
    own = [getattr(widget, name, None) for name in ("text", "placeholderText", "currentText", "title")]
    texts = {str(read()).replace("&", "") for read in own if callable(read)}
    return texts | {line for text in texts for line in text.splitlines()}


def _is_elided(widget: QWidget, text: str) -> bool:
    return ELLIPSIS in text and not any(text in own for own in _own_texts(widget))


def _is_essential(widget: QWidget) -> bool:
    """Returns whether a text must be readable without a tool tip: the state of a run or sweep."""
    title = widget.parentWidget()
    return isinstance(title, StateTitle) and widget is title.state


def _has_tip(widget: QWidget, text: PaintedText) -> bool:
    """Returns whether a tool tip is shown while the pointer is over the text."""
    _hide_tip()
    place = text.ink.center().toPoint()
    event = QHelpEvent(QEvent.Type.ToolTip, place, widget.mapToGlobal(place))
    QApplication.sendEvent(widget, event)
    shown = QToolTip.isVisible()
    _hide_tip()
    step: QWidget | None = widget
    while step is not None and not shown:
        shown = bool(step.toolTip())
        step = None if step.isWindow() else step.parentWidget()
    return shown


def _hide_tip() -> None:
    """Hides the tool tip at once. `QToolTip.hideText` would hide it only after a delay."""
    for top in QApplication.topLevelWidgets():
        if top.inherits("QTipLabel"):
            top.hide()


def _blank(widget: QWidget, texts: list[PaintedText]) -> list[Fault]:
    """Returns a fault if a widget has text but paints none, or is too small to show it."""
    if isinstance(widget, QLabel):
        text = widget.text()
    elif isinstance(widget, QAbstractButton):
        icon_only = isinstance(widget, QToolButton) and (
            widget.toolButtonStyle() == Qt.ToolButtonStyle.ToolButtonIconOnly and not widget.icon().isNull()
        )
        text = "" if icon_only else widget.text()
    elif isinstance(widget, QComboBox):
        text = "" if widget.isEditable() else widget.currentText()
    else:
        return []
    is_small = widget.width() < SMALLEST or widget.height() < SMALLEST
    if text.strip() and (not texts or is_small):
        return [Fault("blank", _name(widget), text, f"{widget.width()}×{widget.height()}")]
    return []


def _managed(layout: QLayout | None) -> list[QWidget]:
    """Returns the visible widgets of a layout, including those of nested layouts."""
    if layout is None or isinstance(layout, QStackedLayout):
        return []
    found: list[QWidget] = []
    for number in range(layout.count()):
        item = layout.itemAt(number)
        widget = item.widget()
        if widget is not None:
            found += [widget] if widget.isVisible() else []
        else:
            found += _managed(item.layout())
    return found


def _overlays(widget: QWidget, window: QWidget) -> list[QRect]:
    """Returns the areas of the window that may cover a widget: drawers, toasts and the command palette."""
    found: list[QRect] = []
    step = widget
    while step is not window:
        parent = step.parentWidget()
        managed = _managed(parent.layout())
        below = True
        for sibling in parent.children():
            if sibling is step:
                below = False
            elif below or not isinstance(sibling, QWidget) or not sibling.isVisible() or sibling.isWindow():
                continue
            elif not _is_see_through(sibling) and not (step in managed and sibling in managed):
                found.append(QRect(sibling.mapTo(window, QPoint()), sibling.size()))
        step = parent
    return found


def _is_see_through(widget: QWidget) -> bool:
    """Returns whether a widget, such as a legend, is painted over the page without a background."""
    return widget.testAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents) and not widget.property("toast")


def _layout_overlaps(parent: QWidget) -> list[Fault]:
    """Returns the overlapping widgets of a layout."""
    found = []
    for one, other in combinations(_managed(parent.layout()), 2):
        if one.parentWidget() is not other.parentWidget():
            continue
        both = one.geometry().intersected(other.geometry())
        if both.width() > SLACK and both.height() > SLACK:
            found.append(Fault("overlap", _name(one), _words(one), f"and {_name(other)} “{_words(other)}”: {both}"))
    return found


def _text_overlaps(runs: list[_Run]) -> list[Fault]:
    """Returns a fault for each overlap of text. Multi-line editors are left out, because Qt arranges their lines."""
    found = []
    editors = QPlainTextEdit | QTextEdit
    ordered = sorted(
        (run for run in runs if not isinstance(run.widget.parentWidget(), editors)), key=lambda run: run.ink.left()
    )
    for number, one in enumerate(ordered):
        for other in ordered[number + 1 :]:
            if other.ink.left() >= one.ink.right() - SLACK:
                break
            both = one.ink.intersected(other.ink)
            if both.width() > SLACK and both.height() > SLACK and one.ink != other.ink:
                found.append(Fault("overlap", _name(one.widget), one.text, f"and {_name(other.widget)} “{other.text}”"))
    return found


def _words(widget: QWidget) -> str:
    read = getattr(widget, "text", None) or widget.accessibleName
    return str(read())


def _name(widget: QWidget) -> str:
    """Returns the class name of a widget for messages.

    If the class is a general one, the class names of the widget's parents precede it.
    """
    parent = widget.parentWidget()
    names = [type(widget).__name__]
    while parent is not None and names[0] in ("QWidget", "QLabel", "ElidedLabel", "QPushButton", "QFrame"):
        names.insert(0, type(parent).__name__)
        parent = parent.parentWidget()
    return ".".join(re.sub(r"^_", "", name) for name in names)
