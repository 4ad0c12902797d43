"""Applies a preset, and asks about replicas that the preset's strategy does not use."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QWidget

from torchyard_core.topology.strategies.presets import preset, unused_replicas
from torchyard_gui.canvas.labels import role_count
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.labels import preset_title, role_plural
from torchyard_gui.widgets.dialogs import ConfirmationDialog


def tr(text: str) -> str:
    return QCoreApplication.translate("PresetChoice", text)


def choose_preset(editor: Editor, key: str, say: Callable[[str], None], parent: QWidget) -> None:
    """Applies a preset, and offers to remove replicas that its strategy does not use. If the preset is refused, calls
    `say` with the reason.
    """
    editor.settle()
    unused = unused_replicas(editor.value, key)

    def apply(*, removes_unused: bool) -> None:
        if refusal := editor.add_preset(key, removes_unused=removes_unused):
            say(refusal)

    if not unused or editor.document.problems:
        apply(removes_unused=False)
        return
    replicas = tr(" and ").join(role_count(role.value, len(names)) for role, names in unused.items())
    only_one = sum(map(len, unused.values())) == 1
    box = ConfirmationDialog(
        tr("Remove {replicas}?").format(replicas=replicas),
        tr("{preset} uses no {roles}. If you keep them, they are listed among the problems.").format(
            preset=preset_title(preset(key)), roles=tr(" or ").join(map(role_plural, unused))
        ),
        tr("Keep it") if only_one else tr("Keep them"),
        tr("Cancel"),
        parent,
        alternative=tr("Remove it") if only_one else tr("Remove them"),
        is_grave=False,
    )
    box.setObjectName("preset")
    box.alternative_chosen.connect(lambda: apply(removes_unused=True))
    box.accepted.connect(lambda: apply(removes_unused=False))
    box.finished.connect(box.deleteLater)
    box.open()
