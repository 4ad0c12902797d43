"""Actions that create, open and save files. They handle unsaved changes, read-only files and changes by other
programs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from PySide6.QtCore import QFileSystemWatcher, QObject, Signal
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QFileDialog, QWidget

from torchyard_core.errors import FileProblem, TorchyardError
from torchyard_core.topology.document.topology_document import UNTITLED, TopologyDocument
from torchyard_core.topology.model import Topology
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.notice_queue import NoticeButton, NoticeQueue
from torchyard_gui.widgets.dialogs import ConfirmationDialog, ask_to_replace
from torchyard_gui.widgets.page_actions import action

FILTER = "YAML (*.yaml *.yml)"


class RecentFiles(Protocol):
    """Storage of the paths of recently used files."""

    @property
    def recent_files(self) -> list[Path]: ...

    def remember_file(self, path: Path) -> None: ...


class FileActions(QObject):
    """Actions that read and write the file of the document, and their notices."""

    opened = Signal()
    """Emitted when a document has been opened, read again or newly started."""
    saved = Signal()

    def __init__(self, editor: Editor, recent: RecentFiles, notices: NoticeQueue, window: QWidget) -> None:
        super().__init__(window)
        self._editor = editor
        self._document = editor.document
        self._recent = recent
        self._notices = notices
        self._window = window
        self.watch = FileWatcher(self._document, self)
        self.watch.state_changed.connect(self._disk_changed)
        keys = QKeySequence.StandardKey
        make = partial(action, self, "file")
        self.new = make(self.tr("&New"), self.start_new, keys.New, "file", self.tr("A new, empty topology"))
        self.open_action = make(self.tr("&Open …"), self.ask_open, keys.Open, "open", self.tr("Open a topology file"))
        self.save_action = make(self.tr("&Save"), self.save, keys.Save, "save")
        self.save_as_action = make(self.tr("Save &as …"), self.ask_save, "Ctrl+Shift+S", "save")
        tip = self.tr("Read the file again from the disk")
        self.reload_action = make(self.tr("Read &again"), lambda: self.guard(self.reload), None, "refresh", tip)
        self._document.path_changed.connect(self._follow)
        self._follow()

    def actions(self) -> list[QAction]:
        return [self.new, self.open_action, self.save_action, self.save_as_action, self.reload_action]

    def start_new(self) -> None:
        self.guard(self.begin)

    def begin(self, value: Topology | None = None) -> None:
        """Starts a document without a file, which is empty or has the topology `value`. Unsaved changes are lost."""
        self._forget()
        self._document.start_new(value)
        self.opened.emit()

    def ask_open(self) -> None:
        dialog = self.dialog(self.tr("Open a topology"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda chosen: self.open(Path(chosen)))
        dialog.open()

    def open(self, path: Path) -> None:
        """Opens a file. The user is asked first if there are unsaved changes."""
        self.guard(lambda: self.open_now(path))

    def open_now(self, path: Path) -> bool:
        """Opens a file, discarding unsaved changes. If the file cannot be read, shows the error and returns False."""
        try:
            self._document.open(path)
        except FileProblem as problem:
            self._notices.show_error("file", problem)
            return False
        self._forget()
        self._recent.remember_file(path.absolute())
        self.opened.emit()
        return True

    def reload(self) -> None:
        """Reads the file again; unsaved changes are lost."""
        if self._document.path is not None:
            self.open_now(self._document.path)

    def _forget(self) -> None:
        self._editor.stack.clear()
        self._editor.select(())
        for subject in ("file", "disk", "restored", "launch", "export"):
            self._notices.clear(subject)

    def save(self, then: Callable[[], object] | None = None) -> None:
        """Saves the document, and then calls `then`. If the document has no file, first asks the user for a file."""
        self._editor.settle()
        if self._document.path is None:
            self.ask_save(then)
        else:
            self.save_to(None, then)

    def ask_save(self, then: Callable[[], object] | None = None) -> None:
        dialog = self.dialog(self.tr("Save the topology"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("yaml")
        # Qt's overwrite confirmation would block the program, and some desktop environments show it before the suffix
        # is added.
        dialog.setOption(QFileDialog.Option.DontConfirmOverwrite)
        dialog.selectFile(self._document.path.name if self._document.path is not None else self._first_name())
        dialog.fileSelected.connect(lambda chosen: self._save_as(Path(chosen), then))
        dialog.open()

    def _first_name(self) -> str:
        """Returns the proposed file name for a document that has no file."""
        name = self._document.value.name
        return "topology.yaml" if name == UNTITLED else f"{name}.yaml"

    def _save_as(self, path: Path, then: Callable[[], object] | None) -> None:
        """Saves the document to `path`. If the file exists, asks the user before replacing it."""
        if path == self._document.path or not path.exists():
            self.save_to(path, then)
        else:
            ask_to_replace(path, lambda: self.save_to(path, then), lambda: self.ask_save(then), self._window)

    def save_to(self, path: Path | None, then: Callable[[], object] | None = None) -> bool:
        """Saves the document, to `path` if it is given. If saving fails, shows the error and returns False."""
        self._editor.settle()
        # A topology without a name gets the name of its file. Its runs then have the same name.
        names = path is not None and self._document.path is None and self._document.value.name == UNTITLED
        if names and path is not None:
            names = not self._editor.set_name(path.stem)
        try:
            self._document.save(path)
        except FileProblem as problem:
            if names:
                self._editor.stack.undo()
            self._report_unsaved(problem)
            return False
        for subject in ("file", "disk"):
            self._notices.clear(subject)
        assert self._document.path is not None
        self._recent.remember_file(self._document.path)
        self.saved.emit()
        if then is not None:
            then()
        return True

    def _report_unsaved(self, problem: TorchyardError) -> None:
        if problem.code == "changed_on_disk":
            self._report_changed()
            return
        again = NoticeButton(self.tr("Try again"), self.save)
        self._notices.show_error("file", problem, self._elsewhere(), again)

    def _disk_changed(self, state: str) -> None:
        self._editor.settle()
        if state == "same":
            self._notices.clear("disk")
        elif self._document.problems and state == "changed" and not self._document.is_modified:
            # Without unsaved changes, the invalid file can be read again: another program has probably corrected it.
            self.reload()
        elif state == "gone":
            text = self.tr("{file} no longer exists. Save the topology to write it again.")
            save = NoticeButton(self.tr("Save"), self.save)
            self._notices.show("disk", "warn", text.format(file=self._document.name), save, self._elsewhere())
        else:
            self._report_changed()

    def _report_changed(self) -> None:
        text = self.tr("{file} was changed by another program since it was read here.")
        if self._document.is_modified:
            text += " " + self.tr("Your own changes are not saved.")
        self._notices.show(
            "disk",
            "warn",
            text.format(file=self._document.name),
            NoticeButton(self.tr("Read theirs"), self.reload),
            NoticeButton(self.tr("Keep mine"), self._document.keep_mine),
            self._elsewhere(),
        )

    def _elsewhere(self) -> NoticeButton:
        return NoticeButton(self.tr("Save as …"), self.ask_save)

    def _follow(self) -> None:
        self.reload_action.setEnabled(self._document.path is not None)
        if self._document.is_read_only:
            text = self.tr("{file} is read-only: changes can be saved under another name.")
            self._notices.show("read-only", "info", text.format(file=self._document.name), self._elsewhere())
        else:
            self._notices.clear("read-only")

    def guard(self, then: Callable[[], object]) -> None:
        """Calls `then` at once if there are no unsaved changes. Otherwise, asks the user, and calls `then` after the
        changes have been saved or discarded.
        """
        self._editor.settle()
        if not self._document.is_modified:
            then()
            return
        box = ConfirmationDialog(
            self.tr("Save the changes to {file}?").format(file=self._document.name),
            self.tr("If you do not save them, they are lost."),
            self.tr("Discard"),
            self.tr("Cancel"),
            self._window,
            alternative=self.tr("Save"),
        )
        box.setObjectName("unsaved")
        box.alternative_chosen.connect(lambda: self.save(then))
        box.accepted.connect(lambda: then())
        box.finished.connect(box.deleteLater)
        box.open()

    def dialog(self, title: str, filters: str = FILTER, parent: QWidget | None = None) -> QFileDialog:
        """Creates a file dialog.

        The dialog starts in the folder of the document, else in the folder of the most recent file, else in the home
        folder.
        """
        folder = self._document.folder or next((path.parent for path in self._recent.recent_files), Path.home())
        dialog = QFileDialog(parent or self._window, title, str(folder), filters)
        dialog.finished.connect(dialog.deleteLater)
        return dialog


class FileWatcher(QObject):
    """Watches whether the document's file differs from the version that was last read or written."""

    state_changed = Signal(str)
    """Emitted with `same`, `changed` or `gone`."""

    def __init__(self, document: TopologyDocument, parent: QObject) -> None:
        super().__init__(parent)
        self._document = document
        self._state = "same"
        self._watcher = QFileSystemWatcher(self)
        self._watcher.fileChanged.connect(lambda _: self.look())
        document.path_changed.connect(self._follow)

    def look(self) -> None:
        """Compares the file with the version that was last read or written.

        Also renews the watch, because a QFileSystemWatcher stops watching a file that an editor replaces.
        """
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
