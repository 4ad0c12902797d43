"""The last row of a dialog: the button that does what the dialog is for, and the one that leaves it."""

from __future__ import annotations

from PySide6.QtWidgets import QDialog, QDialogButtonBox, QPushButton


class DialogButtons(QDialogButtonBox):
    """`agree` accepts the dialog, `cancel` rejects it."""

    def __init__(self, dialog: QDialog, agree: str) -> None:
        super().__init__()
        self.agree = QPushButton(agree)
        self.agree.setProperty("primary", True)
        self.addButton(self.agree, self.ButtonRole.AcceptRole)
        self.cancel: QPushButton = self.addButton(self.tr("Cancel"), self.ButtonRole.RejectRole)
        self.accepted.connect(dialog.accept)
        self.rejected.connect(dialog.reject)
