"""The fonts of the window: their families, and the size and weight for each text role."""

from __future__ import annotations

from PySide6.QtGui import QFont, QFontDatabase

FAMILIES = ("Inter", "Noto Sans CJK KR")
"""Font families in the order of preference. The second family contains Korean characters."""

FONTS = {
    "title": (14, 600),
    "body": (13, 400),
    "strong": (13, 600),
    "small": (12, 400),
    "small_strong": (12, 600),
    "tiny": (11, 400),
    "mono": (13, 400),
}
"""The size in pixels and the weight of the font for each text role."""
TEXT_EDITOR_PX = 12
"""The size in pixels of text in editors and previews of files."""


def font_of(role: str) -> QFont:
    """Returns a new font for a text role in `FONTS`, with tabular figures."""
    size, weight = FONTS[role]
    is_fixed = role == "mono"
    font = _system_monospaced() if is_fixed else QFont()
    if not is_fixed:
        font.setFamilies([FAMILIES[0], *QFont().families(), FAMILIES[1]])
    font.setPixelSize(size)
    font.setWeight(QFont.Weight(weight))
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


def monospaced() -> QFont:
    """Returns the monospaced font of the system for editors and previews of files."""
    font = _system_monospaced()
    font.setPixelSize(TEXT_EDITOR_PX)
    return font


def _system_monospaced() -> QFont:
    return QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
