"""Writes recovery snapshots of unsaved work, and offers to restore them after a crash."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QCoreApplication, QObject, QTimer, Signal

from torchyard_core.errors import TorchyardError
from torchyard_core.topology.document.crash_recovery import Recovery, UnsavedWork
from torchyard_core.topology.document.topology_document import TopologyDocument
from torchyard_core.topology.document.typed_text import shown_text
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.files.file_actions import FileActions
from torchyard_gui.topology.notice_queue import NoticeButton, NoticeQueue
from torchyard_gui.widgets.next_steps import error_text

AFTER_MS = 2000
"""Delay in milliseconds from the last change to the writing of a snapshot."""


class Autosave(QObject):
    """Writes recovery snapshots of a document to a folder. Without a folder, nothing is written."""

    failed = Signal(str)

    def __init__(self, document: TopologyDocument, folder: Path | None, parent: QObject) -> None:
        super().__init__(parent)
        self._document = document
        self._recovery = recovery = Recovery(folder) if folder is not None else None
        self._timer = QTimer(self, singleShot=True, interval=AFTER_MS)
        self._timer.timeout.connect(self.write)
        document.changed.connect(self._wait)
        document.path_changed.connect(self._wait)
        if recovery is not None:
            self.destroyed.connect(lambda: recovery.abandon())

    def _wait(self) -> None:
        if self._recovery is None:
            return
        if self._document.is_modified:
            self._timer.start()
        else:
            self.finish()

    def write(self) -> None:
        self._timer.stop()
        if self._recovery is None or not self._document.is_modified:
            return
        try:
            self._recovery.write(self._document.path, self._document.text)
        except TorchyardError as problem:
            self.failed.emit(error_text(problem))

    def finish(self) -> None:
        """Deletes the snapshot, because the work was saved or discarded."""
        self._timer.stop()
        if self._recovery is not None:
            self._recovery.clear()

    def unsaved_work(self) -> list[UnsavedWork]:
        """Returns the unsaved work of processes that have exited, the latest first."""
        return self._recovery.unsaved_work() if self._recovery is not None else []

    def discard(self, work: UnsavedWork) -> None:
        if self._recovery is not None:
            self._recovery.discard(work)


def tr(text: str) -> str:
    return QCoreApplication.translate("recovery", text)


def offer_recovery(autosave: Autosave, files: FileActions, notices: NoticeQueue, editor: Editor) -> None:
    """Offers to restore the latest unsaved work. After the user has decided, offers the next older work."""
    work = next(iter(autosave.unsaved_work()), None)
    if work is None:
        return

    def settle(restore: bool) -> None:
        if restore:
            _restore(work, files, editor)
            autosave.write()
        autosave.discard(work)
        offer_recovery(autosave, files, notices, editor)

    name = work.path.name if work.path is not None else tr("an untitled topology")
    notices.show(
        "recovery",
        "info",
        tr("Unsaved work on {file} from {time} was kept when the program ended.").format(
            file=name, time=work.written_at.astimezone().strftime("%d %b %H:%M")
        ),
        NoticeButton(tr("Restore it"), lambda: files.guard(lambda: settle(True))),
        NoticeButton(tr("Discard it"), lambda: settle(False)),
    )


def restore_session(
    path: Path | None, autosave: Autosave, files: FileActions, notices: NoticeQueue, editor: Editor
) -> None:
    """Opens the file of the last window and applies its unsaved changes. A single undo reverts these changes.

    If the file was written after these changes, they are not applied, but the notice of `offer_recovery` still offers
    them.
    """
    if path is not None:
        files.open_now(path)
    work = next((work for work in autosave.unsaved_work() if work.path == path), None)
    if work is None or _was_changed_since(work):
        return
    _restore(work, files, editor)
    autosave.write()
    autosave.discard(work)
    notices.clear("recovery")
    offer_recovery(autosave, files, notices, editor)
    text = tr("Unsaved changes from {time} were restored.")
    if editor.stack.canUndo():
        text = tr("Unsaved changes from {time} were restored. Undo takes them back.")
    time = work.written_at.astimezone().strftime("%d %b %H:%M")
    notices.show("restored", "info", text.format(time=time))


def _was_changed_since(work: UnsavedWork) -> bool:
    """Returns whether the file was written after the snapshot of its unsaved changes."""
    try:
        return work.path is not None and work.path.stat().st_mtime > work.written_at.timestamp() + 1
    except OSError:  # The file no longer exists.
        return False


def _restore(work: UnsavedWork, files: FileActions, editor: Editor) -> None:
    """Opens the file of the unsaved work, or an empty document if there is no such file. Applies the work as an edit of
    the text.
    """
    if work.path is None or not work.path.exists() or not files.open_now(work.path):
        files.begin()
    editor.type_text(shown_text(work.text), tr("Restore unsaved work"))
