"""Dialog to add a host."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QCoreApplication, QStringListModel, Qt, Signal
from PySide6.QtWidgets import QCompleter, QWidget

from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh.ssh_config import config_text, host_names
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.fleet.dialogs.host_form import HostForm, host_of

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


def _tr(text: str) -> str:
    return QCoreApplication.translate("AddHostDialog", text)
