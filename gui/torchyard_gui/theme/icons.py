"""Icons that follow the theme, and the marks of roles and states as icons."""

from __future__ import annotations

from collections.abc import Callable

import shiboken6
from PySide6.QtCore import QByteArray, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QAction, QColor, QGuiApplication, QIcon, QIconEngine, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QAbstractButton, QApplication

from torchyard_gui.theme.marks import paint_role_badge, paint_state
from torchyard_gui.theme.svg_files import svg_text
from torchyard_gui.theme.theme import theme

__all__ = ["icon", "paint_role_badge", "paint_state", "pixmap", "refresh_icons", "role_icon", "state_icon"]

SIZES = (16, 20)
"""Sizes of icons in logical pixels: for menus and buttons, and for the navigation rail."""

_icons: dict[tuple[str, str, bool], QIcon] = {}
_known: dict[int, tuple[str, str]] = {}


def pixmap(name: str, size: int, color: str | QColor = "text2", ratio: float = 1.0) -> QPixmap:
    """Returns an icon as a pixmap of `size` logical pixels. `color` is a colour or the name of a colour token."""
    value = color if isinstance(color, QColor) else theme().color(color)
    return _rendered(QSvgRenderer(QByteArray(svg_text(name, value.name()).encode())), size, ratio, value.alphaF())


def icon(name: str, color: str = "text2") -> QIcon:
    """Returns an icon by its file name.

    A disabled icon is paler. While an icon of the default colour is checked, it has the accent colour.

    `refresh_icons` updates the icon on actions and buttons when the theme changes.
    """
    key = (name, color, theme().is_dark)
    made = _icons.get(key)
    if made is None:
        made = _icons[key] = QIcon(_Engine(name, color))
        _known[made.cacheKey()] = (name, color)
    return made


_clones: list[_Engine] = []
"""The icon engines that Qt has obtained from `clone()`. Qt owns these engines, but without a reference in Python,
PySide6 would delete an engine immediately, and the program would crash when Qt draws the icon.
"""


class _Engine(QIconEngine):
    """Icon engine that draws an icon only when it is needed, and only at the requested size, because most icons are in
    menus that are rarely opened.
    """

    def __init__(self, name: str, color: str):
        super().__init__()
        self._name = name
        plain = theme().color(color).name()
        # A disabled button does not have the accent colour as background, so an `on_accent` icon would be illegible on
        # it.
        pale = theme().color("text3").name() if color == "on_accent" else plain
        checked = theme().color("accent").name() if color == "text2" else plain
        self._looks = {"plain": (plain, 1.0), "pale": (pale, 0.4), "checked": (checked, 1.0)}
        self._drawn: dict[tuple[str, int], QPixmap] = {}

    def clone(self) -> QIconEngine:
        made = _Engine(self._name, "text2")
        made._looks, made._drawn = self._looks, self._drawn
        _clones[:] = [one for one in _clones if shiboken6.isValid(one)]
        _clones.append(made)
        return made

    def pixmap(self, size: QSize, mode: QIcon.Mode, state: QIcon.State) -> QPixmap:
        """Returns the icon drawn at `size` device pixels."""
        is_pale, is_checked = mode == QIcon.Mode.Disabled, state == QIcon.State.On
        look = "pale" if is_pale else "checked" if is_checked else "plain"
        side = min(size.width(), size.height())
        drawn = self._drawn.get((look, side))
        if drawn is None:
            color, opacity = self._looks[look]
            renderer = QSvgRenderer(QByteArray(svg_text(self._name, color).encode()))
            drawn = self._drawn[look, side] = _rendered(renderer, side, 1.0, opacity)
        return drawn

    def paint(self, painter: QPainter, rect: QRect, mode: QIcon.Mode, state: QIcon.State) -> None:
        ratio = painter.device().devicePixelRatioF()
        side = min(rect.width(), rect.height())
        drawn = self.pixmap(QSize(round(side * ratio), round(side * ratio)), mode, state)
        place = QRect(0, 0, side, side)
        place.moveCenter(rect.center())
        painter.drawPixmap(place, drawn)


def _rendered(renderer: QSvgRenderer, size: int, ratio: float, opacity: float) -> QPixmap:
    image = _blank(size, ratio)
    painter = QPainter(image)
    painter.setOpacity(opacity)
    renderer.render(painter, QRectF(0, 0, size, size))
    painter.end()
    return image


def role_icon(role: str) -> QIcon:
    return _painted(f"role:{role}", lambda painter, rect: paint_role_badge(painter, rect, role))


def state_icon(state: str) -> QIcon:
    return _painted(f"state:{state}", lambda painter, rect: paint_state(painter, rect, state))


def refresh_icons() -> None:
    """Updates this module's icons on all actions and buttons to the colours of the current theme."""
    for widget in QApplication.allWidgets():
        children = widget.findChildren(QAction, options=Qt.FindChildOption.FindDirectChildrenOnly)
        for action in {*widget.actions(), *children}:
            if (found := _again(action.icon())) is not None:
                action.setIcon(found)
        if isinstance(widget, QAbstractButton) and (found := _again(widget.icon())) is not None:
            widget.setIcon(found)


def _again(old: QIcon) -> QIcon | None:
    name, color = _known.get(old.cacheKey(), ("", ""))
    if not name:
        return None
    if name.startswith("role:"):
        return role_icon(name.removeprefix("role:"))
    if name.startswith("state:"):
        return state_icon(name.removeprefix("state:"))
    return icon(name, color)


def _painted(name: str, paint: Callable[[QPainter, QRectF], None]) -> QIcon:
    key = (name, "", theme().is_dark)
    made = _icons.get(key)
    if made is None:
        made = QIcon()
        application = QGuiApplication.instance()
        assert isinstance(application, QGuiApplication)
        ratio = application.devicePixelRatio()
        for size in SIZES:
            image = _blank(size, ratio)
            painter = QPainter(image)
            paint(painter, QRectF(0, 0, size, size))
            painter.end()
            made.addPixmap(image)
        _icons[key] = made
        _known[made.cacheKey()] = (name, "")
    return made


def _blank(size: int, ratio: float) -> QPixmap:
    image = QPixmap(round(size * ratio), round(size * ratio))
    image.setDevicePixelRatio(ratio)
    image.fill(Qt.GlobalColor.transparent)
    return image
