"""The forms for entries of the fleet file. A form has a field for each key, and shows problems below the fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QDialog, QFileDialog, QLineEdit, QToolButton, QWidget

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.host_fields import Transport
from torchyard_core.fleet.inventory import Host
from torchyard_core.problems import Problem, no_lines
from torchyard_core.yaml_io.model_validation import validate
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets import FormRow, NoticeBar, label, scroll_area
from torchyard_gui.widgets.dialogs import DialogButtons
from torchyard_gui.widgets.layouts import FLUSH, Part, hbox, vbox
from torchyard_gui.widgets.next_steps import quoted

WIDTH = 560
NAME_WIDTH = 128
ROOM_AROUND = 240
"""Height in pixels that the form leaves free on the screen for its title, its buttons and the area around it."""
REMOTE_ONLY = ("address", "port", "user", "identity_file", "proxy_jump", "transport")
"""Fields that have no effect if the host is this computer, for which SSH is not used."""
FIRST_ROWS = 6
"""The number of fields for the login, which are always shown. The other fields are below *More settings*."""


class EntryForm(QDialog):
    """A dialog with the form for an entry of the fleet file. An accepted dialog closes only after `apply` has written
    the file.
    """

    keys: tuple[str, ...] = ()
    """The keys whose values are edited as a single line of text."""
    first_rows = FIRST_ROWS
    """The number of rows that are always shown. The others are below *More settings*."""

    def __init__(self, model: FleetModel, title: str, agree: str, parent: QWidget | None = None):
        super().__init__(parent)
        self._model = model
        self._touched: set[str] = set()
        self.setWindowTitle(title)
        self.setMinimumWidth(WIDTH)
        self.notice = NoticeBar()
        self.local = QCheckBox(self.local_text())
        self.fields = {key: QLineEdit() for key in self.keys}
        self.transport = QComboBox()
        self.transport.addItem(_tr("paramiko (built in)"), "")
        self.transport.addItem(_tr("openssh (the system's ssh)"), "openssh")
        self.rows = self._make_rows()
        self.more = QToolButton()
        self.more.setText(_tr("More settings"))
        self.more.setIcon(icon("chevron-right"))
        self.more.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.more.setCheckable(True)
        self._lay_out(agree)
        for key, field in self.fields.items():
            field.textEdited.connect(lambda text, key=key: self.edited(key))
        self.local.toggled.connect(self._local_toggled)
        self.more.toggled.connect(self._show_more)
        self.fit()

    def local_text(self) -> str:
        """Returns the text of the check box for an entry that is reached without SSH."""
        return _tr("This computer (no SSH)")

    def names(self) -> dict[str, tuple[str, str]]:
        """Returns the title of each row and a note about the row, in the order of the rows."""
        raise NotImplementedError

    def placeholders(self) -> dict[str, str]:
        """Returns the placeholder of each field, which shows the value that applies while the field is empty."""
        raise NotImplementedError

    def widget_of(self, key: str) -> QWidget:
        """Returns the input widget of a row. Called once for each row."""
        return self.fields.get(key, self.transport)

    def problems(self) -> dict[str, str]:
        """Returns the problem of each invalid field."""
        raise NotImplementedError

    def apply(self) -> None:
        """Writes the entry, whose fields are valid, to the fleet file. Raises TorchyardError if writing fails."""
        raise NotImplementedError

    def typed(self) -> dict[str, str]:
        texts = {key: field.text() for key, field in self.fields.items()}
        return {**texts, "transport": str(self.transport.currentData() or "")}

    def edited(self, key: str) -> None:
        """Validates the fields after the user edits one of them."""
        self._touched.add(key)
        self.notice.clear()
        self.show_problems(self.problems())

    def focus_field(self, key: str) -> None:
        """Focuses a field and selects its text."""
        if key in list(self.rows)[self.first_rows :]:
            self.more.setChecked(True)
        field = self.rows[key].field
        self._scroll.ensureWidgetVisible(self.rows[key])
        field.setFocus(Qt.FocusReason.OtherFocusReason)
        if isinstance(field, QLineEdit):
            field.selectAll()

    def accept(self) -> None:
        """Validates and applies the fields. The dialog stays open if a field is invalid or if applying fails."""
        self._touched = set(self.rows)
        wrong = self.problems()
        self.show_problems(wrong)
        if wrong:
            self.focus_field(next(key for key in (*self.rows, "name") if key in wrong))
            return
        try:
            self.apply()
        except TorchyardError as error:
            self.notice.show_error(error, closable=False)
            return
        super().accept()

    def show_problems(self, wrong: dict[str, str]) -> None:
        for key, row in self.rows.items():
            problem = quoted(wrong.get(key, "")) if key in self._touched else ""
            row.set_problem(problem[:1].upper() + problem[1:])
        self.fit()

    def fit(self) -> None:
        """Adjusts the dialog's size to its fields, up to the size of the screen."""
        self._body_rows.activate()
        screen = self.screen().availableGeometry()
        around = ROOM_AROUND + (self.notice.sizeHint().height() if not self.notice.isHidden() else 0)
        self._scroll.setMinimumHeight(min(self._body.sizeHint().height(), max(240, screen.height() - around)))
        self.adjustSize()
        frame = self.frameGeometry()
        if self.isVisible() and frame.bottom() > screen.bottom():
            self.move(frame.left(), max(screen.top(), screen.bottom() - frame.height()))

    def _local_toggled(self, local: bool) -> None:
        for key in REMOTE_ONLY:
            self.rows[key].setEnabled(not local)
        self.show_problems(self.problems())

    def _show_more(self, shown: bool) -> None:
        self.more.setIcon(icon("chevron-down" if shown else "chevron-right"))
        self._rest.setVisible(shown)
        self.fit()

    def _browse(self) -> None:
        chooser = QFileDialog(self, _tr("The private key's file"), str(Path("~/.ssh").expanduser()))
        chooser.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        chooser.fileSelected.connect(self.fields["identity_file"].setText)
        chooser.open()

    def _make_rows(self) -> dict[str, FormRow]:
        browse = self.fields["identity_file"].addAction(icon("open"), QLineEdit.ActionPosition.TrailingPosition)
        browse.setToolTip(_tr("Choose a file"))
        browse.triggered.connect(self._browse)
        for key, text in self.placeholders().items():
            self.fields[key].setPlaceholderText(text)
        return {
            key: FormRow(name, self.widget_of(key), note, name_width=NAME_WIDTH)
            for key, (name, note) in self.names().items()
        }

    def _lay_out(self, agree: str) -> None:
        buttons = DialogButtons(self, agree)
        self.agree_button, self.cancel_button = buttons.agree, buttons.cancel
        self._body = body = QWidget()
        beside = hbox(self.local, margins=(NAME_WIDTH, 0, 0, 0))
        rows = list(self.rows.values())
        self._rest = QWidget()
        below_python = vbox(margins=(NAME_WIDTH, 0, 0, 0), spacing=6)
        self.below_python = below_python
        """Layout below the field for the interpreter, to which subclasses can add widgets."""
        after = 1 + list(self.rows).index("python")
        rest: list[Part] = [*rows[self.first_rows : after], below_python, *rows[after:]]
        vbox(*rest, parent=self._rest, margins=FLUSH, spacing=10)
        self._rest.hide()
        parts = *rows[: self.first_rows], beside, hbox(self.more, None), self._rest, None
        self._body_rows = vbox(*parts, parent=body, margins=(20, 0, 20, 4), spacing=10)
        self._scroll = scroll_area(body)
        title = label(self.windowTitle(), role="title", wrap=True)
        title.setContentsMargins(20, 0, 20, 0)
        foot = hbox(buttons, margins=(20, 0, 20, 0))
        vbox(title, self.notice, (self._scroll, 1), foot, parent=self, margins=(0, 18, 0, 16), spacing=12)
        # The default button is set only now, because Qt would reset it when the button is added to the dialog.
        self.agree_button.setDefault(True)


class HostForm(EntryForm):
    """The form of a host."""

    keys = (
        *("name", "address", "port", "user", "identity_file", "proxy_jump", "python", "agent_python", "agent_dir"),
        *("data_address", "interface", "ports", "bandwidth_gbps", "labels"),
    )

    def names(self) -> dict[str, tuple[str, str]]:
        return {
            "name": (self.tr("Name"), self.tr("The name that topologies use")),
            "address": (self.tr("Address"), ""),
            "port": (self.tr("SSH port"), ""),
            "user": (self.tr("User"), ""),
            "identity_file": (self.tr("Private key"), ""),
            "proxy_jump": (self.tr("Jump host"), self.tr("Bastions as user@address:port, separated by commas")),
            "transport": (self.tr("Transport"), ""),
            "python": (self.tr("Python"), self.tr("The interpreter for programs, with torch installed")),
            "agent_python": (self.tr("Agent's Python"), self.tr("The interpreter for the agent, 3.9 or newer")),
            "agent_dir": (self.tr("Agent's folder"), self.tr("Choose another if the home is full or slow")),
            "data_address": (self.tr("Data address"), self.tr("The address for training traffic")),
            "interface": (self.tr("Interface"), self.tr("The network interface for NCCL and Gloo, such as ib0")),
            "ports": (self.tr("Open ports"), self.tr("Ports that the firewall allows, such as 29400-29499")),
            "bandwidth_gbps": (self.tr("Link (Gbit/s)"), ""),
            "labels": (self.tr("Labels"), self.tr("For pools to select by, such as rack=r1")),
        }

    def placeholders(self) -> dict[str, str]:
        return {
            "port": "22",
            "user": self.tr("your login"),
            "identity_file": self.tr("your keys and ssh-agent"),
            "python": self.tr("the login's python3"),
            "agent_python": self.tr("found automatically"),
            "agent_dir": "~/.torchyard",
            "data_address": self.tr("found automatically"),
            "interface": self.tr("found automatically"),
        }


def _tr(text: str) -> str:
    return QCoreApplication.translate("EntryForm", text)


def host_of(typed: Mapping[str, str], *, local: bool, taken: Iterable[str] = ()) -> tuple[Host | None, dict[str, str]]:
    """Returns the host and an empty dictionary if the fields are valid, otherwise None and the problems by field.

    Empty fields are omitted, so that the fleet file does not contain their defaults.

    Args:
        taken: Names of other hosts of the fleet.
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
    wrong = {**wrong_fields(problems, entry.get("name", ""), "host", taken), **wrong}
    return (None, wrong) if wrong else (host, {})


def wrong_fields(problems: Iterable[Problem], name: str, kind: str, taken: Iterable[str]) -> dict[str, str]:
    """Returns a sentence about the first problem of each invalid field. `kind` is `host` or `cluster`."""
    wrong: dict[str, str] = {}
    for problem in problems:
        key = problem.path.removeprefix("login.").split(".")[0]
        wrong.setdefault(key, f"{problem.message.removeprefix(f'{key} ')}.")  # The row's title already names the key.
    if not name:
        wrong["name"] = f"a {kind} needs a name, which topologies use."
    elif name in taken:
        wrong["name"] = f"the fleet has an entry `{name}` already."
    return wrong


def texts_of(host: Host) -> dict[str, str]:
    """Returns the contents of the fields for a host. `host_of` converts them back to the host."""
    texts = {key: str(value) if value is not None else "" for key, value in host.model_dump(exclude={"local"}).items()}
    return {
        **texts,
        "transport": "openssh" if host.transport is Transport.OPENSSH else "",
        "bandwidth_gbps": f"{host.bandwidth_gbps:g}" if host.bandwidth_gbps is not None else "",
        "labels": ", ".join(f"{key}={value}" for key, value in host.labels.items()),
    }


def _value(key: str, text: str) -> Any:
    """Parses the text of a field. An invalid number is returned as text, which Host's validation refuses later.

    Raises ValueError with a sentence for the user if a label is invalid.
    """
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
