"""A section of the palette: its heading, and its rows below it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QPushButton, QSizePolicy, QVBoxLayout, QWidget

from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.palette_list import PaletteList
from torchyard_gui.widgets.text_labels import SectionLabel

PICTURE = 14


class PaletteSection(QWidget):
    """Gone where it has no rows. One that folds begins folded, so that what is wanted often has room; letters that
    somebody looks for show what fits in it all the same."""

    def __init__(self, name: str, make: Callable[[str], PaletteList], tip: str = "", *, folds: bool = False) -> None:
        """`make` takes the name, and is called when the rows are first shown."""
        super().__init__()
        self._make = make
        self._name = name
        self._is_folded = folds
        self._letters = ""
        self.head: SectionLabel | QPushButton = QPushButton(name.upper()) if folds else SectionLabel(name)
        if isinstance(self.head, QPushButton):
            self.head.setProperty("fold", True)
            self.head.setAccessibleName(name)
            self.head.setCheckable(True)
            self.head.setIconSize(QSize(PICTURE, PICTURE))
            self.head.clicked.connect(lambda: self.fold(not self._is_folded))
            theme().changed.connect(self._draw)
        self.head.setToolTip(tip)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 4)
        self._layout.setSpacing(4)
        self._layout.addWidget(self.head)
        self._draw()

    @cached_property
    def rows(self) -> PaletteList:
        """What can be dragged and chosen."""
        made = self._make(self._name)
        self._layout.addWidget(made)
        if isinstance(self.head, QPushButton):
            self.setTabOrder(self.head, made)
        return made

    @property
    def has_rows(self) -> bool:
        """Whether they were made: those of a folded section are for most people never."""
        return "rows" in self.__dict__

    def fold(self, folded: bool) -> None:
        """Hides its rows, or shows them."""
        self._is_folded = folded
        self._draw()

    def keep(self, letters: str) -> str:
        """Shows only rows with these letters; gives the first one's key."""
        self._letters = letters
        if not letters and self._is_folded and not self.has_rows:
            return ""
        found = self.rows.keep(letters)
        self.setVisible(bool(found))
        self._draw()
        return found

    def _draw(self) -> None:
        shown = not self._is_folded or bool(self._letters)
        if shown or self.has_rows:
            self.rows.setVisible(shown)
        if isinstance(self.head, QPushButton):
            self.head.setIcon(icon("chevron-down" if shown else "chevron-right"))
            self.head.setChecked(shown)
