"""Shows one run: a canvas, a table or plots, with alerts at the side and the log below."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QStackedWidget, QWidget

from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.run_state_types import RunChanges
from torchyard_gui.bridge.runs_model import RunsModel
from torchyard_gui.canvas.live_state import HostLiveState
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.runs.labels import clock, ended_at, restarting_sentence, with_local_times
from torchyard_gui.runs.logs.log_dock import LogDock
from torchyard_gui.runs.plots.run_plots import MOST, Plots
from torchyard_gui.runs.replica_table import ReplicaTable
from torchyard_gui.runs.side_panel import SidePanel
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import NoticeBar, SearchField, Segmented
from torchyard_gui.widgets.empty_state import EmptyListMessage
from torchyard_gui.widgets.layouts import FLUSH, hbox, splitter, vbox
from torchyard_gui.widgets.next_steps import advice_text

VIEWS = ("canvas", "table", "plots")
LOG_HEIGHT = 220


def focus_order(widget: QWidget) -> list[QWidget]:
    """Returns the focusable descendants of a widget that is not yet part of a window, in tab order."""
    found: list[QWidget] = []
    each = widget.nextInFocusChain()
    while each is not None and each is not widget:
        if each.focusPolicy() != Qt.FocusPolicy.NoFocus:
            found.append(each)
        each = each.nextInFocusChain()
    return found


class RunView(QWidget):
    """Shows the run of a RunFeed. Canvas, table and plots share one selection of replicas."""

    def __init__(self, model: RunsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.feed: RunFeed | None = None
        self._chosen: list[str] = []
        self._is_old = False
        self.notice = NoticeBar()
        self.work = NoticeBar()
        self.scene = TopologyScene(self)
        self.canvas = CanvasView(self.scene)
        self.canvas.set_editable(False)
        self.table = ReplicaTable()
        self.search = SearchField(self.tr("Find replica …"))
        self.search.textChanged.connect(self.table.order.set_filter)
        self._nothing = EmptyListMessage(self.table, lambda: self._empty_text(self.search.text()))
        self.search.textChanged.connect(self._nothing.look)
        self._made_plots: Plots | None = None
        self._plotted: list[str] = []
        """The replicas to plot."""
        self.side = SidePanel()
        self.log = LogDock(model)

        below = QWidget()
        self.grouping = Segmented([("", self.tr("All")), ("pool", self.tr("By pool")), ("host", self.tr("By host"))])
        self.grouping.setAccessibleName(self.tr("Groups of replicas"))
        self.grouping.changed.connect(self.table.set_grouping)
        self.search.setMaximumWidth(260)
        self._find_row = QWidget()
        hbox((self.search, 1), None, self.grouping, parent=self._find_row, margins=(12, 10, 12, 8))
        vbox(self._find_row, (self.table, 1), parent=below, margins=FLUSH, spacing=0)
        self.stack = QStackedWidget()
        for widget in (self.canvas, below):
            self.stack.addWidget(widget)
        self.upright = splitter(Qt.Orientation.Vertical, self.stack, self.log, grows=0)
        sizes = [800, theme().metrics.inspector]
        self.across = splitter(Qt.Orientation.Horizontal, self.upright, self.side, grows=0, sizes=sizes)
        vbox(self.notice, self.work, (self.across, 1), parent=self, margins=FLUSH, spacing=0)

        self.scene.selection_changed.connect(self.choose)
        self.canvas.activated.connect(self.log.show_replica)
        self.table.chosen_changed.connect(self.choose)
        self.table.opened.connect(self.log.show_replica)
        self.side.opened.connect(self.log.show_replica)
        self.log.opened_changed.connect(self._log_opened)
        self.notice.action_triggered.connect(lambda number: self._on_notice())
        self._log_opened(False)
        self._on_notice: Callable[[], None] = lambda: None

    def _empty_text(self, letters: str) -> str:
        return self.tr("No replica matches “{letters}”.").format(letters=letters.strip()) if letters.strip() else ""

    @property
    def plots(self) -> Plots:
        """The plots, created on first use, because creating them takes longer than creating the rest of the view, and
        most runs are watched without plots.
        """
        if self._made_plots is None:
            self._made_plots = plots = Plots()
            order = focus_order(plots)
            plots.set_feed(self.feed)
            plots.set_names(self._plotted)
            self.stack.addWidget(plots)
            for before, after in pairwise([self.table, *order]):
                QWidget.setTabOrder(before, after)
        return self._made_plots

    @property
    def view(self) -> str:
        return VIEWS[self.stack.currentIndex()]

    def set_view(self, name: str) -> None:
        """Shows the view with the name `canvas`, `table` or `plots`."""
        if name == "plots":
            if not self.plots.names and self.feed is not None:
                self._plot(list(self.feed.picture.tracks)[:4])
            self.stack.setCurrentWidget(self.plots)
        else:
            self.stack.setCurrentIndex(VIEWS.index(name))
        self._refresh()

    def _plot(self, names: list[str]) -> None:
        self._plotted = names
        if self._made_plots is not None:
            self._made_plots.set_names(names)

    def set_feed(self, feed: RunFeed | None) -> None:
        """Shows another run; None shows no run."""
        if self.feed is not None:
            self.feed.changed.disconnect(self._take)
        self.feed = feed
        self._chosen = []
        self.notice.clear()
        self.scene.show_plan(None)
        self.scene.show_states({})
        self.table.replicas.set_feed(feed)
        self._plotted = []
        if self._made_plots is not None:
            self._made_plots.set_feed(feed)
        self.side.set_feed(feed)
        self.log.set_run(feed)
        if feed is not None:
            feed.changed.connect(self._take)
            self._show_plan()
            self._show_notice(is_known=True)
            self.set_view(self.view)

    def choose(self, names: list[str]) -> None:
        """Selects replicas in all views and shows their logs. If a single replica is selected, the small plots show
        that replica's values.
        """
        if names == self._chosen:
            return
        self._chosen = list(names)
        self.scene.set_selection(names)
        if sorted(self.table.chosen()) != sorted(names):
            self.table.choose(names)
        self.side.set_chosen(names)
        if names:
            self._plot(names[: MOST + 1] if len(names) > MOST else names)
        self.log.set_chosen(self._chosen)

    @property
    def chosen(self) -> list[str]:
        return list(self._chosen)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._is_old:
            self._refresh()

    def _take(self, changes: RunChanges) -> None:
        if changes.shown:
            self._show_plan()
        if changes.run:
            self._show_notice()
            self.log.refresh()
        if not self.isVisible():
            self._is_old = True
            return
        self.side.take(changes)
        view = self.view
        if changes.replicas or changes.run or changes.shown:
            if view == "canvas":
                self._show_states()
            self.table.replicas.take(changes)
        if view == "plots" and changes.samples:
            self.plots.refresh()

    def _refresh(self) -> None:
        """Updates all parts, for example when the widget becomes visible again."""
        self._is_old = False
        if self.feed is None:
            return
        self._show_states()
        self.table.replicas.take(RunChanges(set(self.feed.picture.tracks), run=True))
        self.side.refresh()
        if self._made_plots is not None:
            self._made_plots.refresh()

    def _show_plan(self) -> None:
        assert self.feed is not None
        picture = self.feed.picture
        title, sentence = self.tr("No data on this run"), self.tr("Its hosts have not reported it yet.")
        if picture.tracks:  # The replicas have tracks, but are not in the topology, such as a sweep's coordinator.
            title = self.tr("No picture of this run")
            sentence = self.tr(
                "Its replicas are not in its topology. “Replicas” lists them; the Sweeps page shows the trials of a"
                " sweep."
            )
        self.canvas.set_empty_text(title, sentence)
        self.scene.show_plan(picture.plan, picture.plan_hosts)
        self._show_states()
        if len(self.table.replicas.feed.picture.tracks if self.table.replicas.feed else {}):
            self.table.replicas.set_feed(self.feed)
        self.log.refresh()

    def _show_states(self) -> None:
        if self.feed is None:
            return
        self.scene.show_states(self.feed.live_states)
        picture = self.feed.picture
        if picture.is_over:
            # After a run has ended, only the Fleet page shows the current states of its hosts.
            note = ended_at(picture.ended, time.time())
            self.scene.show_hosts({host.name: HostLiveState("idle", note=note) for host in picture.plan_hosts})
        else:
            looks = self._between_starts() if picture.state == "restarting" else {}
            lost = picture.lost.items()
            looks |= {host: HostLiveState("unknown", clock(since) if since else "") for host, since in lost}
            self.scene.show_hosts(looks)

    def _between_starts(self) -> dict[str, HostLiveState]:
        """Returns the states of hosts during a restart: lost hosts, and hosts that wait for the restart."""
        assert self.feed is not None
        picture = self.feed.picture
        gone = {track.host for track in picture.tracks.values() if track.state == "lost"}
        return {
            host.name: HostLiveState("unknown", note=self.tr("lost"))
            if host.name in gone
            else HostLiveState(note=self.tr("waiting to restart"))
            for host in picture.plan_hosts
        }

    def _show_notice(self, *, is_known: bool = False) -> None:
        """Shows why the run failed or restarts, or why its state may be outdated.

        Args:
            is_known: If True, the notice is not announced to screen readers.
        """
        assert self.feed is not None
        picture, error = self.feed.picture, self.feed.error
        if picture.state == "failed" and picture.is_over:
            reason = picture.reason or self.tr("unknown cause")
            self._notice_of("fail", self.tr("The run failed: {reason}").format(reason=reason), is_known)
        elif picture.is_stale and not picture.is_followed:
            steps = error.next if error is not None else ()
            self.notice.show_notice("warn", self._why_not_followed(), closable=False, is_known=is_known, steps=steps)
        elif picture.known_from:
            text = self.tr(
                "{primary}, the run's primary host, does not answer yet. {host} reported this state at {time}; the run "
                "may have changed since. Reconnecting …"
            ).format(primary=picture.primary, host=picture.known_from, time=clock(picture.as_of, exact=True))
            self.notice.show_notice("warn", text, closable=False, is_known=is_known)
        elif picture.is_stale:
            text = self.tr(
                "{host} does not answer. Last update {time}; the run continues there. Reconnecting …"
            ).format(host=picture.primary, time=clock(picture.as_of, exact=True))
            self.notice.show_notice("warn", text, closable=False, is_known=is_known)
        elif error is not None and picture.is_over is False:
            self.notice.show_error(error, kind="warn", closable=False, is_known=is_known)
        elif picture.state == "restarting":
            self._notice_of("warn", restarting_sentence(picture), is_known)
        elif picture.state == "waiting" and picture.reason:
            reason = with_local_times(picture.reason)
            text = f"{reason[:1].upper()}{reason[1:]}."
            self.notice.show_notice("info", text, closable=False, is_known=is_known)
        else:
            self.notice.clear()

    def _why_not_followed(self) -> str:
        assert self.feed is not None
        picture, error = self.feed.picture, self.feed.error
        time = clock(picture.as_of, exact=True)
        if error is not None and error.code == "no_run":
            text = self.tr("{host} no longer has a record of this run. Last update {time}.")
            return text.format(host=picture.primary, time=time)
        why = f"{error.message} {advice_text(error.advice, has_buttons=True)}".strip() if error is not None else ""
        text = self.tr("Live updates have stopped: {why} Last update {time}; the run may still be running.")
        return text.format(why=why, time=time)

    def _notice_of(self, kind: Literal["warn", "fail"], text: str, is_known: bool) -> None:
        """Shows a notice about the run. If a replica has failed, the notice has a button for the log of the first
        failed replica.
        """
        assert self.feed is not None
        picture = self.feed.picture
        # The log of a lost host cannot be read while the run waits for that host.
        failed = [track for track in picture.failures() if picture.is_over or track.state == "failed"]
        if not failed:
            self.notice.show_notice(kind, text, closable=False, is_known=is_known)
            return
        name = failed[0].name
        self._on_notice = lambda: self.log.show_replica(name)
        self.notice.show_notice(kind, text, self.tr("Show its log"), closable=False, is_known=is_known)

    def _log_opened(self, on: bool) -> None:
        head = theme().metrics.problems + 8
        if on:
            self.log.setMinimumHeight(120)
            self.log.setMaximumHeight(16_777_215)
            whole = max(self.upright.height(), 2 * LOG_HEIGHT)
            self.upright.setSizes([whole - LOG_HEIGHT, LOG_HEIGHT])
        else:
            self.log.setMinimumHeight(head)
            self.log.setMaximumHeight(head)
            self.upright.setSizes([max(1, self.upright.height() - head), head])
