"""The form of a cluster, and the dialogs that add a cluster to the fleet file or edit a cluster of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from PySide6.QtCore import QCoreApplication, Signal
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from torchyard_core.fleet.cluster import Cluster
from torchyard_core.fleet.host_fields import Transport
from torchyard_core.problems import no_lines
from torchyard_core.yaml_io.model_validation import validate
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.fleet.dialogs.host_form import REMOTE_ONLY, EntryForm, wrong_fields

LOGIN_KEYS = (*REMOTE_ONLY, "agent_python", "agent_dir")
"""The keys of the fields that describe the login node. All other fields describe the cluster itself."""


class ClusterForm(EntryForm):
    """The form of a cluster."""

    keys = (
        *("name", "address", "user", "partition", "account", "time_limit", "qos", "python", "port"),
        *("identity_file", "proxy_jump", "agent_python", "agent_dir"),
    )

    def local_text(self) -> str:
        return _tr("This computer is a login node (no SSH)")

    def names(self) -> dict[str, tuple[str, str]]:
        return {
            "name": (_tr("Name"), _tr("The name that topologies use")),
            "address": (_tr("Login node"), _tr("An address, or a Host of ~/.ssh/config")),
            "user": (_tr("User"), ""),
            "partition": (_tr("Partition"), ""),
            "account": (_tr("Account"), ""),
            "time_limit": (_tr("Time limit"), _tr("Of each job, such as 04:00:00 or 2-00:00:00")),
            "qos": (_tr("QOS"), ""),
            "python": (_tr("Python"), _tr("The interpreter for programs on the nodes, with torch installed")),
            "setup": (_tr("Setup"), _tr("Shell lines that run before the program, such as module load python")),
            "port": (_tr("SSH port"), ""),
            "identity_file": (_tr("Private key"), ""),
            "proxy_jump": (_tr("Jump host"), _tr("Bastions as user@address:port, separated by commas")),
            "transport": (_tr("Transport"), ""),
            "agent_python": (_tr("Agent's Python"), _tr("The interpreter for the agent, 3.9 or newer")),
            "agent_dir": (_tr("Agent's folder"), _tr("On a file system that login node and nodes share")),
        }

    def placeholders(self) -> dict[str, str]:
        return {
            "port": "22",
            "user": _tr("your login"),
            "partition": _tr("Slurm's default"),
            "account": _tr("your default"),
            "qos": _tr("your default"),
            "time_limit": _tr("the partition's"),
            "python": "python3",
            "identity_file": _tr("your keys and ssh-agent"),
            "agent_python": _tr("found automatically"),
            "agent_dir": "~/.torchyard",
        }

    def widget_of(self, key: str) -> QWidget:
        if key != "setup":
            return super().widget_of(key)
        self.setup = QPlainTextEdit()
        self.setup.setFixedHeight(54)
        self.setup.setTabChangesFocus(True)
        self.setup.textChanged.connect(lambda: self.edited("setup"))
        return self.setup

    def typed(self) -> dict[str, str]:
        return {**super().typed(), "setup": self.setup.toPlainText()}

    def taken(self, but: str = "") -> list[str]:
        """Returns the names of all entries of the fleet file, except for the name `but`."""
        inventory = self._model.inventory
        names = [*(host.name for host in inventory.hosts), *(cluster.name for cluster in inventory.clusters)]
        return [name for name in names if name != but]


class AddClusterDialog(ClusterForm):
    """Dialog that adds a cluster to the fleet file."""

    added = Signal(object)
    """Emitted with the new Cluster."""

    def __init__(self, model: FleetModel, parent: QWidget | None = None):
        super().__init__(model, _tr("Add a Slurm cluster"), _tr("Add cluster"), parent)

    def problems(self) -> dict[str, str]:
        return self._cluster()[1]

    def apply(self) -> None:
        cluster, _ = self._cluster()
        assert cluster is not None
        self._model.add_cluster(cluster)
        self.added.emit(cluster)

    def _cluster(self) -> tuple[Cluster | None, dict[str, str]]:
        return cluster_from(self.typed(), local=self.local.isChecked(), taken=self.taken())


class EditClusterDialog(ClusterForm):
    """Dialog that changes a cluster in the fleet file."""

    changed = Signal(object, object)
    """Emitted with the cluster before and after the change."""

    def __init__(self, model: FleetModel, cluster: Cluster, parent: QWidget | None = None):
        super().__init__(model, _tr("Edit {cluster}").format(cluster=cluster.name), _tr("Save"), parent)
        self._before = cluster
        texts = texts_of_cluster(cluster)
        for key, field in self.fields.items():
            field.setText(texts[key])
        self.setup.blockSignals(True)
        self.setup.setPlainText(texts["setup"])
        self.setup.blockSignals(False)
        self.transport.setCurrentIndex(self.transport.findData(texts["transport"]))
        self.local.setChecked(cluster.login.local)
        if any(texts[key] for key in list(self.rows)[self.first_rows :]):
            self.more.setChecked(True)
        self.fit()

    def problems(self) -> dict[str, str]:
        return self._after()[1]

    def apply(self) -> None:
        after, _ = self._after()
        if after is not None and after != self._before:
            self._model.change_cluster(self._before, after)
            self.changed.emit(self._before, after)

    def _after(self) -> tuple[Cluster | None, dict[str, str]]:
        return cluster_from(self.typed(), local=self.local.isChecked(), taken=self.taken(self._before.name))


def cluster_from(
    typed: Mapping[str, str], *, local: bool, taken: Iterable[str] = ()
) -> tuple[Cluster | None, dict[str, str]]:
    """Returns the cluster and an empty dictionary if the fields are valid, otherwise None and the problems by field.

    Empty fields are omitted, so that the fleet file does not contain their defaults.

    Args:
        taken: Names of other entries of the fleet.
    """
    entry: dict[str, Any] = {}
    login: dict[str, Any] = {"local": True} if local else {}
    for key, text in typed.items():
        if text.strip() and not (local and key in REMOTE_ONLY):
            (login if key in LOGIN_KEYS else entry)[key] = _value(key, text.strip())
    if login:
        entry["login"] = login
    cluster, problems = validate(Cluster, {"name": "", "kind": "slurm", **entry}, {}, no_lines)
    wrong = wrong_fields(problems, entry.get("name", ""), "cluster", taken)
    return (None, wrong) if wrong else (cluster, {})


def texts_of_cluster(cluster: Cluster) -> dict[str, str]:
    """Returns the contents of the fields for a cluster. `cluster_from` converts them back to the cluster."""
    values = {**cluster.model_dump(exclude={"login", "kind"}), **cluster.login.model_dump(exclude={"local"})}
    texts = {key: str(value) if value is not None else "" for key, value in values.items()}
    transport = "openssh" if cluster.login.transport is Transport.OPENSSH else ""
    return {**texts, "transport": transport, "setup": "\n".join(cluster.setup)}


def _value(key: str, text: str) -> Any:
    """Parses the text of a field. An invalid port is returned as text, which the validation refuses later."""
    if key == "port":
        return int(text) if text.isdecimal() else text
    return [line.strip() for line in text.splitlines() if line.strip()] if key == "setup" else text


def _tr(text: str) -> str:
    return QCoreApplication.translate("ClusterForm", text)
