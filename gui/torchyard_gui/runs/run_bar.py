"""The bar above a run, with the run's name and state, the choice of the view, and actions."""

from __future__ import annotations

import time

from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QFrame, QWidget

from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.runs.labels import clock, duration, mark_of, moment_in_full, rate, restarts, state_word
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import Segmented, StateTitle
from torchyard_gui.widgets.buttons import action_button
from torchyard_gui.widgets.layouts import hbox, vbox

NARROW = 1150
"""Width in pixels below which some buttons show only their icons."""


class RunBar(QFrame):
    """The bar above a run. Its buttons trigger actions of the page."""

    def __init__(
        self,
        stop: QAction,
        restart: QAction,
        fetch: QAction,
        copy: QAction,
        booking: QAction,
        parent: QWidget | None = None,
    ):
        super().__init__(parent)
        self.setProperty("bar", True)
        self.setFixedHeight(theme().metrics.bar)
        self._feed: RunFeed | None = None
        self._name = ""
        self._compared = 0
        self._throughput: float | None = None
        self.title = StateTitle()
        self.name, self.state = self.title.name, self.title.state
        self.views = Segmented(
            [("canvas", self.tr("Hosts")), ("table", self.tr("Replicas")), ("plots", self.tr("Plots"))]
        )
        self._booking = booking
        # Buttons that do not apply are disabled rather than hidden, so that the other buttons do not move. Only the
        # booking button is hidden: it is the first one, so the other buttons keep their places.
        self._buttons = {action: action_button(action) for action in (booking, copy, fetch, restart, stop)}
        self._by_icon = (booking, copy, fetch, restart)
        for action, button in self._buttons.items():
            button.setIcon(action.icon())
            button.setAccessibleName(action.text())
        views = vbox(None, self.views, None)  # Without the spacers, the control would be stretched.
        buttons = self._buttons.values()
        hbox((self.title, 1), views, 8, *buttons, parent=self, margins=(16, 0, 16, 0), spacing=8)
        booking.changed.connect(self._show_booking)
        self.set_feed(None)

    def set_feed(self, feed: RunFeed | None, name: str = "") -> None:
        """Shows another run. `name` is a title that distinguishes the run from other runs with the same name."""
        self._feed, self._name = feed, name
        self.take_throughput()
        for widget in (self.views, *self._buttons.values()):
            widget.setVisible(feed is not None)
        self.refresh()

    def set_compared(self, count: int) -> None:
        """Shows that `count` runs are compared. If `count` is 0, shows the run again."""
        self._compared = count
        self.views.setVisible(self._feed is not None and not count)
        self.refresh()

    def take_throughput(self) -> None:
        """Reads the throughput of the run, which `refresh` shows. Called when the plots are updated, so that the bar
        and the plots show the same value.
        """
        self._throughput = self._feed.picture.total("throughput") if self._feed is not None else None

    def refresh(self) -> None:
        if self._feed is None:
            self.name.setText(self.tr("Runs"))
            self.title.show_state("", "")
            return
        if self._compared:
            self.name.setText(self.tr("{count} runs compared").format(count=self._compared))
            self.title.show_state("", "")
            return
        picture = self._feed.picture
        self._show_booking()
        self.name.setText(self._name or picture.name or picture.run_id)
        self.name.setToolTip(f"{self.name.text()}\n{picture.run_id}")
        mark = "unknown" if picture.is_stale else mark_of(picture.state)
        self.title.show_state(mark, " · ".join(self._parts()))
        began = picture.started or picture.submitted
        tip = [self.state.text(), moment_in_full(began)]
        if self._throughput is not None:
            tip.append(self.tr("samples/s: throughput of all trainers, mean of the last 10 s"))
        self.state.setToolTip("\n".join(line for line in tip if line))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """In a narrow bar, shows only the icons of some buttons, so that the state fits."""
        super().resizeEvent(event)
        is_narrow = event.size().width() < NARROW
        for action in self._by_icon:
            self._buttons[action].setText("" if is_narrow else action.text())

    def _show_booking(self) -> None:
        self._buttons[self._booking].setVisible(self._feed is not None and self._booking.isEnabled())

    def _parts(self) -> list[str]:
        assert self._feed is not None
        picture = self._feed.picture
        elapsed = picture.elapsed(time.time())
        word = state_word(picture.state)
        lasted = duration(elapsed) if elapsed is not None else ""
        if picture.is_stale:
            at = clock(picture.as_of, exact=True)
            head = self.tr("{state} as of {time}").format(state=word, time=at)
        elif picture.is_over:
            head = self.tr("{state} after {time}").format(state=word, time=lasted) if lasted else word
        elif picture.state == "restarting":
            head = word  # The duration is hidden, because it could be taken for the duration of the restart.
        else:
            head = f"{word} {lasted}".strip()
        parts = [head]
        waiting = None if picture.is_stale else picture.waiting
        if waiting is not None:
            until = clock(waiting.until, exact=True)
            parts.append(self.tr("waiting for {hosts} until {time}").format(hosts=waiting.hosts, time=until))
        if picture.restarts:
            parts.append(restarts(picture.restarts))
        step, throughput = picture.total("step"), self._throughput
        if step is not None:
            parts.append(self.tr("step {step}").format(step=f"{step:,.0f}"))
        if throughput is not None and not picture.is_over and picture.state != "restarting":
            parts.append(self.tr("{rate} samples/s").format(rate=rate(throughput)))
        return parts
