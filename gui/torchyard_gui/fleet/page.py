"""The Fleet page: list of hosts and clusters, details and actions."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import QModelIndex, QPoint, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import QAction, QDesktopServices, QGuiApplication, QHideEvent, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QDialog, QFrame, QMenu, QPushButton, QStackedLayout, QWidget

from torchyard_core.app.undeploy_hosts import Removed
from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.fleet.inventory import Host
from torchyard_core.next_steps import SetHostField
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_states import state_name
from torchyard_gui.bridge.host_status import HostStatus, count_hosts
from torchyard_gui.fleet.cluster_labels import clusters_sentence
from torchyard_gui.fleet.dialogs.add_host_dialog import AddHostDialog
from torchyard_gui.fleet.dialogs.cluster_form import AddClusterDialog, EditClusterDialog
from torchyard_gui.fleet.dialogs.edit_hosts_dialog import EditHostsDialog
from torchyard_gui.fleet.dialogs.host_key_dialogs import HostKeyDialog, HostKeyListDialog
from torchyard_gui.fleet.dialogs.removal_dialogs import RemoveHostsDialog, UndeployDialog
from torchyard_gui.fleet.host_details import SHOWN_ACTS, HostDetails
from torchyard_gui.fleet.host_list import MARGIN, HostList
from torchyard_gui.fleet.host_list_model import Entry, HostListModel
from torchyard_gui.fleet.labels import answer_sentence, removed_text
from torchyard_gui.fleet.menu_actions import FleetActions
from torchyard_gui.fleet.state_filter import StateFilter
from torchyard_gui.fleet.suggested_action import suggested_action
from torchyard_gui.fleet.terminal import open_terminal
from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import ElidedLabel, EmptyState, NoticeBar, SearchField, Toast, label
from torchyard_gui.widgets.buttons import action_button
from torchyard_gui.widgets.layouts import FLUSH, Part, hbox, vbox
from torchyard_gui.widgets.next_steps import error_text
from torchyard_gui.widgets.screen_reader import announce

SUMMARIZE_AFTER_MS = 50
"""Delay in milliseconds between a host's answer and the update of the summary. A burst of answers causes one update."""


class FleetPage(QWidget):
    """The Fleet page. While the page is visible, the fleet model monitors the hosts."""

    status_changed = Signal()
    trusted = Signal(str)
    """Emitted with a host whose key has been recorded, so that connections to it can be tried again."""

    def __init__(self, model: FleetModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.title = self.tr("Fleet")
        self.icon_name = "fleet"
        self.acts = FleetActions(self)
        self.rows = HostListModel(model, self)
        self.list = HostList(self.rows)
        self.details = HostDetails(
            {
                "check": self.acts.check,
                "deploy": self.acts.deploy,
                "edit": self.acts.edit,
                "trust": self.acts.trust,
                "terminal": self.acts.terminal,
                "cancel": self.acts.cancel,
                "undeploy": self.acts.undeploy,
                "remove": self.acts.remove,
            }
        )
        self.notice = NoticeBar()
        self.empty = EmptyState(
            self.tr("No hosts yet"),
            self.tr(
                "Add computers that you can log in to over SSH, or a Slurm cluster. They need Python 3.9 or newer."
            ),
            self.acts.add,
            self.acts.add_cluster,
            icon_name="fleet",
        )
        self.nothing_found = EmptyState(self.tr("No host found"), "", icon_name="search")
        self.unreadable = EmptyState(
            self.tr("The fleet file cannot be used"),
            self.tr("Correct the lines named above. The hosts appear once the file is saved."),
            icon_name="file",
        )
        self.search_field = SearchField(self.tr("Find a host …"))
        self.state_filter = StateFilter()
        self.toast = Toast(self)
        self.summary = ElidedLabel(ink="2")
        self._was_under_way = False
        self.dialog: QDialog | None = None
        """The open dialog, or None."""
        self._undo: list[tuple[Host, Host]] = []
        """Edits that undo the last dialog's edits of hosts, as (before, after)."""
        self._undo_cluster: tuple[Cluster, Cluster] | None = None
        """The edit that undoes the last dialog's edit of a cluster, as (before, after), or None if there is none."""
        self._removed: list[Removed] = []
        """The results so far of the current removal of agents. All of them are part of one report."""
        self.count_bookings: Callable[[RemoveHostsDialog, Sequence[str]], None] = lambda dialog, clusters: None
        """Counts the bookings of clusters, and passes the number to `show_bookings` of the removal dialog. By default,
        does nothing.
        """
        self._summarize_soon = QTimer(self, singleShot=True, interval=SUMMARIZE_AFTER_MS)
        self._summarize_soon.timeout.connect(self._summarize)
        self._buttons = self._make_buttons()
        self.bar = self._make_bar()
        self._lay_out()
        self._connect()
        self._hosts_changed()

    def page_actions(self) -> list[QAction]:
        return self.acts.all()

    def status_texts(self) -> Iterable[str]:
        under_way = sum(status.doing is not None for status in self.model.hosts)
        return [self.tr("{count} hosts busy").format(count=under_way)] if under_way > 1 else []

    @property
    def _entries(self) -> list[Entry]:
        """All hosts and clusters."""
        return [*self.model.hosts, *self.model.clusters.all]

    @property
    def _chosen(self) -> list[Entry]:
        """The selected hosts and clusters."""
        by_name = {entry.name: entry for entry in self._entries}
        return [by_name[name] for name in self.list.chosen if name in by_name]

    @property
    def _chosen_hosts(self) -> list[HostStatus]:
        return [status for status in self._chosen if isinstance(status, HostStatus)]

    @property
    def _chosen_clusters(self) -> list[ClusterStatus]:
        return [status for status in self._chosen if isinstance(status, ClusterStatus)]

    def panes(self) -> list[QWidget]:
        return [self.state_filter, self.list, self.details]

    def add_host(self, name: str = "") -> None:
        dialog = AddHostDialog(self.model, self)
        dialog.fields["name"].setText(name)
        dialog.added.connect(self._added)
        self._open(dialog)

    def add_cluster(self) -> None:
        dialog = AddClusterDialog(self.model, self)
        dialog.added.connect(self._cluster_added)
        self._open(dialog)

    def trust(self, *names: str) -> None:
        """Shows the keys of hosts or of their bastions, and lets the user trust these keys."""
        dialog: HostKeyDialog | HostKeyListDialog
        if len(names) == 1:
            dialog = HostKeyDialog(self.model, names[0], self)
        else:
            dialog = HostKeyListDialog(self.model, names, self)
        dialog.trusted.connect(self._trusted)
        self._open(dialog)

    def edit_hosts(self, *hosts: str, field: str = "") -> None:
        """Opens the dialog that edits the given hosts, by default the selected ones, and focuses a field in it.

        If the names contain no host but exactly one cluster, opens the dialog that edits the cluster.
        """
        names = hosts or self.list.chosen
        found = [status.host for name in names if (status := self.model.status(name)) is not None]
        if not found:
            clusters = [one.cluster for name in names if (one := self.model.clusters.status(name)) is not None]
            if len(clusters) == 1:
                self._edit_cluster(clusters[0], field)
            elif hosts:
                self.toast.say(self.tr("{host} is not in the fleet").format(host=hosts[0]), urgent=True)
            return
        if hosts:
            self.list.choose(hosts[0])
        dialog = EditHostsDialog(self.model, found, self)
        dialog.changed.connect(self._edited)
        self._open(dialog)
        first = "port" if len(found) > 1 else "python" if found[0].local else "address"
        dialog.focus_field(field or first)

    def _edit_cluster(self, cluster: Cluster, field: str) -> None:
        self.list.choose(cluster.name)
        dialog = EditClusterDialog(self.model, cluster, self)
        dialog.changed.connect(self._cluster_edited)
        self._open(dialog)
        dialog.focus_field(field if field in dialog.rows else "partition" if cluster.login.local else "address")

    def undo_edit(self) -> None:
        """Undoes the last edit of hosts or of a cluster."""
        if self._undo_cluster is not None:
            self._undo_edit_of_cluster(*self._undo_cluster)
            return
        edits, self._undo = self._undo, []
        try:
            self.model.change(edits)
        except TorchyardError as error:
            self.notice.show_error(error)
        else:
            self.model.check([after.name for _, after in edits])
        self._enable()

    def _undo_edit_of_cluster(self, before: Cluster, after: Cluster) -> None:
        self._undo_cluster = None
        try:
            self.model.change_cluster(before, after)
        except TorchyardError as error:
            self.notice.show_error(error)
        else:
            self.model.clusters.check([after.name], install=False)
        self._enable()

    def open_terminal(self) -> None:
        """Opens a terminal on the selected host or login node."""
        if len(self._chosen) == 1:
            try:
                open_terminal(self._chosen[0].login, self.model.home.known_hosts)
            except TorchyardError as error:
                self.notice.show_error(error)

    def undeploy_hosts(self) -> None:
        """Removes the agent from the selected hosts after a confirmation."""
        names = [status.name for status in self._chosen_hosts]
        if names:
            dialog = UndeployDialog(names, self)
            dialog.accepted.connect(lambda: self._undeploy(names))
            self._open(dialog)

    def remove_hosts(self, *hosts: str) -> None:
        """Removes hosts and clusters, by default the selected ones, from the fleet after a confirmation."""
        names = list(hosts) or self.list.chosen
        if names:
            clusters = [name for name in names if self.model.clusters.status(name) is not None]
            dialog = RemoveHostsDialog(names, clusters, self)
            dialog.accepted.connect(lambda: self._remove(names))
            if clusters:
                self.count_bookings(dialog, clusters)
            self._open(dialog)

    def check(self) -> None:
        """Checks the selected hosts and clusters. The check of a cluster also installs a missing agent."""
        if hosts := [status.name for status in self._chosen_hosts]:
            self.model.check(hosts)
        self.model.clusters.check([status.name for status in self._chosen_clusters])

    def check_all(self) -> None:
        """Checks all hosts and clusters. Installs nothing."""
        self.model.check()
        self.model.clusters.check(install=False)

    def deploy(self) -> None:
        self.model.deploy([status.name for status in self._chosen_hosts])

    def cancel(self) -> None:
        """Cancels the activities on the selected hosts and clusters or, if there are none, all activities."""
        under_way = [status for status in self._entries if status.doing is not None]
        chosen = [status for status in under_way if status.name in self.list.chosen]
        for status in chosen or under_way:
            self._cancel(status)

    def copy_command(self) -> None:
        command = ["torchyard", "--fleet", str(self.model.fleet_file), "hosts", "check", *self.list.chosen]
        QGuiApplication.clipboard().setText(shlex.join(command))

    def perform_action(self, name: str, action: str) -> None:
        """Performs the action of the button on the card of a host or cluster."""
        status = self.model.status(name) or self.model.clusters.status(name)
        if status is None:
            return
        if action == "trust":
            self.trust(status.blocking_host)
        elif action == "deploy":
            self.model.deploy([name])
        elif action == "cancel":
            self._cancel(status)
        elif action == "edit":
            steps = status.error.next if status.error is not None else ()
            self.edit_hosts(name, field=next((step.field for step in steps if isinstance(step, SetHostField)), ""))
        elif isinstance(status, ClusterStatus):
            self.model.clusters.check([name])
        else:
            self.model.check([name])

    def _cancel(self, status: Entry) -> None:
        if isinstance(status, ClusterStatus):
            self.model.clusters.cancel([status.name])
        else:
            self.model.cancel([status.name])

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.model.watch(True)
        if not self.list.chosen and self.rows.names:
            self.list.choose(self.rows.names[0])
        self._load_acts()
        self.focus_body()
        if not self.model.has_looked:
            self.model.check()
        unchecked = [one.name for one in self.model.clusters.all if one.check is None and one.lost is None]
        self.model.clusters.check(unchecked, install=False)

    def focus_body(self) -> None:
        if not self.search_field.hasFocus():
            body = self.list if self._bodies.currentWidget() is self.list else self
            body.setFocus(Qt.FocusReason.OtherFocusReason)

    def hideEvent(self, event: QHideEvent) -> None:
        self.model.watch(False)
        self.model.show_acts_of("")
        self._summarize_soon.stop()
        super().hideEvent(event)

    def _connect(self) -> None:
        acts = self.acts
        acts.connect_to(
            {
                acts.add: self.add_host,
                acts.add_cluster: self.add_cluster,
                acts.check: self.check,
                acts.check_all: self.check_all,
                acts.deploy: self.deploy,
                acts.edit: self.edit_hosts,
                acts.trust: self._trust_chosen,
                acts.terminal: self.open_terminal,
                acts.undeploy: self.undeploy_hosts,
                acts.undo_edit: self.undo_edit,
                acts.remove: self.remove_hosts,
                acts.cancel: self.cancel,
                acts.copy: self.copy_command,
                acts.search: self.search_field.setFocus,
            }
        )
        self.addActions(acts.all())
        self.search_field.textChanged.connect(self._search)
        self.state_filter.changed.connect(self._filter)
        self.details.focus_lost.connect(self.list.setFocus)
        self.model.undeployed.connect(self._undeployed)
        self.rows.modelReset.connect(self._show_body)
        self.list.chosen_changed.connect(self._show_chosen)
        self.list.chosen_changed.connect(self._load_acts)
        self.list.action_pressed.connect(self.perform_action)
        self.list.activated.connect(self._activated)
        self.list.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.list.customContextMenuRequested.connect(self._open_menu)
        self.notice.action_triggered.connect(lambda number: self._open_file() if number else self._read_again())
        self.model.hosts_changed.connect(self._hosts_changed)
        self.model.host_changed.connect(self._host_changed)
        self.model.clusters.changed.connect(self._host_changed)
        self.model.use_changed.connect(self._use_changed)

    def _open(self, dialog: QDialog) -> None:
        if self.dialog is not None:
            self.dialog.close()
        self.dialog = dialog
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.finished.connect(self._dialog_closed)
        dialog.open()

    def _dialog_closed(self) -> None:
        self.dialog = None
        self.list.setFocus()

    def _added(self, host: Host) -> None:
        self.list.choose(host.name)
        self.model.check([host.name])

    def _cluster_added(self, cluster: Cluster) -> None:
        self.list.choose(cluster.name)
        self.model.clusters.check([cluster.name], install=False)

    def _cluster_edited(self, before: Cluster, after: Cluster) -> None:
        """Checks a changed cluster, and offers to undo the edit."""
        self._undo, self._undo_cluster = [], (after, before)
        self._enable()
        self.toast.say(self.tr("{hosts} changed").format(hosts=after.name), action=self.acts.undo_edit)
        self.list.choose(after.name)
        self.model.clusters.check([after.name], install=False)

    def _edited(self, edits: list[tuple[Host, Host]]) -> None:
        """Checks the changed hosts, and offers to undo the edit."""
        self._undo, self._undo_cluster = [(after, before) for before, after in edits], None
        self._enable()
        names = [after.name for _, after in edits]
        whom = names[0] if len(names) == 1 else self.tr("{count} hosts").format(count=len(names))
        self.toast.say(self.tr("{hosts} changed").format(hosts=whom), action=self.acts.undo_edit)
        self.list.choose_all(names)
        self.model.check(names)

    def _undeploy(self, names: list[str]) -> None:
        self._removed = []
        self.model.undeploy(names)

    def _undeployed(self, removed: Removed) -> None:
        """Reports whether the agents have been removed. Several outcomes are reported together."""
        self._removed.append(removed)
        failed = [one.error for one in self._removed if one.failed and one.error is not None]
        gone = [one for one in self._removed if not one.failed]
        texts = [error_text(error, has_buttons=True) for error in failed]
        if gone:
            texts.insert(0, removed_text(gone))
        steps = [step for error in failed for step in error.next]
        self.notice.show_notice("fail" if failed else "info", " ".join(texts), steps=steps)

    def _trust_chosen(self) -> None:
        names = dict.fromkeys(status.blocking_host for status in self._chosen if not status.login.local)
        if names:
            self.trust(*names)

    def _trusted(self, name: str) -> None:
        """Checks all hosts and clusters that could not be used because the key of the host `name` was not trusted."""
        waiting = [status for status in self._entries if name in (status.name, status.blocking_host)]
        self.model.check([status.name for status in waiting if isinstance(status, HostStatus)])
        self.model.clusters.check([status.name for status in waiting if isinstance(status, ClusterStatus)])
        self.trusted.emit(name)

    def _remove(self, names: list[str]) -> None:
        try:
            for name in names:
                if self.model.clusters.status(name) is not None:
                    self.model.remove_cluster(name)
                else:
                    self.model.remove(name)
        except TorchyardError as error:
            self.notice.show_error(error)

    def _activated(self, index: QModelIndex) -> None:
        """Performs the suggested action for a host or cluster or, if there is none, a check. Does nothing during an
        activity.

        Called for Enter and a double click.
        """
        status = self.rows.status_at(index)
        if status is not None and status.doing is None:
            found = suggested_action(status)
            self.perform_action(status.name, found.action if found else "check")

    def _open_menu(self, at: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        acts = self.acts
        first = (acts.check, acts.deploy, acts.edit, acts.trust, acts.terminal, acts.cancel)
        for action in (*first, None, acts.copy, None, acts.undeploy, acts.remove):
            if action is None:
                menu.addSeparator()
            elif action.isEnabled():
                menu.addAction(action)
        menu.popup(self.list.viewport().mapToGlobal(at))

    def _search(self, text: str) -> None:
        self.rows.search(text)
        self._show_body()

    def _filter(self) -> None:
        self.rows.filter(self.state_filter.state)
        self._show_body()

    def _hosts_changed(self) -> None:
        problem = self.model.problem
        if problem is not None:
            text = self.tr("The fleet file has problems. {problems}").format(problems=error_text(problem))
            if self._entries:
                text += " " + self.tr("The hosts below are from its last valid version.")
            self.notice.show_notice("fail", text, self.tr("Read again"), self.tr("Open the file"), closable=False)
        else:
            self.notice.clear()
        self._show_body()
        self._summarize()
        self._show_chosen()

    def _host_changed(self, name: str) -> None:
        self._summarize_soon.start()
        if name in self.list.chosen:
            self._show_chosen()
        else:
            self._enable()
        self.status_changed.emit()

    def _use_changed(self, name: str) -> None:
        self._summarize_soon.start()
        if self.list.chosen == [name]:
            self._show_chosen()

    def _open_file(self) -> None:
        """Opens the fleet file in the desktop environment's text editor."""
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(self.model.fleet_file))):
            text = self.tr("No editor could be opened. The file is {path}.")
            self.toast.say(text.format(path=self.model.fleet_file), urgent=True)

    def _read_again(self) -> None:
        self.model.refresh()
        self.model.hosts_changed.emit()

    def _show_body(self) -> None:
        if not self._entries:
            shown: QWidget = self.empty if self.model.problem is None else self.unreadable
        elif not self.rows.names:
            self.nothing_found.set_texts(self.tr("No host found"), self._search_text())
            shown = self.nothing_found
        else:
            shown = self.list
        self._bodies.setCurrentWidget(shown)
        for widget in (self.details, self.search_field, self.state_filter):
            widget.setVisible(bool(self._entries))

    def _search_text(self) -> str:
        text, state = self.search_field.text(), self.state_filter.state
        if state is None:
            return self.tr("No host matches “{text}”.").format(text=text)
        if not text:
            return self.tr("No host is in the state “{state}” now.").format(state=state_name(state))
        found = self.tr("No host in the state “{state}” matches “{text}”.")
        return found.format(state=state_name(state), text=text)

    def _one(self) -> HostStatus | None:
        chosen = self.list.chosen
        return self.model.status(chosen[0]) if len(chosen) == 1 else None

    def _show_chosen(self) -> None:
        self._enable()
        self.details.show_entries(self._chosen)

    def _load_acts(self) -> None:
        one = self._one() if self.isVisible() else None
        self.model.show_acts_of(one.name if one is not None else "", SHOWN_ACTS)

    def _enable(self) -> None:
        chosen, entries = self._chosen, self._entries
        under_way = [status for status in entries if status.doing is not None]
        has_idle_host = any(status.doing is None for status in self._chosen_hosts)
        acts = self.acts
        acts.check.setEnabled(any(status.doing is None for status in chosen))
        acts.check_all.setEnabled(len(under_way) < len(entries))
        acts.deploy.setEnabled(has_idle_host)
        acts.trust.setEnabled(any(not status.login.local for status in chosen))
        acts.edit.setEnabled(bool(self._chosen_hosts) or len(chosen) == 1)
        acts.terminal.setEnabled(len(chosen) == 1)
        acts.undeploy.setEnabled(has_idle_host)
        acts.remove.setEnabled(bool(chosen))
        acts.undo_edit.setEnabled(bool(self._undo) or self._undo_cluster is not None)
        acts.cancel.setEnabled(bool(under_way))
        acts.copy.setEnabled(bool(entries))
        acts.search.setEnabled(bool(entries))

    def _summarize(self) -> None:
        hosts, clusters = self.model.hosts, self.model.clusters.all
        self.state_filter.show_counts(count_hosts(self._entries).by_state)
        texts = [answer_sentence(hosts, has_looked=self.model.has_looked)] if hosts else []
        gpus = sum(len(status.gpus) for status in hosts if status.answers)
        used = [status.gpus_in_use for status in hosts if status.answers and status.gpus_in_use is not None]
        if gpus:
            text = self.tr("{used} of 1 GPU in use") if gpus == 1 else self.tr("{used} of {gpus} GPUs in use")
            texts.append(text.format(used=sum(used) if used else "?", gpus=gpus))
        texts.append(clusters_sentence(clusters))
        self.summary.setText(" · ".join(filter(None, texts)))
        under_way = any(status.doing is not None for status in self._entries)
        if self._was_under_way and not under_way and self.isVisible():
            announce(self, self.summary.text())
        self._was_under_way = under_way

    def _make_buttons(self) -> list[QPushButton]:
        buttons = []
        for action in (self.acts.check_all, self.acts.add):
            button = action_button(action, action.iconText())
            button.setIcon(action.icon())
            buttons.append(button)
        buttons[1].setProperty("primary", True)
        buttons[1].setIcon(icon("plus", "on_accent"))
        return buttons

    def _make_bar(self) -> QFrame:
        bar = QFrame()
        bar.setProperty("bar", True)
        self.search_field.setMinimumWidth(120)
        self.search_field.setMaximumWidth(220)
        title = label(self.title, role="title")
        parts: list[Part | tuple[Part, int]] = [title, (self.summary, 3), self.state_filter, (self.search_field, 2)]
        hbox(*parts, *self._buttons, parent=bar, margins=(16, 0, 16, 0), spacing=12)
        return bar

    def _lay_out(self) -> None:
        middle = _Background()
        bodies = QWidget()
        self._bodies = QStackedLayout(bodies)
        for body in (self.list, self.empty, self.nothing_found, self.unreadable):
            self._bodies.addWidget(body)
        vbox(self.notice, MARGIN - 8, (bodies, 1), parent=middle, margins=FLUSH, spacing=0)
        hbox((middle, 1), self.details, parent=self, margins=FLUSH, spacing=0)


class _Background(QWidget):
    """Widget that paints the background behind the cards."""

    def paintEvent(self, event: QPaintEvent) -> None:
        QPainter(self).fillRect(self.rect(), theme().color("s0"))
