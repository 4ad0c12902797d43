"""Messages of the Bookings page: results, refusals, whether the calendar is reachable, and where it is stored."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QObject
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QWidget

from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.legend import Legend
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.widgets import NoticeBar, Toast
from torchyard_gui.widgets.next_steps import as_sentence
from torchyard_gui.widgets.screen_reader import announce


class Notifications(QObject):
    """Shows messages and announces them to screen readers."""

    def __init__(self, model: BookingsModel, notice: NoticeBar, legend: Legend, page: QWidget):
        super().__init__(page)
        self.model = model
        self.notice = notice
        self.legend = legend
        self.toast = Toast(page)
        self._page = page
        self._is_away = False
        self._silent: dict[str, str] = {}
        """The error of each cluster that does not answer, for which a notice has been shown."""

    def show_success(self, text: str, action: QAction | None = None) -> None:
        """Shows the result of a command. If `action` is given, the message has a button for it, such as Undo."""
        self.toast.say(text, action=action)
        if not self._is_away:
            self.notice.clear()

    def show_refusal(self, text: str) -> None:
        self.notice.clear()  # The notice is cleared first, so that the same refusal is announced again.
        self.notice.show_notice("warn", text)

    def show_error(self, error: TorchyardError) -> None:
        """Shows an error with buttons for its next steps."""
        self.notice.clear()
        self.notice.show_error(error, kind="warn", text=labels.error_text(error, has_buttons=True))

    def show_settled(self, freed: int, served: int) -> None:
        """Shows how many bookings were released as idle, and how many requests of the waitlist got a booking."""
        parts = []
        if freed:
            idle = self.tr("{count} idle bookings were released.")
            parts.append(self.tr("1 idle booking was released.") if freed == 1 else idle.format(count=freed))
        if served:
            booked = self.tr("{count} waitlisted requests were booked.")
            parts.append(self.tr("1 waitlisted request was booked.") if served == 1 else booked.format(count=served))
        self.notice.show_notice("info", " ".join(parts))

    def show_clusters(self, errors: Mapping[str, TorchyardError]) -> None:
        """Shows which clusters do not answer, so that their jobs and reservations are missing or outdated."""
        messages = {name: error.message for name, error in errors.items()}
        if messages == self._silent:
            return
        self._silent = messages
        if self._is_away:
            return
        if not errors:
            self.notice.clear()
            return
        name, error = next(iter(errors.items()))
        why = as_sentence(error.message, error.advice, has_buttons=True, host=name)
        text = self.tr("Jobs and reservations of the cluster {cluster} are unknown: {why}")
        self.notice.show_error(error, kind="warn", text=text.format(cluster=name, why=why))

    def repeat_clusters(self) -> None:
        """Lets the next call of `show_clusters` repeat a notice that the user has dismissed."""
        self._silent = {}

    def show_calendar_source(self, away: str) -> None:
        """Shows where the calendar is stored; if `away` is given, also shows a notice with `away` as the reason why
        nothing can be booked.
        """
        seen = self.model.seen
        if away:
            text = f"{away} {seen.why[:1].upper()}{seen.why[1:]}".strip()
            self.notice.show_notice("warn", text, self.tr("Try again"), closable=False, is_known=self._is_away)
            self._is_away = True
        elif self._is_away:
            self._is_away = False
            self.notice.clear()
            announce(self._page, self.tr("The calendar is back."))
        if not self.model.has_loaded:
            self.legend.show_location(self.tr("Opening the calendar …"), is_private=False)
        elif away:
            self.legend.show_location(self.tr("Unreachable"), is_private=False)
        elif seen.is_private:
            self.legend.show_location(self.tr("Only on this computer."), is_private=True)
        else:
            self.legend.show_location(self.tr("PostgreSQL · up to date"), is_private=False)
        self.legend.place.setToolTip(seen.place)
