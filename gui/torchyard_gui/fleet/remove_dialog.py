"""Asks before hosts leave the fleet."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QWidget

from torchyard_gui.widgets import label
from torchyard_gui.widgets.dialogs import Question


class RemoveDialog(Question):
    """Accepted where the hosts are to go."""

    def __init__(self, names: Sequence[str], parent: QWidget | None = None):
        whom = names[0] if len(names) == 1 else _tr("{count} hosts").format(count=len(names))
        listed = _tr("They are {names}. ").format(names=", ".join(names)) if len(names) > 1 else ""
        stays = _tr("The agent stays, with the logs and outputs of past runs; to take it away, run this first:")
        question = _tr("Remove {hosts} from the fleet?").format(hosts=whom)
        super().__init__(question, listed + stays, _tr("Remove"), _tr("Keep"), parent)
        command = label(f"torchyard undeploy {' '.join(names)}", ink="2", wrap=True)
        command.setTextInteractionFlags(command.textInteractionFlags().TextSelectableByMouse)
        self.rows.addWidget(command)


def _tr(text: str) -> str:
    return QCoreApplication.translate("RemoveDialog", text)
