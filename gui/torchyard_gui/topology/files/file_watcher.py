"""Notices when somebody else changes the document's file."""

from __future__ import annotations

from PySide6.QtCore import QFileSystemWatcher, QObject, Signal

from torchyard_core.topology.document.topology_document import TopologyDocument


class DiskWatch(QObject):
    """Tells when the file is no longer as it was read or written last, and when it is so again."""

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
        """Looks now. Editors replace files rather than write into them, which ends a watch: it is begun anew."""
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
