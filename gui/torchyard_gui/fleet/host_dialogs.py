"""Dialogs to add, edit and remove hosts, and to remove agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QStringListModel, Qt, Signal
from PySide6.QtWidgets import QCompleter, QWidget

from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh_config import config_text, host_names
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.fleet.host_form import FIRST_ROWS, HostForm, host_of, texts_of
from torchyard_gui.fleet.interpreter_picker import InterpreterPicker
from torchyard_gui.widgets.dialogs import ConfirmationDialog

CONFIG = Path("~/.ssh/config")


class AddHostDialog(HostForm):
    """Dialog that adds a host to the fleet file."""

    added = Signal(object)
    """Emitted with the new Host."""

    def __init__(self, model: FleetModel, parent: QWidget | None = None):
        super().__init__(model, _tr("Add a host"), _tr("Add host"), parent)
        self._complete_names()
        self._suggest()

    def problems(self) -> dict[str, str]:
        return self._host()[1]

    def apply(self) -> None:
        host, _ = self._host()
        assert host is not None
        self._model.add(host)
        self.added.emit(host)

    def edited(self, key: str) -> None:
        super().edited(key)
        self._suggest()

    def _host(self) -> tuple[Host | None, dict[str, str]]:
        taken = [status.name for status in self._model.hosts]
        return host_of(self.typed(), local=self.local.isChecked(), taken=taken)

    def _suggest(self) -> None:
        """Shows which address is the default, and whether ~/.ssh/config contains the host."""
        name = self.fields["name"].text().strip()
        self.fields["address"].setPlaceholderText(name or _tr("the name"))
        known = name in self._known.stringList()
        row = self.rows["address"]
        found = _tr("{host} is configured in your ~/.ssh/config.").format(host=name) if known else ""
        if not row.field.property("invalid"):
            row.set_note(found or _tr("An address, or a Host of ~/.ssh/config"))

    def _complete_names(self) -> None:
        """Offers names from ~/.ssh/config for completion.

        The file is read on a background thread, because it may be on a slow file system.
        """
        self._known = QStringListModel(self)
        completer = QCompleter(self._known, self, caseSensitivity=Qt.CaseSensitivity.CaseInsensitive)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        if (popup := completer.popup()) is not None:
            popup.setProperty("completions", True)
        completer.activated.connect(lambda text: self.edited("name"))
        self.fields["name"].setCompleter(completer)
        taken = {status.name for status in self._model.hosts}

        def read() -> list[str]:
            return [name for name in host_names(config_text(CONFIG.expanduser())) if name not in taken]

        self._job = self._model.jobs.run(read, self._known.setStringList, owner=self)

    def done(self, result: int) -> None:
        self._job.cancel()
        super().done(result)


class EditHostsDialog(HostForm):
    """Dialog that changes one or several hosts in the fleet file.

    If there are several hosts, only the fields that the user edited are written.
    """

    changed = Signal(object)
    """Emitted with the edits as a list of (before, after)."""

    def __init__(self, model: FleetModel, hosts: Sequence[Host], parent: QWidget | None = None):
        title = _tr("Edit {host}").format(host=hosts[0].name)
        if len(hosts) > 1:
            title = _tr("Edit {count} hosts").format(count=len(hosts))
        super().__init__(model, title, _tr("Save"), parent)
        self._hosts = tuple(hosts)
        self._texts = {host.name: texts_of(host) for host in hosts}
        self._shown = {key: self._common(key) for key in self.rows}
        self._local = {host.local for host in hosts}
        self._fill()
        self.interpreters = InterpreterPicker(model, [host.name for host in hosts])
        self.interpreters.chosen.connect(self._choose_python)
        self.interpreters.resized.connect(self.fit)
        self.below_python.addWidget(self.interpreters)
        if any(self._texts[host.name][key] for host in hosts for key in list(self.rows)[FIRST_ROWS:]):
            self.more.setChecked(True)
        self.fit()

    def problems(self) -> dict[str, str]:
        wrong: dict[str, str] = {}
        for host in self._hosts:
            for key, problem in self._after(host)[1].items():
                wrong.setdefault(key, problem)
        return wrong

    def apply(self) -> None:
        edits = [(host, after) for host in self._hosts if (after := self._after(host)[0]) is not None and after != host]
        if edits:
            self._model.change(edits)
            self.changed.emit(edits)

    def _after(self, host: Host) -> tuple[Host | None, dict[str, str]]:
        """Returns the changed host; if fields are invalid, returns None and their problems."""
        typed = {key: text for key, text in self.typed().items() if text != self._shown[key]}
        local = self.local.isChecked() if len(self._local) == 1 else host.local
        taken = [status.name for status in self._model.hosts if status.name != host.name]
        return host_of({**self._texts[host.name], **typed}, local=local, taken=taken)

    def _common(self, key: str) -> str:
        """Returns the text of a field if it is the same for all hosts, otherwise ""."""
        found = {texts[key] for texts in self._texts.values()}
        return found.pop() if len(found) == 1 else ""

    def _fill(self) -> None:
        several = len(self._hosts) > 1
        for key, field in self.fields.items():
            field.setText(self._shown[key])
            if len({texts[key] for texts in self._texts.values()}) > 1:
                field.setPlaceholderText(_tr("different values"))
        self.transport.setCurrentIndex(self.transport.findData(self._shown["transport"]))
        for key in ("name", "address"):
            self.rows[key].setVisible(not several)
        self.local.setVisible(not several)
        self.local.setChecked(self._local == {True})
        if several:
            names = ", ".join(host.name for host in self._hosts)
            text = _tr("Fields that you edit are set for all of {hosts}; the others stay as they are.")
            self.notice.show_notice("info", text.format(hosts=names), closable=False)
        elif not self.local.isChecked():
            self.fields["address"].setPlaceholderText(self._hosts[0].name)

    def edited(self, key: str) -> None:
        self._touched.add(key)
        if self.notice.kind != "info":
            self.notice.clear()
        self.show_problems(self.problems())

    def _choose_python(self, path: str) -> None:
        self.fields["python"].setText(path)
        self.edited("python")

    def done(self, result: int) -> None:
        self.interpreters.cancel()
        super().done(result)


class RemoveHostsDialog(ConfirmationDialog):
    """Asks whether to remove hosts from the fleet. The dialog is accepted if the user agrees."""

    def __init__(self, names: Sequence[str], parent: QWidget | None = None):
        question = _tr("Remove {hosts} from the fleet?").format(hosts=_hosts_text(names))
        stays = _tr("The agent stays, with the logs and outputs of past runs. To remove these, undeploy first.")
        super().__init__(question, _listed(names) + stays, _tr("Remove"), _tr("Keep"), parent)


class UndeployDialog(ConfirmationDialog):
    """Asks whether to remove the agent from hosts. The dialog is accepted if the user agrees."""

    def __init__(self, names: Sequence[str], parent: QWidget | None = None):
        question = _tr("Remove the agent from {hosts}?").format(hosts=_hosts_text(names))
        lost = _tr("The logs and outputs of past runs there are deleted. A host with a live run keeps its agent.")
        super().__init__(question, _listed(names) + lost, _tr("Undeploy"), _tr("Keep"), parent)


def _hosts_text(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else _tr("{count} hosts").format(count=len(names))


NAMED = 3
"""Maximum number of hosts that a question names. If there are more, the question contains only their number."""


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return ""
    shown = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        shown = _tr("{names} and {count} more").format(names=shown, count=len(names) - NAMED)
    return _tr("Selected: {names}. ").format(names=shown)


def _tr(text: str) -> str:
    return QCoreApplication.translate("HostDialogs", text)
