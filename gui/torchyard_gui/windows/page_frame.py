"""Where a page stands in the window: its bar above it, unless the page has put that somewhere itself."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from torchyard_gui.theme.theme import theme


class PageFrame(QWidget):
    """Empty until the page is made."""

    def __init__(self) -> None:
        super().__init__()
        self.page: QWidget | None = None
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(0)

    def hold(self, page: QWidget) -> None:
        """Show a page here from now on."""
        self.page = page
        bar: QWidget | None = getattr(page, "bar", None)
        if bar is not None and bar.parentWidget() is None:
            bar.setFixedHeight(theme().metrics.bar)
            self._layout.addWidget(bar)
        self._layout.addWidget(page, 1)
