"""Watches the document's file for changes by other programs."""

from __future__ import annotations

from PySide6.QtCore import QFileSystemWatcher, QObject, Signal

from torchyard_core.topology.document.topology_document import TopologyDocument


class FileWatcher(QObject):
    """Compares the file with the version last read or written."""

    state_changed = Signal(str)
    """`same`, `changed` or `gone`."""

    def __init__(self, document: TopologyDocument, parent: QObject) -> None:
        super().__init__(parent)
        self._document = document
        self._state = "same"
        self._watcher = QFileSystemWatcher(self)
        self._watcher.fileChanged.connect(lambda _: self.look())
        document.path_changed.connect(self._follow)

    def look(self) -> None:
        """Checks the file. Editors replace files, which ends a QFileSystemWatcher's watch, so it is renewed."""
        self._watch()
        state = self._document.disk_state()
        if state != self._state:
            self._state = state
            self.state_changed.emit(state)

    def _follow(self) -> None:
        if watched := self._watcher.files():
            self._watcher.removePaths(watched)
        self.look()

    def _watch(self) -> None:
        path = self._document.path
        if path is not None and path.exists() and str(path) not in self._watcher.files():
            self._watcher.addPath(str(path))
