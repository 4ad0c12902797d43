"""The control *Where: hpc*, with which the user chooses the hosts of the fleet file or a cluster as the place of
runs.
"""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QPoint, Qt
from PySide6.QtWidgets import QMenu, QPushButton, QWidget

from torchyard_core.fleet.cluster import Cluster
from torchyard_core.topology.model import Topology
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets.next_steps import error_text

LONGEST_NAME = 100
"""Maximum width in pixels of a cluster's name on the button. A longer name is elided."""


class PlaceControl(QPushButton):
    """Button that shows the place of runs and opens a menu to change it. Hidden if the fleet file has no clusters."""

    def __init__(self, place: PlanningPlace, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._place = place
        self._topology: Topology | None = None
        self._is_short = False
        self.clicked.connect(self.open)
        place.changed.connect(self.refresh)
        self.refresh()

    def open(self) -> QMenu:
        """Opens the menu below the button, and returns it."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setToolTipsVisible(True)
        menu.setAccessibleName(self.tr("Where runs take place"))
        cluster = self._cluster
        is_named = self._topology is not None and self._place.is_named_by(self._topology)
        tip = self.tr("Run on the hosts of the Fleet page")
        if not self._place.has_hosts:
            tip = self.tr("The fleet has no hosts. Add one on the Fleet page")
        places = [("", self.tr("Hosts of the fleet, over SSH"), tip)]
        for one in self._place.clusters:
            tip = described(one, self._place.status(one))
            places.append((one.name, self.tr("{cluster}, a Slurm cluster").format(cluster=one.name), tip))
        for name, text, tip in places:
            entry = menu.addAction(text)
            entry.setToolTip(tip)
            entry.setCheckable(True)
            entry.setChecked(name == (cluster.name if cluster is not None else ""))
            entry.setEnabled(entry.isChecked() or (not is_named and (bool(name) or self._place.has_hosts)))
            entry.triggered.connect(lambda _, name=name: self._place.choose(name))
        if cluster is not None:
            menu.addSeparator()
            check = menu.addAction(icon("refresh"), self.tr("Check {cluster}").format(cluster=cluster.name))
            check.setToolTip(self.tr("Log in to the cluster and read its nodes"))
            check.setEnabled(self._place.status(cluster).doing is None)
            check.triggered.connect(lambda: self._place.check(cluster))
        menu.popup(self.mapToGlobal(QPoint(0, self.height() + 4)))
        return menu

    def set_short(self, is_short: bool) -> None:
        """Sets whether the button shows only the place, to save space."""
        if is_short != self._is_short:
            self._is_short = is_short
            self.refresh()

    def show_topology(self, topology: Topology) -> None:
        """Shows where a topology runs: on the cluster that the topology names, or else in the chosen place."""
        if topology is not self._topology:
            self._topology = topology
            self.refresh()

    @property
    def _cluster(self) -> Cluster | None:
        return self._place.cluster_for(self._topology) if self._topology is not None else None

    def refresh(self) -> None:
        self.setHidden(not self._place.clusters)
        cluster = self._cluster
        if cluster is None:
            name, tip, mark = self.tr("Fleet"), self.tr("Runs take place on the hosts of the fleet, over SSH."), "fleet"
        else:
            status = self._place.status(cluster)
            name = self.fontMetrics().elidedText(cluster.name, Qt.TextElideMode.ElideRight, LONGEST_NAME)
            tip = described(cluster, status)
            mark = "warning" if status.check_error is not None else "fleet"
            if self._topology is not None and self._place.is_named_by(self._topology):
                tip += "\n" + self.tr("The topology itself names this cluster in its pools.")
        self.setText(name if self._is_short else self.tr("Where: {place}").format(place=name))
        whole = self.tr("Where: {place}").format(place=cluster.name if cluster is not None else name)
        self.setToolTip(tip)
        self.setAccessibleName(whole)
        self.setAccessibleDescription(tip)
        self.setIcon(icon(mark))


def described(cluster: Cluster, status: ClusterStatus) -> str:
    """Returns a sentence about a cluster and its nodes, for tool tips."""
    tr = QCoreApplication.translate
    text = tr("Topology", "Runs are jobs of the Slurm cluster {cluster}, which chooses their nodes.")
    parts = [text.format(cluster=cluster.name)]
    if status.description is not None:
        version = status.description.answer["version"]
        count = sum(shape["count"] for shape in status.description.shapes)
        one, several = tr("Topology", "Slurm {version}, 1 node"), tr("Topology", "Slurm {version}, {count} nodes")
        nodes = (one if count == 1 else several).format(version=version, count=count)
        in_partition = tr("Topology", "{nodes} in the partition {partition}")
        parts.append(
            (in_partition.format(nodes=nodes, partition=cluster.partition) if cluster.partition else nodes) + "."
        )
    elif status.doing is not None:
        parts.append(tr("Topology", "Logging in …"))
    elif status.check_error is None:
        parts.append(tr("Topology", "It has not been checked yet."))
    if status.check_error is not None:
        parts.append(error_text(status.check_error))
    return "\n".join(parts)
