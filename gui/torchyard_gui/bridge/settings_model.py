"""The user's settings: reading, changes with undo, and detection of changes by other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from PySide6.QtCore import QFileSystemWatcher, QObject, QTimer, Signal

from torchyard_core.errors import TorchyardError
from torchyard_core.home import Home
from torchyard_core.user_settings import UserSettings

SETTLE_MS = 100
"""Delay in milliseconds between a change of the file and its reload, because one write causes several events."""


@dataclass(frozen=True)
class _Edit:
    """A change of one setting that can be undone. An empty value stands for the default."""

    key: str
    before: str
    after: str


class SettingsModel(QObject):
    """The settings file of a home folder. While the file has errors, the last valid settings apply."""

    changed = Signal()
    """Emitted when `settings`, `written` or `error` has changed."""

    def __init__(self, home: Home, parent: QObject | None = None) -> None:
        super().__init__(parent)
        from torchyard_core.app.change_settings import ChangeSettings

        self._change = ChangeSettings(home)
        self.path = home.settings_file
        self.settings = UserSettings()
        self.written: Mapping[str, str] = {}
        """The values that the file contains, by key."""
        self.error: TorchyardError | None = None
        """The reason why the file cannot be read, or None."""
        self._edits: list[_Edit] = []
        self._watcher = QFileSystemWatcher(self)
        self._soon = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._soon.timeout.connect(self.reload)
        self._watcher.fileChanged.connect(self._soon.start)
        self._watcher.directoryChanged.connect(self._soon.start)
        self.reload()

    def reload(self) -> None:
        """Reads the file. Emits `changed` if the settings, the written values or the error are different."""
        self._watch()
        settings, written, error = self.settings, self.written, None
        try:
            settings, written = self._change.read()
        except TorchyardError as problem:
            error = problem
        before = self.settings, self.written, str(self.error)
        self.settings, self.written, self.error = settings, written, error
        if before != (settings, written, str(error)):
            self.changed.emit()

    def problem(self, key: str, value: str) -> TorchyardError | None:
        """Returns the problem of a new value, or None if the value is valid. An empty value stands for the default."""
        return self._change.problem(key, value)

    def change(self, key: str, value: str) -> None:
        """Writes a value. An empty value restores the default.

        Raises TorchyardError if the value is invalid or cannot be written.
        """
        before = self._change.change(key, value)
        if before != value:
            self._edits.append(_Edit(key, before, value))
        self.reload()

    @property
    def can_undo(self) -> bool:
        """Whether the last change can be undone. A change cannot be undone if another program has changed the value
        since then.
        """
        return bool(self._edits) and self.written.get(self._edits[-1].key, "") == self._edits[-1].after

    def undo(self) -> str:
        """Undoes the last change.

        Returns the key of the setting, or "" if the change cannot be undone. Raises TorchyardError if the file cannot
        be written.
        """
        if not self.can_undo:
            return ""
        edit = self._edits[-1]
        self._change.change(edit.key, edit.before)
        self._edits.pop()
        self.reload()
        return edit.key

    @property
    def watched(self) -> list[str]:
        """The paths of the watched file and folders."""
        return [*self._watcher.files(), *self._watcher.directories()]

    def close(self) -> None:
        """Stops watching the file."""
        self._soon.stop()
        self._watcher.blockSignals(True)

    def _watch(self) -> None:
        """Watches the file and its folder, or the nearest parent folder that exists.

        After the file has been replaced, it must be watched again.
        """
        folder = next((one for one in self.path.absolute().parents if one.is_dir()), None)
        for path in (folder, self.path):
            if path is None or not path.exists():
                continue
            if str(path) not in self.watched:
                self._watcher.addPath(str(path))
