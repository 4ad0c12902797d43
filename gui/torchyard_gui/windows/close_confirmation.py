"""Asks for confirmation if the window is closed during a launch or restart, which must be cancelled first.

If the window closed immediately, it would also close the links that are needed to cancel the launch, and keepers would
hold GPUs and ports until they time out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from torchyard_gui.widgets.dialogs import ConfirmationDialog

if TYPE_CHECKING:
    from torchyard_gui.launch.panel import LaunchPanel
    from torchyard_gui.widgets.launch_flow import LaunchFlow
    from torchyard_gui.windows.main_window import MainWindow


class CloseConfirmation(QObject):
    """Delays closing the window until the launch in progress has ended."""

    def __init__(self, window: MainWindow, launching: LaunchPanel | LaunchFlow, show: Callable[[], object]) -> None:
        """Connects the confirmation to the window.

        Args:
            show: Shows the page with the progress of the launch.
        """
        super().__init__(launching)
        self._window = window
        self._launching = launching
        self._show = show
        self._question: ConfirmationDialog | None = None
        self._is_closing = False
        launching.launch_over.connect(self._launch_over)

    def may_close(self) -> bool:
        """Returns whether the window may close now.

        During a launch, the result is False and the user is asked; after a confirmation, the window closes once the
        launch has been cancelled.
        """
        if not self._launching.is_launching:
            return True
        if self._is_closing:
            self._show()
        elif self._question is None:
            self._ask()
        return False

    def _ask(self) -> None:
        question = ConfirmationDialog(
            self.tr("Close while {name} is being launched?").format(name=self._launching.run_name),
            self.tr("The launch is cancelled first, then the window closes. Nothing is left on the hosts."),
            self.tr("Cancel the launch and close"),
            self.tr("Keep launching"),
            self._window,
        )
        question.accepted.connect(self._take_back)
        question.finished.connect(self._answered)
        self._question = question
        question.open()

    def _answered(self) -> None:
        if self._question is not None:
            self._question.deleteLater()
            self._question = None

    def _take_back(self) -> None:
        self._is_closing = True
        self._launching.cancel()

    def _launch_over(self, has_started: bool) -> None:
        """Called when the launch has ended. Closes the window if the user has confirmed this and no run has started."""
        if self._question is not None:
            self._question.reject()
        closing, self._is_closing = self._is_closing, False
        if closing and not has_started:
            self._window.close()
