"""Closing the window while a run is launched, or launched again: asks, has it taken back, and then closes.

A window that went at once would close the links that the taking back needs; keepers would then hold GPUs and ports
until they give up by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from torchyard_gui.widgets.dialogs import Question

if TYPE_CHECKING:
    from torchyard_gui.launch.panel import LaunchPanel
    from torchyard_gui.runs.restart import Restarting
    from torchyard_gui.windows.main_window import MainWindow


class LaunchBeforeClosing(QObject):
    """Stands between the window's cross and a launch in the making."""

    def __init__(self, window: MainWindow, launching: LaunchPanel | Restarting, show: Callable[[], object]) -> None:
        """`show`: brings to the front what tells how it goes."""
        super().__init__(launching)
        self._window = window
        self._launching = launching
        self._show = show
        self._question: Question | None = None
        self._is_closing = False
        launching.launch_over.connect(self._launch_over)

    def may_close(self) -> bool:
        """Whether no launch is under way. Where one is, somebody is asked, and the window closes itself later."""
        if not self._launching.is_launching:
            return True
        if self._is_closing:
            self._show()
        elif self._question is None:
            self._ask()
        return False

    def _ask(self) -> None:
        question = Question(
            self.tr("{name} is being launched. Close?").format(name=self._launching.run_name),
            self.tr("The launch is taken back first, then the window closes; nothing of it is left on the hosts then."),
            self.tr("Take it back and close"),
            self.tr("Go on launching"),
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
        """However it ended, there is nothing to ask any more. A run that was quicker than the answer is shown."""
        if self._question is not None:
            self._question.reject()
        closing, self._is_closing = self._is_closing, False
        if closing and not has_started:
            self._window.close()
