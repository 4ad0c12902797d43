"""Dialogs that add and remove hosts. Problems are shown below the fields that they concern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QCoreApplication, QStringListModel, Qt, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QCompleter, QDialog, QFileDialog, QLineEdit, QToolButton, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh_config import config_text, host_names
from torchyard_core.problems import no_lines
from torchyard_core.yaml_io.model_validation import validate
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets import FormRow, NoticeBar, label, scroll_area
from torchyard_gui.widgets.dialogs import ConfirmationDialog, DialogButtons
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox

WIDTH = 520
NAME_WIDTH = 128
ROOM_AROUND = 240
"""Screen pixels reserved for title, buttons and surroundings."""
CONFIG = Path("~/.ssh/config")


class AddHostDialog(QDialog):
    """Dialog that adds a host to the fleet file."""

    added = Signal(object)
    """The Host."""

    def __init__(self, model: FleetModel, parent: QWidget | None = None):
        super().__init__(parent)
        self._model = model
        self._touched: set[str] = set()
        self.setWindowTitle(self.tr("Add a host"))
        self.setMinimumWidth(WIDTH)
        self.notice = NoticeBar()
        self.local = QCheckBox(self.tr("This computer (no SSH)"))
        self.fields = {key: QLineEdit() for key in ("name", "address", "port", "user", "identity_file", "proxy_jump")}
        more = ("python", "agent_python", "agent_dir", "data_address", "interface", "ports", "bandwidth_gbps", "labels")
        self.fields |= {key: QLineEdit() for key in more}
        self.transport = QComboBox()
        self.transport.addItem(self.tr("paramiko (built in)"), "")
        self.transport.addItem(self.tr("openssh (the system's ssh)"), "openssh")
        self.rows = self._make_rows()
        self.more = QToolButton()
        self.more.setText(self.tr("More settings"))
        self.more.setIcon(icon("chevron-right"))
        self.more.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.more.setCheckable(True)
        self._lay_out()
        self._complete_names()
        for key, field in self.fields.items():
            field.textEdited.connect(lambda text, key=key: self._edited(key))
        self.local.toggled.connect(self._local_toggled)
        self.more.toggled.connect(self._show_more)
        self._suggest()
        self._fit()

    def typed(self) -> dict[str, str]:
        texts = {key: field.text() for key, field in self.fields.items()}
        return {**texts, "transport": str(self.transport.currentData())}

    def accept(self) -> None:
        """Adds the host. The dialog stays open if that fails."""
        self._touched = set(self.rows)
        host, wrong = self._host()
        self._show_problems(wrong)
        if host is None:
            first = next((key for key in self.rows if key in wrong), "name")
            if first in self._more_keys:
                self.more.setChecked(True)
            self.rows[first].field.setFocus()
            return
        try:
            self._model.add(host)
        except TorchyardError as error:
            self.notice.show_error(error, closable=False)
            return
        super().accept()
        self.added.emit(host)

    def _host(self) -> tuple[Host | None, dict[str, str]]:
        taken = [status.name for status in self._model.hosts]
        return host_of(self.typed(), local=self.local.isChecked(), taken=taken)

    def _edited(self, key: str) -> None:
        """Validates the fields after the user has edited one of them."""
        self._touched.add(key)
        self.notice.clear()
        self._show_problems(self._host()[1])
        self._suggest()

    def _show_problems(self, wrong: dict[str, str]) -> None:
        for key, row in self.rows.items():
            row.set_problem(wrong.get(key, "") if key in self._touched else "")
        self._fit()

    def _suggest(self) -> None:
        """Shows the default values of empty fields."""
        name = self.fields["name"].text().strip()
        self.fields["address"].setPlaceholderText(name or self.tr("its name"))
        known = name in self._known.stringList()
        row = self.rows["address"]
        found = self.tr("Your ~/.ssh/config says how to reach {host}.").format(host=name) if known else ""
        if not row.field.property("invalid"):
            row.set_note(found or self.tr("An address, or a Host of ~/.ssh/config"))

    def _local_toggled(self, local: bool) -> None:
        for key in REMOTE_ONLY:
            self.rows[key].setEnabled(not local)
        self._show_problems(self._host()[1])

    def _show_more(self, shown: bool) -> None:
        self.more.setIcon(icon("chevron-down" if shown else "chevron-right"))
        self._rest.setVisible(shown)
        self._fit()

    def _fit(self) -> None:
        """Adjusts the size of the dialog to its fields, limited by the size of the screen."""
        self._body_rows.activate()
        room = self.screen().availableSize().height() - ROOM_AROUND
        self._scroll.setMinimumHeight(min(self._body.sizeHint().height(), max(240, room)))
        self.adjustSize()

    def _complete_names(self) -> None:
        """Offers names from ~/.ssh/config for completion.

        The file is read on a thread, because it may be on a slow file system.
        """
        self._known = QStringListModel(self)
        completer = QCompleter(self._known, self, caseSensitivity=Qt.CaseSensitivity.CaseInsensitive)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.activated.connect(lambda text: self._edited("name"))
        self.fields["name"].setCompleter(completer)
        taken = {status.name for status in self._model.hosts}

        def read() -> list[str]:
            return [name for name in host_names(config_text(CONFIG.expanduser())) if name not in taken]

        self._job = self._model.jobs.run(read, self._known.setStringList, owner=self)

    def _browse(self) -> None:
        chooser = QFileDialog(self, self.tr("The private key's file"), str(Path("~/.ssh").expanduser()))
        chooser.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        chooser.fileSelected.connect(self.fields["identity_file"].setText)
        chooser.open()

    def _make_rows(self) -> dict[str, FormRow]:
        browse = self.fields["identity_file"].addAction(icon("open"), QLineEdit.ActionPosition.TrailingPosition)
        browse.setToolTip(self.tr("Choose a file"))
        browse.triggered.connect(self._browse)
        names = {
            "name": (self.tr("Name"), self.tr("What topologies call it")),
            "address": (self.tr("Address"), ""),
            "port": (self.tr("SSH port"), ""),
            "user": (self.tr("User"), ""),
            "identity_file": (self.tr("Private key"), ""),
            "proxy_jump": (self.tr("Jump host"), self.tr("Hosts to go through, as user@bastion, comma-separated")),
            "transport": (self.tr("Transport"), ""),
            "python": (self.tr("Python"), self.tr("The interpreter for programs: the one that has torch")),
            "agent_python": (self.tr("Agent's Python"), ""),
            "agent_dir": (self.tr("Agent's folder"), self.tr("Choose another where the home is full or slow")),
            "data_address": (self.tr("Data address"), self.tr("Its address for training traffic")),
            "interface": (self.tr("Interface"), self.tr("For NCCL and Gloo, like ib0")),
            "ports": (self.tr("Open ports"), self.tr("What the firewall lets through, like 29400-29499")),
            "bandwidth_gbps": (self.tr("Link, Gbit/s"), ""),
            "labels": (self.tr("Labels"), self.tr("For pools to choose by, like rack=r1")),
        }
        empty = {
            "port": "22",
            "user": self.tr("you"),
            "identity_file": self.tr("your keys and ssh-agent"),
            "python": self.tr("found by itself"),
            "agent_python": self.tr("found by itself"),
            "agent_dir": "~/.torchyard",
        }
        for key, text in empty.items():
            self.fields[key].setPlaceholderText(text)
        return {
            key: FormRow(name, self.fields.get(key, self.transport), note, name_width=NAME_WIDTH)
            for key, (name, note) in names.items()
        }

    @property
    def _more_keys(self) -> list[str]:
        return list(self.rows)[6:]

    def _lay_out(self) -> None:
        buttons = DialogButtons(self, self.tr("Add host"))
        self.add_button, self.cancel_button = buttons.agree, buttons.cancel
        self._body = body = QWidget()
        beside = hbox(self.local, margins=(NAME_WIDTH, 0, 0, 0))
        rows = list(self.rows.values())
        self._rest = QWidget()
        vbox(*rows[6:], parent=self._rest, margins=FLUSH, spacing=10)
        self._rest.hide()
        parts = *rows[:6], beside, hbox(self.more, None), self._rest, None
        self._body_rows = vbox(*parts, parent=body, margins=(20, 0, 20, 4), spacing=10)
        self._scroll = scroll_area(body)
        title = label(self.tr("Add a host"), role="title")
        title.setContentsMargins(20, 0, 20, 0)
        foot = hbox(buttons, margins=(20, 0, 20, 0))
        vbox(title, self.notice, (self._scroll, 1), foot, parent=self, margins=(0, 18, 0, 16), spacing=12)
        # Qt would reset the default button if it were set before the button belongs to the dialog.
        self.add_button.setDefault(True)

    def done(self, result: int) -> None:
        self._job.cancel()
        super().done(result)


REMOTE_ONLY = ("address", "port", "user", "identity_file", "proxy_jump", "transport")
"""Fields without effect for this computer, which needs no SSH."""


def host_of(typed: Mapping[str, str], *, local: bool, taken: Iterable[str] = ()) -> tuple[Host | None, dict[str, str]]:
    """Returns (host, {}) if the fields are valid, else (None, problems by field).

    Empty fields are omitted, so that the fleet file does not contain their defaults.

    Args:
        taken: Names of the hosts in the fleet.
    """
    entry: dict[str, Any] = {"local": True} if local else {}
    wrong: dict[str, str] = {}
    for key, text in typed.items():
        if not text.strip() or (local and key in REMOTE_ONLY):
            continue
        try:
            entry[key] = _value(key, text.strip())
        except ValueError as error:
            wrong[key] = str(error)
    host, problems = validate(Host, {"name": "", **entry}, {}, no_lines)
    for problem in problems:
        wrong.setdefault(problem.path.split(".")[0], f"{problem.message}.")
    if "name" not in entry:
        wrong["name"] = "a host needs a name: what topologies call it."
    elif entry["name"] in taken:
        wrong["name"] = f"the fleet has a host `{entry['name']}` already."
    return (None, wrong) if wrong else (host, {})


def _value(key: str, text: str) -> Any:
    """Parses the text of a field. Raises ValueError with a sentence for the user."""
    if key == "port":
        return int(text) if text.isdecimal() else text
    if key == "bandwidth_gbps":
        try:
            return float(text)
        except ValueError:
            return text
    if key == "labels":
        return dict(_label(word) for word in text.replace(",", " ").split())
    return text


def _label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ValueError(f"a label is written KEY=VALUE, not '{word}'.")
    return key, value


class RemoveHostsDialog(ConfirmationDialog):
    """Dialog that asks whether to remove hosts. It is accepted if the user confirms."""

    def __init__(self, names: Sequence[str], parent: QWidget | None = None):
        whom = names[0] if len(names) == 1 else _tr("{count} hosts").format(count=len(names))
        listed = _tr("They are {names}. ").format(names=", ".join(names)) if len(names) > 1 else ""
        stays = _tr("The agent stays, with the logs and outputs of past runs; to take it away, run this first:")
        question = _tr("Remove {hosts} from the fleet?").format(hosts=whom)
        super().__init__(question, listed + stays, _tr("Remove"), _tr("Keep"), parent)
        command = label(f"torchyard undeploy {' '.join(names)}", ink="2", wrap=True)
        command.setTextInteractionFlags(command.textInteractionFlags().TextSelectableByMouse)
        self.rows.addWidget(command)


def _tr(text: str) -> str:
    return QCoreApplication.translate("RemoveDialog", text)
