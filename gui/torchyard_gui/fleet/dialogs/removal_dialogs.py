"""Confirmation dialogs for removing hosts and clusters from the fleet, and for removing agents from hosts."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QWidget

from torchyard_gui.widgets import label
from torchyard_gui.widgets.dialogs import ConfirmationDialog, grow_to_fit


class RemoveHostsDialog(ConfirmationDialog):
    """Asks whether to remove hosts and clusters from the fleet. The dialog is accepted if the user agrees."""

    def __init__(self, names: Sequence[str], clusters: Sequence[str] = (), parent: QWidget | None = None):
        """Creates the dialog. `clusters` contains the entries of `names` that are clusters."""
        several = _tr("{count} hosts") if not clusters else _tr("{count} hosts and clusters")
        what = names[0] if len(names) == 1 else several.format(count=len(names))
        question = _tr("Remove {hosts} from the fleet?").format(hosts=what)
        stays = _tr("The agent stays, with the logs and outputs of past runs. To remove these, undeploy first.")
        if len(clusters) == len(names):
            stays = _tr("Runs there go on, but are no longer followed from here. The agent stays installed.")
        super().__init__(question, _listed(names) + stays, _tr("Remove"), _tr("Keep"), parent)

    def show_bookings(self, count: int) -> None:
        """Adds a sentence with the number of the user's current and future bookings of the clusters' nodes."""
        if count:
            text = _tr("You have {count} bookings of its nodes. Slurm keeps their reservations: cancel them first.")
            if count == 1:
                text = _tr("You have a booking of its nodes. Slurm keeps its reservation: cancel it first.")
            sentence = label(text.format(count=count), ink="wait", wrap=True)
            self.rows.addWidget(sentence)
            sentence.show()  # A layout ignores the size of an added widget until the widget is shown.
            grow_to_fit(self)


class UndeployDialog(ConfirmationDialog):
    """Asks whether to remove the agent from hosts. The dialog is accepted if the user agrees."""

    def __init__(self, names: Sequence[str], parent: QWidget | None = None):
        question = _tr("Remove the agent from {hosts}?").format(hosts=_hosts_text(names))
        lost = _tr("The logs and outputs of past runs there are deleted. A host with a live run keeps its agent.")
        super().__init__(question, _listed(names) + lost, _tr("Undeploy"), _tr("Keep"), parent)


def _hosts_text(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else _tr("{count} hosts").format(count=len(names))


NAMED = 3
"""Maximum number of hosts that a question names. If there are more, the question contains only their number."""


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return ""
    shown = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        shown = _tr("{names} and {count} more").format(names=shown, count=len(names) - NAMED)
    return _tr("Selected: {names}. ").format(names=shown)


def _tr(text: str) -> str:
    return QCoreApplication.translate("RemovalDialogs", text)
