"""Settings of the window, stored in an INI file in the user's Torchyard folder."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from PySide6.QtCore import QByteArray, QSettings
from PySide6.QtWidgets import QSplitter, QWidget

from torchyard_gui.theme.theme import MODES, Mode

RECENT = 10


class WindowSettings:
    """Settings that are kept for the next window. A value that cannot be read is treated as missing."""

    def __init__(self, file: Path) -> None:
        self._settings = QSettings(str(file), QSettings.Format.IniFormat)

    @property
    def mode(self) -> Mode:
        """The theme: light, dark or system."""
        mode = cast(str, self._settings.value("theme/mode", "system", type=str))
        return mode if mode in MODES else "system"

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._settings.setValue("theme/mode", mode)

    @property
    def planned(self) -> str:
        """The planned time of the Topology page, in the format of `PlannedTime.to_text`."""
        return cast(str, self._settings.value("topology/planned", "", type=str))

    @planned.setter
    def planned(self, text: str) -> None:
        self._settings.setValue("topology/planned", text)

    @property
    def place(self) -> str:
        """The cluster for which the Topology page plans; "" for the hosts of the fleet file."""
        return cast(str, self._settings.value("topology/place", "", type=str))

    @place.setter
    def place(self, name: str) -> None:
        self._settings.setValue("topology/place", name)

    @property
    def canvas_by_group(self) -> bool:
        """Whether the Topology page shows replicas by group instead of by host."""
        return cast(bool, self._settings.value("topology/by_group", False, type=bool))

    @canvas_by_group.setter
    def canvas_by_group(self, by_group: bool) -> None:
        self._settings.setValue("topology/by_group", by_group)

    @property
    def minimap(self) -> str:
        """Whether the user wants the minimap, as "shown" or "hidden"; "" stands for the default."""
        return cast(str, self._settings.value("topology/minimap", "", type=str))

    @minimap.setter
    def minimap(self, choice: str) -> None:
        self._settings.setValue("topology/minimap", choice)

    @property
    def recent_files(self) -> list[Path]:
        """The paths of recently used topology files, the latest first."""
        count = self._settings.beginReadArray("recent")
        found = []
        for number in range(min(count, RECENT)):
            self._settings.setArrayIndex(number)
            found.append(Path(cast(str, self._settings.value("file", "", type=str))))
        self._settings.endArray()
        return found

    def remember_file(self, path: Path) -> None:
        """Adds a file to the beginning of the recent files, or moves it there."""
        self._write_recent([path, *(other for other in self.recent_files if other != path)][:RECENT])

    def restore(self, window: QWidget) -> None:
        """Restores the position and size of the window."""
        geometry = self._settings.value("window/geometry")
        if isinstance(geometry, QByteArray):
            window.restoreGeometry(geometry)

    def restore_splitters(self, page: QWidget) -> None:
        for splitter in _splitters(page):
            state = self._settings.value(f"splitters/{splitter.objectName()}")
            if isinstance(state, QByteArray):
                splitter.restoreState(state)

    def keep(self, window: QWidget) -> None:
        """Stores the position and size of the window and the sizes of its splitters."""
        self._settings.setValue("window/geometry", window.saveGeometry())
        for splitter in _splitters(window):
            self._settings.setValue(f"splitters/{splitter.objectName()}", splitter.saveState())

    def sync(self) -> None:
        """Writes the INI file."""
        self._settings.sync()

    def _write_recent(self, files: list[Path]) -> None:
        self._settings.remove("recent")
        self._settings.beginWriteArray("recent", len(files))
        for number, path in enumerate(files):
            self._settings.setArrayIndex(number)
            self._settings.setValue("file", str(path))
        self._settings.endArray()


def _splitters(window: QWidget) -> list[QSplitter]:
    """Returns the splitters that have an object name, which identifies them across starts."""
    return [splitter for splitter in window.findChildren(QSplitter) if splitter.objectName()]
