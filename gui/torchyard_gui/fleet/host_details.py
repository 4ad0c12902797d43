"""Panel with the details of the selected host or cluster and the actions that apply to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QSize, Signal, SignalInstance
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QPushButton, QWidget

from torchyard_core.fleet.host_fields import Transport
from torchyard_core.formatting import memory
from torchyard_core.next_steps import CheckHosts, DeployAgent, TrustKey
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.bridge.host_status import CheckedEntry, HostStatus, count_hosts
from torchyard_gui.fleet.audit_labels import audit_rows
from torchyard_gui.fleet.cluster_labels import cluster_pairs, file_pairs, limit_pairs, node_pairs, partition_pairs
from torchyard_gui.fleet.fingerprint import Fingerprint
from torchyard_gui.fleet.gpu_table import GpuTable
from torchyard_gui.fleet.host_list_model import Entry
from torchyard_gui.fleet.labels import (
    cpu_count,
    doing_word,
    enforcement_lines,
    fingerprints,
    full_time,
    percent,
    place,
    problem_sentence,
    since,
    state_count_text,
    state_mark,
    state_word,
    tint,
    used_of,
)
from torchyard_gui.fleet.wrapped_text import WrappedText
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import Divider, ElidedLabel, SectionLabel, StateMark, label, scroll_area, set_ink
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.next_steps import StepButtons

Pairs = list[tuple[str, str]]

SHOWN_ACTS = 5
"""Number of the latest audit records that are shown."""


class HostDetails(QFrame):
    """Shows the details of one selected host or cluster, or the number of selected entries if there are several.

    The buttons always have the same positions. They trigger actions of the page, which are given by name.
    """

    focus_lost = Signal()
    """Emitted before a button is disabled while it has the keyboard focus."""

    def __init__(self, actions: Mapping[str, QAction], parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("panel", "right")
        self.setFixedWidth(theme().metrics.inspector)
        self.setAccessibleName(self.tr("Details of the host"))
        self._mark = StateMark()
        self.title = ElidedLabel(role="title")
        self.state = label(role="small", ink="2", wrap=True)
        self.remark = label(role="small", ink="2", wrap=True)
        self.problems = WrappedText()
        self.keys = [(label(role="small", ink="2"), Fingerprint("")) for _ in range(2)]
        self.steps = StepButtons()
        self.buttons = {key: ActionButton(action, self.focus_lost) for key, action in actions.items()}
        self.gpus = GpuTable()
        self._gpu_heading = _Heading(self.tr("GPUs"))
        self._beside_heading = _Heading(self.tr("On CPUs"))
        self._beside = label(role="small", ink="2", wrap=True)
        headings = (self.tr("Host"), self.tr("Software"), self.tr("Fleet file"), self.tr("Recent actions"))
        self._tables = [_Table(heading) for heading in headings]
        of_clusters = (self.tr("Cluster"), self.tr("Partitions"), self.tr("Nodes"), self.tr("Limits"))
        self._cluster_tables = [_Table(heading) for heading in (*of_clusters, self.tr("Fleet file"))]
        self._lay_out()
        self.show_entries([])

    def show_entries(self, statuses: Sequence[Entry]) -> None:
        """Shows the details of a single host or cluster, or their number if there are several."""
        one = statuses[0] if len(statuses) == 1 else None
        self._rest.setVisible(one is not None)
        self._mark.setVisible(one is not None)
        self._button_area.setVisible(bool(statuses))
        if one is None:
            self.title.setText(self._number(statuses) if statuses else self.tr("No host selected"))
            hint = self.tr("Select a host to see its hardware, software and users.")
            self.state.setText(_states_text(statuses) if statuses else hint)
            self.state.setToolTip("")
            set_ink(self.state, "2")
            return
        self._show(one)

    def _number(self, statuses: Sequence[Entry]) -> str:
        """Returns a text that says how many hosts and clusters are selected."""
        clusters = sum(isinstance(status, ClusterStatus) for status in statuses)
        if not clusters:
            return self.tr("{count} hosts selected").format(count=len(statuses))
        if clusters == len(statuses):
            return self.tr("{count} clusters selected").format(count=clusters)
        return self.tr("{count} hosts and clusters selected").format(count=len(statuses))

    def _show(self, status: Entry) -> None:
        self._show_state(status)
        newer = self.tr("Its agent {version} is newer than this desktop's and was kept.")
        remark = status.remark if isinstance(status, HostStatus) else ""
        self.remark.setText(newer.format(version=remark) if remark else "")
        self.remark.setVisible(bool(remark))
        gpus = status.gpus if isinstance(status, HostStatus) else []
        self.gpus.show_gpus(gpus)
        self._gpu_heading.setVisible(bool(gpus))
        self.gpus.setVisible(bool(gpus))
        beside = status.beside_gpus if isinstance(status, HostStatus) else []
        self._beside.setText(", ".join(beside))
        self._beside_heading.setVisible(bool(beside))
        self._beside.setVisible(bool(beside))
        for table in self._cluster_tables if isinstance(status, HostStatus) else self._tables:
            table.show_pairs([])
        if isinstance(status, HostStatus):
            pairs_of = (self._host(status), self._software(status), self._file(status), audit_rows(status.acts))
            for table, pairs in zip(self._tables, pairs_of, strict=True):
                table.show_pairs(pairs)
            return
        for table, rows_of in zip(
            self._cluster_tables, (cluster_pairs, partition_pairs, node_pairs, limit_pairs, file_pairs), strict=True
        ):
            table.show_pairs(rows_of(status))

    def _show_state(self, status: CheckedEntry) -> None:
        self._mark.set_state(state_mark(status))
        self.title.setText(status.name)
        self.state.setText(doing_word(status) or f"{state_word(status)} · {since(status)}")
        self.state.setToolTip(full_time(status.since) if status.since else "")
        set_ink(self.state, tint(status) or "2")
        text = "\n\n".join(problem_sentence(status, problem) for problem in status.problems)
        self.problems.setText(text)
        self.problems.setVisible(bool(text))
        shown_keys = fingerprints(status)
        for number, (name, field) in enumerate(self.keys):
            is_shown = number < len(shown_keys)
            name.setVisible(is_shown)
            field.setVisible(is_shown)
            if is_shown:
                name.setText(shown_keys[number][0])
                field.setText(shown_keys[number][1])
                field.setAccessibleName(shown_keys[number][0])
        steps = [step for problem in status.problems for step in problem.next]
        # The panel already has buttons that deploy the agent, trust the key, and check the host.
        self.steps.show_steps(step for step in steps if not isinstance(step, DeployAgent | TrustKey | CheckHosts))

    def _host(self, status: HostStatus) -> Pairs:
        found, facts = status.found, status.facts
        now = status.sample["host"] if status.sample is not None else None
        pairs: Pairs = [(self.tr("Address"), place(status))]
        if now is not None:
            pairs.append((self.tr("CPU"), f"{percent(now['cpu'])} · {cpu_count(now['cpus'])}"))
            pairs.append((self.tr("Memory"), used_of(now["memory_used_mb"], now["memory_mb"])))
            pairs.append((self.tr("Load"), f"{now['load']:.1f}" if now.get("load") is not None else "?"))
            free = now.get("disk_free_gb")
        else:
            pairs += [(self.tr("CPU"), cpu_count(facts.cpus))] if facts.cpus is not None else []
            pairs += [(self.tr("Memory"), memory(facts.memory_gb * 1024))] if facts.memory_gb is not None else []
            free = found.get("disk_free_gb")
        if free is not None:
            pairs.append((self.tr("Disk"), self.tr("{free} free").format(free=memory(free * 1024))))
        found_out = ((self.tr("Host name"), "hostname"), (self.tr("Kernel"), "kernel"), (self.tr("Driver"), "driver"))
        for name, key in found_out:
            if found.get(key):
                pairs.append((name, str(found[key])))
        return pairs

    def _software(self, status: HostStatus) -> Pairs:
        found = status.found
        pairs: Pairs = []
        agent = status.check.agent if status.check is not None else None
        if agent:
            pairs.append((self.tr("Agent"), f"{agent['version']} ({agent['sha256'][:12]})"))
        if enforcement := enforcement_lines(status):
            pairs += [(self.tr("Bookings"), enforcement[0]), *(("", line) for line in enforcement[1:])]
        python = found.get("python") or {}
        if python.get("version"):
            pairs += [(self.tr("Python"), python["version"]), ("", python["path"])]
        if found:
            pairs.append((self.tr("torch"), found.get("torch") or self.tr("none")))
            pairs.append((self.tr("numpy"), found.get("numpy") or self.tr("none")))
        under = found.get("agent_python") or {}
        if agent and under.get("version"):
            pairs += [(self.tr("Agent's Python"), under["version"]), ("", under["path"])]
        return pairs

    def _file(self, status: HostStatus) -> Pairs:
        """Returns the host's values in the fleet file, except for those that are part of the displayed address."""
        host = status.host
        wanted = [
            (self.tr("Private key"), host.identity_file),
            (self.tr("Jump host"), host.proxy_jump),
            (self.tr("Transport"), "openssh" if host.transport is Transport.OPENSSH else None),
            (self.tr("Data address"), host.data_address),
            (self.tr("Interface"), host.interface),
            (self.tr("Python"), host.python),
            (self.tr("Agent's Python"), host.agent_python),
            (self.tr("Agent's folder"), host.agent_dir),
            (self.tr("Open ports"), host.ports),
            (self.tr("Link"), f"{host.bandwidth_gbps:g} Gbit/s" if host.bandwidth_gbps else None),
            (self.tr("Labels"), ", ".join(f"{key}={value}" for key, value in host.labels.items())),
        ]
        return [(name, str(value)) for name, value in wanted if value]

    def _lay_out(self) -> None:
        body = QWidget()
        heading = hbox(self._mark, (self.title, 1), spacing=8)
        self._button_area = QWidget()
        grid = QGridLayout(self._button_area)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(8)
        for number, button in enumerate(self.buttons.values()):
            grid.addWidget(button, number // 2, number % 2)
        self._rest = QWidget()
        heads = self.remark, self.problems, *(part for pair in self.keys for part in pair), self.steps
        parts = self._gpu_heading, self.gpus, self._beside_heading, self._beside
        vbox(*heads, *parts, *self._tables, *self._cluster_tables, parent=self._rest, margins=(0, 8, 0, 0), spacing=8)
        rows = heading, self.state, self._button_area, self._rest, None
        vbox(*rows, parent=body, margins=(16, 16, 16, 16), spacing=8)
        vbox(scroll_area(body), parent=self, margins=FLUSH)

    def sizeHint(self) -> QSize:
        return QSize(theme().metrics.inspector, 400)


class ActionButton(QPushButton):
    """A button for an action, with the action's short text.

    A button that is about to be disabled while it has the keyboard focus emits `focus_lost`. Otherwise, Qt would move
    the focus to the next button, whose action may be destructive.
    """

    def __init__(self, action: QAction, focus_lost: SignalInstance):
        super().__init__(action.iconText())
        self.action = action
        self._focus_lost = focus_lost
        self.setToolTip(action.toolTip())
        self.setEnabled(action.isEnabled())
        self.setProperty("danger", bool(action.property("danger")))
        self.clicked.connect(action.trigger)
        action.enabledChanged.connect(self._enable)
        action.changed.connect(self._follow)

    def _enable(self, enabled: bool) -> None:
        if not enabled and self.hasFocus():
            self._focus_lost.emit()
        self.setEnabled(enabled)

    def _follow(self) -> None:
        self.setText(self.action.iconText())


def _states_text(statuses: Sequence[CheckedEntry]) -> str:
    """Returns the number of hosts and clusters in each state as text."""
    by_state = count_hosts(statuses).by_state
    return ", ".join(state_count_text(state, len(hosts)) for state, hosts in by_state.items())


class _Heading(QWidget):
    """Divider with the heading of the section below."""

    def __init__(self, text: str):
        super().__init__()
        vbox(Divider(), SectionLabel(text), parent=self, margins=(0, 8, 0, 0), spacing=6)


class _Table(QWidget):
    """Table of names and values below a heading. It is hidden while it is empty."""

    def __init__(self, heading: str):
        super().__init__()
        self._pairs: Pairs = []
        self._labels: list[tuple[QLabel, QLabel]] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(8)
        self._grid.setVerticalSpacing(6)
        self._grid.setColumnMinimumWidth(0, 92)
        self._grid.setColumnStretch(1, 1)
        self._grid.addWidget(_Heading(heading), 0, 0, 1, 2)
        self.hide()

    def show_pairs(self, pairs: Pairs) -> None:
        """Shows names and values. Reuses existing rows, because this method is called every second."""
        if pairs == self._pairs:
            return
        self._pairs = pairs
        while len(self._labels) < len(pairs):
            self._add_row()
        for number, (name, value) in enumerate(self._labels):
            shown = number < len(pairs)
            name.setVisible(shown)
            value.setVisible(shown)
            if shown:
                name.setText(pairs[number][0])
                value.setText(pairs[number][1])
        self.setVisible(bool(pairs))

    def _add_row(self) -> None:
        name, value = label(role="small", ink="3"), ElidedLabel(role="small", in_middle=True)
        row = 1 + len(self._labels)
        self._grid.addWidget(name, row, 0)
        self._grid.addWidget(value, row, 1)
        self._labels.append((name, value))
