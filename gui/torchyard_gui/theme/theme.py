"""The current theme as Qt colours, pens, fonts, palette and style sheet."""

from __future__ import annotations

from functools import cache
from typing import Literal, cast

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QBrush, QColor, QFont, QGuiApplication, QPalette, QPen
from PySide6.QtWidgets import QApplication

from torchyard_gui.theme.fonts import font_of
from torchyard_gui.theme.stylesheet import stylesheet
from torchyard_gui.theme.svg_files import write_stylesheet_svgs
from torchyard_gui.theme.tokens import DARK, LIGHT, METRICS, Metrics, Tokens

Mode = Literal["system", "light", "dark"]
MODES: tuple[Mode, ...] = ("system", "light", "dark")


class Theme(QObject):
    """The current theme. Widgets read the theme whenever they paint, and repaint when it emits `changed`."""

    changed = Signal()
    metrics: Metrics = METRICS

    def __init__(self) -> None:
        super().__init__()
        self.mode: Mode = "system"
        self._tokens = LIGHT
        self._colors: dict[str, QColor] = {}
        self._pens: dict[tuple[str, float], QPen] = {}
        self._brushes: dict[str, QBrush] = {}
        self._fonts: dict[str, QFont] = {}
        self._is_prepared = False
        self._has_sheet = False
        if isinstance(QGuiApplication.instance(), QGuiApplication):
            hints = QGuiApplication.styleHints()
            hints.colorSchemeChanged.connect(self._follow_system)
            self._tokens = self._wanted()

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    @property
    def is_dark(self) -> bool:
        return self._tokens.dark

    def color(self, name: str, alpha: float = 1.0) -> QColor:
        """Returns the colour of a token. With `alpha` below 1, the colour is translucent."""
        color = self._colors.get(name)
        if color is None:
            color = self._colors[name] = QColor(cast(str, getattr(self._tokens, name)))
        if alpha < 1:
            color = QColor(color)
            color.setAlphaF(alpha)
        return color

    def pen(self, name: str, width: float = 1) -> QPen:
        """Returns a solid pen in the colour of a token. The pen is shared: copy it before you change it."""
        pen = self._pens.get((name, width))
        if pen is None:
            pen = self._pens[name, width] = QPen(self.color(name), width)
        return pen

    def brush(self, name: str) -> QBrush:
        """Returns a brush in the colour of a token. The brush is shared: copy it before you change it."""
        brush = self._brushes.get(name)
        if brush is None:
            brush = self._brushes[name] = QBrush(self.color(name))
        return brush

    def font(self, role: str = "body") -> QFont:
        """Returns the font of a text role in `fonts.FONTS`, with tabular figures.

        The font is shared: copy it before you change it.
        """
        font = self._fonts.get(role)
        if font is None:
            font = self._fonts[role] = font_of(role)
        return font

    def set_mode(self, mode: Mode) -> None:
        """Sets the theme: light, dark or system."""
        self.mode = mode
        self._take(self._wanted())

    def install(self, application: QApplication) -> None:
        """Applies style, palette, font and style sheet to the application. Only the first call has an effect."""
        self.prepare(application)
        if not self._has_sheet:
            self._has_sheet = True
            self._style_application()

    def prepare(self, application: QApplication) -> None:
        """Applies the theme except for the style sheet.

        A window is built twice as fast without a style sheet. With a style sheet, Qt restyles a widget whenever the
        widget's parent changes.
        """
        if self._is_prepared:
            return
        self._is_prepared = True
        application.setStyle("Fusion")
        application.setFont(self.font("body"))
        self._style_application()

    def _wanted(self) -> Tokens:
        if self.mode == "system":
            return DARK if QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark else LIGHT
        return DARK if self.mode == "dark" else LIGHT

    def _follow_system(self) -> None:
        self._take(self._wanted())

    def _take(self, tokens: Tokens) -> None:
        if tokens is self._tokens:
            return
        self._tokens = tokens
        self._colors.clear()
        self._pens.clear()
        self._brushes.clear()
        if self._is_prepared:
            self._style_application()
        self.changed.emit()

    def _style_application(self) -> None:
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        application.setPalette(self._palette())
        if self._has_sheet:
            application.setStyleSheet(stylesheet(self._tokens, METRICS, write_stylesheet_svgs(self._tokens)))

    def _palette(self) -> QPalette:
        colors = {
            QPalette.ColorRole.Window: "s1",
            QPalette.ColorRole.WindowText: "text",
            QPalette.ColorRole.Base: "s2",
            QPalette.ColorRole.AlternateBase: "s1",
            QPalette.ColorRole.Text: "text",
            QPalette.ColorRole.PlaceholderText: "text3",
            QPalette.ColorRole.Button: "s2",
            QPalette.ColorRole.ButtonText: "text",
            QPalette.ColorRole.BrightText: "fail",
            QPalette.ColorRole.Highlight: "accent",
            QPalette.ColorRole.HighlightedText: "on_accent",
            QPalette.ColorRole.Link: "accent",
            QPalette.ColorRole.LinkVisited: "accent",
            QPalette.ColorRole.ToolTipBase: "text",
            QPalette.ColorRole.ToolTipText: "s2",
            QPalette.ColorRole.Light: "s2",
            QPalette.ColorRole.Midlight: "s1",
            QPalette.ColorRole.Mid: "hair",
            QPalette.ColorRole.Dark: "line",
            QPalette.ColorRole.Shadow: "shadow",
            QPalette.ColorRole.Accent: "accent",
        }
        palette = QPalette()
        for role, name in colors.items():
            palette.setColor(role, self.color(name))
        for role in (QPalette.ColorRole.WindowText, QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText):
            palette.setColor(QPalette.ColorGroup.Disabled, role, self.color("text3", 0.6))
        return palette


@cache
def theme() -> Theme:
    """Returns the theme. The theme follows the system's theme only if an application exists when this function is first
    called.
    """
    return Theme()


def mixed_colors(one: QColor, other: QColor, part: float) -> QColor:
    """Returns an opaque mixture of two colours. `part` is the fraction of the second one, from 0 to 1."""
    pairs = (one.red(), other.red()), (one.green(), other.green()), (one.blue(), other.blue())
    return QColor(*(round(a + (b - a) * part) for a, b in pairs))
