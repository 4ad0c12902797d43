"""Dialog to edit one or several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, Signal
from PySide6.QtWidgets import QWidget

from torchyard_core.fleet.inventory import Host
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.fleet.dialogs.host_form import FIRST_ROWS, HostForm, host_of, texts_of
from torchyard_gui.fleet.dialogs.interpreter_picker import InterpreterPicker


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
        """Returns the changed host and an empty dictionary, or None and the problems by field if fields are invalid."""
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


def _tr(text: str) -> str:
    return QCoreApplication.translate("EditHostsDialog", text)
