"""The dock below a run that shows the logs of its replicas. The user can choose logs, follow them and search them.

While the dock is closed, it shows only the last line of one log.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QComboBox, QWidget

from torchyard_gui.bridge.log_feed import LogFeed
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.runs_model import RunsModel
from torchyard_gui.runs.logs.log_view import LogView
from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import ElidedLabel, SearchField, label, set_ink
from torchyard_gui.widgets.buttons import tool_button
from torchyard_gui.widgets.layouts import hbox, vbox

SETTLE_MS = 120
"""Delay in milliseconds before a log is opened, so that the logs of replicas that are selected only briefly are not
loaded.
"""
MOST_LOGS = 64
"""Maximum number of logs that are open at once. There is a limit because each open log queries its host repeatedly."""

Log = tuple[str, str, int]
"""A log, given by its replica, host and local rank."""


class LogDock(QWidget):
    """The log dock. While the dock is closed, only the log whose last line is shown is open."""

    opened_changed = Signal(bool)

    def __init__(self, model: RunsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self._model = model
        self._run_feed: RunFeed | None = None
        self._feeds: dict[Log, LogFeed] = {}
        self._remark = ""
        self._is_open = False
        self._by_user = False
        """Whether the user chose the replica. If so, the failure of another replica does not change the choice."""
        self._settle = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._settle.timeout.connect(self._open_logs)

        tip = self.tr("Show or hide the log (Ctrl+L)")
        self.toggle = tool_button("chevron-up", tip, lambda: self.set_open(not self._is_open))
        self._title = label(self.tr("Log"), role="strong")
        self.replica = LogChoice()
        self.replica.currentIndexChanged.connect(self._settle.start)
        self.replica.activated.connect(self._chosen_by_user)
        self._last = ElidedLabel(ink="2")
        self._message = ElidedLabel(role="small")
        self.search = SearchField(self.tr("Find …"))
        self.search.setMinimumWidth(100)
        self.search.setMaximumWidth(200)
        self.search.returnPressed.connect(self.find_next)
        self.search.textChanged.connect(self._search_changed)
        self.previous = tool_button("chevron-up", self.tr("Find previous (Shift+F3)"), self.find_previous)
        self.next = tool_button("chevron-down", self.tr("Find next (F3)"), self.find_next)
        self.follow = tool_button("follow", self.tr("Follow the end (End)"), lambda on: self.view.set_following(on))
        self.follow.setCheckable(True)
        self.follow.setChecked(True)
        self.view = LogView()
        self.view.following_changed.connect(self.follow.setChecked)
        self.view.problem_changed.connect(self._say_fail)
        self.view.search_ended.connect(self._searched)
        self.view.matches_counted.connect(self._say_matches)
        self._was_found: bool | None = None
        """Whether the last search found a match; None until the search ends."""
        self.view.last_line_changed.connect(self._last.setText)
        self.view.log_wanted.connect(self._show_one)

        head = hbox(
            self.toggle, self._title, self.replica, (self._last, 2), (self._message, 1), margins=(8, 0, 8, 0), spacing=8
        )
        for tool in (self.search, self.previous, self.next, self.follow):
            head.addWidget(tool)
        self._head = QWidget()
        self._head.setLayout(head)
        self._head.setFixedHeight(theme().metrics.problems + 6)
        vbox(self._head, (self.view, 1), parent=self, margins=(0, 1, 0, 0), spacing=0)
        self._show_state()

    @property
    def is_open(self) -> bool:
        return self._is_open

    def set_open(self, on: bool) -> None:
        if on != self._is_open:
            self._is_open = on
            self._show_state()
            self.opened_changed.emit(on)
            self._settle.start()

    def set_run(self, feed: RunFeed | None) -> None:
        """Switches to another run. Initially shows the log of the run's first failed replica or, if none has failed, of
        its first replica.
        """
        self._run_feed = feed
        self._by_user = False
        with QSignalBlocker(self.replica):
            self.replica.set_names([])
            self.replica.set_chosen([])
        self._close_logs()
        self._last.setText("")
        self.refresh()

    def refresh(self) -> None:
        """Updates the list of replicas whose logs can be chosen.

        Unless the user has chosen a log, shows the log of the first failed replica or, if none has failed, of the first
        replica.
        """
        if self._run_feed is None:
            return
        names = list(self._run_feed.picture.tracks)
        with QSignalBlocker(self.replica):
            self.replica.set_names(names)
            if not self._by_user:
                self.replica.show_one(self._first(names))
        if self._wanted() != list(self._feeds):
            self._settle.start()

    def show_replica(self, name: str, *, open_: bool = True) -> None:
        if self.replica.show_one(name):
            self._by_user = True
        if open_:
            self.set_open(True)

    def set_chosen(self, names: list[str]) -> None:
        """Sets the replicas selected on the page.

        Shows the log of a single replica, or the merged logs of several replicas.
        """
        with QSignalBlocker(self.replica):
            self.replica.set_chosen(names)
        if len(names) == 1:
            self.show_replica(names[0], open_=False)
        elif names:
            self._by_user = True
            self.replica.show_chosen()
        self._settle.start()

    def find_next(self) -> None:
        self._find(backwards=False)

    def find_previous(self) -> None:
        self._find(backwards=True)

    def start_search(self) -> None:
        """Opens the dock and focuses the search field."""
        self.set_open(True)
        self.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search.selectAll()

    def close_log(self) -> None:
        """Closes all logs."""
        self._settle.stop()
        self._close_logs()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_F3:
            back = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
            self._find(backwards=back)
            return
        super().keyPressEvent(event)

    def _show_state(self) -> None:
        self.toggle.setIcon(icon("chevron-down" if self._is_open else "chevron-up"))
        for widget in (self.view, self.search, self.previous, self.next, self.follow, self._message):
            widget.setVisible(self._is_open)
        self._last.setVisible(not self._is_open)

    def _first(self, names: list[str]) -> str:
        assert self._run_feed is not None
        failed = [track.name for track in self._run_feed.picture.failures()]
        return failed[0] if failed else (names[0] if names else "")

    def _chosen_by_user(self) -> None:
        self._by_user = True

    def _show_one(self, log: str) -> None:
        """Shows only the logs of the replica to which the log named `log` belongs."""
        self.show_replica(log.partition(".")[0])

    def _wanted(self) -> list[Log]:
        """Returns the logs that must be open now."""
        if self._run_feed is None:
            return []
        picture = self._run_feed.picture
        logs = [
            (name, picture.tracks[name].host, rank)
            for name in self.replica.names
            if name in picture.tracks
            for rank in range(picture.ranks_of(name))
        ]
        return logs[: MOST_LOGS if self._is_open else 1]

    def _open_logs(self) -> None:
        wanted = self._wanted()
        if self._run_feed is None or wanted == list(self._feeds):
            return
        self._close_logs()
        self._last.setText("")
        run, picture = self._run_feed.run, self._run_feed.picture
        self._feeds = {(name, host, rank): self._model.log(run, host, name, rank) for name, host, rank in wanted}
        # A log is named after its file on the host.
        names = [name if picture.ranks_of(name) == 1 else f"{name}.{rank}" for name, _, rank in wanted]
        self.view.set_feeds(list(self._feeds.values()), names)
        count = sum(picture.ranks_of(name) for name in self.replica.names if name in picture.tracks)
        self._remark = (
            self.tr("The first {count} of {all} logs").format(count=MOST_LOGS, all=count) if count > MOST_LOGS else ""
        )
        self._say("")

    def _close_logs(self) -> None:
        if self._feeds:
            self.view.set_feeds([], [])
            for feed in self._feeds.values():
                feed.close()
                feed.deleteLater()
            self._feeds = {}

    def _find(self, *, backwards: bool) -> None:
        text = self.search.text()
        if text:
            self._was_found = None
            self._say(self.tr("Searching …"))
            self.view.search(text, backwards=backwards)

    def _search_changed(self, text: str) -> None:
        self._was_found = None
        if not text:
            self.view.search("", backwards=False)
            self._say("")

    def _searched(self, found: bool) -> None:
        self._was_found = found
        self._say_matches()

    def _say_matches(self) -> None:
        """Shows the number of the current match and the number of all matches, if they are known."""
        counted = self.view.match_count
        if self._was_found is None:
            return
        if counted is None:
            self._say("" if self._was_found else self.tr("No more matches"))
            return
        total, is_all = counted
        if not total and is_all:
            self._say(self.tr("No matches"))
            return
        count = f"{total:,}" if is_all else self.tr("{count} or more").format(count=f"{total:,}")
        if self._was_found and (number := self.view.match_number):
            self._say(self.tr("{number} of {count}").format(number=f"{number:,}", count=count))
        elif not self._was_found:
            matches = self.tr("1 match") if total == 1 and is_all else self.tr("{count} matches").format(count=count)
            self._say(self.tr("No more matches ({matches})").format(matches=matches))

    def _say(self, text: str) -> None:
        set_ink(self._message, "2")
        self._message.setText(text or self._remark)

    def _say_fail(self, text: str) -> None:
        set_ink(self._message, "wait" if text else "2")
        self._message.setText(text or self._remark)


ALL, CHOSEN = "", "*"
"""Item data of the entries that stand for several logs. The data of all other entries is the name of a replica."""


class LogChoice(QComboBox):
    """Combo box to choose logs. The entries for several logs come first."""

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._names: list[str] = []
        self._chosen: list[str] = []
        self.setMinimumWidth(150)
        self.setAccessibleName(self.tr("Log to show"))
        self.setToolTip(self.tr("Log to show. Several logs are merged by the clocks of their hosts."))
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)

    @property
    def names(self) -> list[str]:
        """Names of the replicas whose logs are chosen."""
        data = self.currentData()
        if data is None:
            return []
        return {ALL: self._names, CHOSEN: self._chosen}.get(data, [data])

    def set_names(self, names: Sequence[str]) -> None:
        """Sets the replicas of the run."""
        if list(names) != self._names:
            self._names = list(names)
            self._fill()

    def set_chosen(self, names: Sequence[str]) -> None:
        """Sets the replicas selected on the page."""
        if list(names) != self._chosen:
            self._chosen = list(names)
            self._fill()

    def show_one(self, name: str) -> bool:
        """Chooses the log of a replica. Returns whether the replica exists."""
        return name in self._names and self._show(name)

    def show_chosen(self) -> bool:
        return self._show(CHOSEN)

    def _show(self, data: str) -> bool:
        place = self.findData(data)
        if place >= 0:
            self.setCurrentIndex(place)
        return place >= 0

    def _fill(self) -> None:
        before = self.currentData()
        self.clear()
        if len(self._names) > 1:
            self.addItem(self.tr("All {count} replicas").format(count=len(self._names)), ALL)
        if len(self._chosen) > 1:
            self.addItem(self.tr("{count} selected replicas").format(count=len(self._chosen)), CHOSEN)
        if self.count():
            self.insertSeparator(self.count())
        for name in self._names:
            self.addItem(name, name)
        first = self._names[0] if self._names else ALL
        if not self._show(before if before is not None else first):
            self._show(first)
