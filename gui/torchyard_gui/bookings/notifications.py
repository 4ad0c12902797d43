"""Messages of the Bookings page: results of commands, refusals, whether the calendar is reachable, and where it is
stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

PROGRESS_MS = 120_000
"""Maximum time in milliseconds for which the message about a change in progress is shown."""


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
        self._is_working = False
        self._silent: dict[str, str] = {}
        """The error messages last passed to `show_clusters`, by cluster. They are not shown again until they change."""

    def show_success(self, text: str, action: QAction | None = None) -> None:
        """Shows the result of a command. If `action` is given, the message has a button for it, such as Undo."""
        self._is_working = False
        self.toast.say(text, action=action)
        if not self._is_away:
            self.notice.clear()

    def show_progress(self, text: str) -> None:
        """Shows that a change is in progress, until its result is shown."""
        self.toast.say(text, PROGRESS_MS)
        self._is_working = True

    def _end_progress(self) -> None:
        if self._is_working:
            self._is_working = False
            self.toast.hide()

    def show_not_mirrored(self, error: TorchyardError) -> None:
        """Shows why a change of a booking has not reached Slurm yet, with buttons for the next steps of `error`."""
        if error.code == "cluster_not_in_fleet":
            self.notice.show_error(error, kind="warn", text=labels.error_text(error, has_buttons=True))
            return
        why = as_sentence(error.message, error.advice, has_buttons=True)
        text = self.tr("The reservation in Slurm was not changed yet; this is tried again once a minute. {why}")
        self.notice.show_error(error, kind="warn", text=text.format(why=why))

    def show_deleted_in_slurm(self, titles: Sequence[str]) -> None:
        """Shows that bookings have ended because their reservations were deleted in Slurm."""
        if len(titles) == 1:
            text = self.tr("“{title}” is no longer booked: its reservation was deleted in Slurm.")
        else:
            text = self.tr("{titles} are no longer booked: their reservations were deleted in Slurm.")
        self.notice.show_notice("warn", text.format(title=titles[0], titles=", ".join(f"“{one}”" for one in titles)))

    def show_refusal(self, text: str) -> None:
        self.notice.clear()  # Otherwise, screen readers would not announce a refusal with the same text again.
        self.notice.show_notice("warn", text)

    def show_error(self, error: TorchyardError) -> None:
        """Shows an error with buttons for its next steps."""
        self._end_progress()
        self.notice.clear()
        self.notice.show_error(error, kind="warn", text=labels.error_text(error, has_buttons=True))

    def show_settled(self, freed: int, served: int) -> None:
        """Shows how many idle bookings were released, and how many requests on the waitlist were booked."""
        parts = []
        if freed:
            idle = self.tr("{count} idle bookings were released.")
            parts.append(self.tr("1 idle booking was released.") if freed == 1 else idle.format(count=freed))
        if served:
            booked = self.tr("{count} waitlisted requests were booked.")
            parts.append(self.tr("1 waitlisted request was booked.") if served == 1 else booked.format(count=served))
        self.notice.show_notice("info", " ".join(parts))

    def show_clusters(self, errors: Mapping[str, TorchyardError]) -> None:
        """Shows why the jobs and reservations of a cluster are unknown. If several clusters have errors, only the first
        error is shown. Without errors, the notice is removed.
        """
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
        """Makes the next `show_clusters` show its notice again, even if the user has dismissed the notice."""
        self._silent = {}

    def show_calendar_source(self, away: str) -> None:
        """Shows where the calendar is stored. If `away` is not empty, it is the reason why nothing can be booked, and
        is also shown as a notice.
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
