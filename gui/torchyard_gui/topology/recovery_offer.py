"""Offers unsaved work that a program which died has left, as a notice with its ways out."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from torchyard_core.topology.document.crash_recovery import LeftBehind
from torchyard_core.topology.document.topology_document import topology_in
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.files.autosave import Autosave
from torchyard_gui.topology.files.file_actions import FileActions
from torchyard_gui.topology.notice_queue import Notices, WayOut


def tr(text: str) -> str:
    return QCoreApplication.translate("recovery", text)


def offer_recovery(autosave: Autosave, files: FileActions, notices: Notices, editor: Editor) -> None:
    """Tells of the latest work that was left, if there is any; once it is settled, of the one before it."""
    work = next(iter(autosave.left_behind()), None)
    if work is None:
        return

    def settle(restore: bool) -> None:
        if restore:
            _restore(work, files, editor)
            autosave.write()
        autosave.discard(work)
        offer_recovery(autosave, files, notices, editor)

    name = work.path.name if work.path is not None else tr("an untitled topology")
    notices.tell(
        "recovery",
        "info",
        tr("Unsaved work on {file} from {time} was kept when the program ended.").format(
            file=name, time=work.written_at.astimezone().strftime("%d %b %H:%M")
        ),
        WayOut(tr("Restore it"), lambda: files.guard(lambda: settle(True))),
        WayOut(tr("Discard it"), lambda: settle(False)),
    )


def _restore(work: LeftBehind, files: FileActions, editor: Editor) -> None:
    """Opens the file that the work was on, and makes the work an edit of it."""
    value, _ = topology_in(work.text, work.path)
    if value is None:
        return
    if work.path is not None and work.path.exists() and files.open_now(work.path) and not editor.document.broken:
        editor.apply(tr("Restore unsaved work"), lambda _: value)
    else:
        files.begin(value)
