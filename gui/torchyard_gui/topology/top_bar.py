"""The top bar of the Topology page: file, undo, strategy, arrangement, planned time, GPUs, advice, YAML and Launch."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QAction, QIcon, QResizeEvent
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QToolButton, QWidget

from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.document.topology_document import TopologyDocument
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import StrategyKind, Topology
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.inspector.fields import ChoiceField
from torchyard_gui.topology.labels import strategy_name, strategy_sentence
from torchyard_gui.topology.place_control import PlaceControl
from torchyard_gui.topology.planned_time_control import PlannedTimeControl
from torchyard_gui.widgets.input_fields import Segmented
from torchyard_gui.widgets.layouts import hbox
from torchyard_gui.widgets.text_labels import ElidedLabel, label

NAME = 200
"""Width in pixels that suffices for the file name. A longer name is elided, and causes no shorter form of the bar."""
LONG, SHORT, NO_COUNT, SHORTEST = range(4)
"""Forms of the bar, from the longest to the shortest. `SHORT` omits explanatory words, such as the label of the
strategy. `NO_COUNT` also omits the number of GPUs. `SHORTEST` also has short button texts, no icon on *Launch*, and
less space.
"""
SPACING = 8


class TopBar(QFrame):
    """A bar that shows the state of the document. User requests are emitted as signals or trigger actions."""

    strategy_chosen = Signal(object)
    """Emitted with the chosen StrategyKind."""

    def __init__(
        self,
        undo: QAction,
        redo: QAction,
        advice: QAction,
        yaml: QAction,
        launch: QAction,
        planning: PlanningTime,
        place: PlanningPlace,
    ) -> None:
        super().__init__()
        self.setProperty("bar", True)
        self.setFixedHeight(theme().metrics.bar)
        self.file = ElidedLabel(role="title", in_middle=True)
        self.unsaved = label(role="small", ink="2")
        self._is_modified = False
        self._form = LONG
        self._launch = launch
        self.strategy = ChoiceField([(kind, strategy_name(kind)) for kind in StrategyKind])
        self.strategy.setAccessibleName(self.tr("Strategy"))
        self.strategy.setMinimumWidth(148)
        self.strategy.committed.connect(self.strategy_chosen)
        self.arrangement = Segmented([("host", self.tr("By host")), ("group", self.tr("By group"))])
        self.arrangement.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.arrangement.setAccessibleName(self.tr("Arrangement of replicas"))
        self.arrangement.button("host").setToolTip(self.tr("Replicas on their hosts (Ctrl+G)"))
        self.arrangement.button("group").setToolTip(self.tr("Replicas in their worker and server groups (Ctrl+G)"))
        self.where = PlaceControl(place)
        self.when = PlannedTimeControl(planning)
        self.gpus = ElidedLabel(role="small", ink="2")
        self._strategy_name = label(self.tr("Strategy"), ink="2")
        self._play = icon("play", "on_accent")
        self.launch = QPushButton(self.tr("Launch …"))
        self.launch.setProperty("primary", True)
        self.launch.clicked.connect(launch.trigger)
        self._row = hbox(
            self.file,
            self.unsaved,
            12,
            _button(undo),
            _button(redo),
            12,
            self._strategy_name,
            self.strategy,
            4,
            self.arrangement,
            (None, 1),
            self.where,
            self.when,
            self.gpus,
            4,
            _button(advice),
            _button(yaml),
            self.launch,
            parent=self,
            margins=(16, 0, 12, 0),
            spacing=SPACING,
        )
        launch.changed.connect(self.fit)
        planning.changed.connect(self.fit)
        place.changed.connect(self.fit)
        self._set_form(LONG)

    def minimumSizeHint(self) -> QSize:
        """Returns a width of 0, so that the current form of the bar does not limit how narrow the window can be."""
        return QSize(0, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()

    def fit(self) -> None:
        """Uses the longest form of the bar with enough space for the file name, or the shortest form if none has."""
        self.file.setMaximumWidth(self.file.sizeHint().width())
        for form in (LONG, SHORT, NO_COUNT, SHORTEST):
            self._set_form(form)
            room = self.width() - (self.sizeHint().width() - self.file.sizeHint().width())
            if room >= min(NAME, self.file.sizeHint().width()):
                break
        # Without this limit, a long name would make the layout shorten the number of GPUs, too.
        self.file.setMaximumWidth(max(1, room))

    def _set_form(self, form: int) -> None:
        self._form = form
        self._strategy_name.setHidden(form >= SHORT)
        self.where.set_short(form >= SHORT)
        self.when.set_short(form >= SHORT)
        self.gpus.setHidden(form >= NO_COUNT)
        self._row.setSpacing(SPACING - 3 if form == SHORTEST else SPACING)
        by_host, by_group = self.tr("By host"), self.tr("By group")
        host, group = (self.tr("Host"), self.tr("Group")) if form == SHORTEST else (by_host, by_group)
        for key, text, name in (("host", host, by_host), ("group", group, by_group)):
            self.arrangement.button(key).setText(text)
            self.arrangement.button(key).setAccessibleName(name)
        self._show_unsaved()
        self._show_launch()

    def show_document(self, document: TopologyDocument) -> None:
        """Shows the name of the file and whether there are unsaved changes."""
        self.file.setText(document.name)
        self.file.setToolTip(str(document.path or ""))
        self._is_modified = document.is_modified
        self.fit()

    def _show_unsaved(self) -> None:
        """Shows unsaved changes as a dot and, if there is space, a word beside the dot."""
        word = self.tr("unsaved") if self._is_modified else ""
        dot = "•" if word else ""
        self.unsaved.setText(dot if self._form >= SHORT else f"{dot} {word}".strip())
        self.unsaved.setToolTip(word)
        self.unsaved.setAccessibleName(word)

    def _show_launch(self) -> None:
        launch = self._launch
        self.launch.setText(launch.iconText() if self._form == SHORTEST else launch.text())
        self.launch.setIcon(QIcon() if self._form == SHORTEST else self._play)
        self.launch.setAccessibleName(launch.text())
        self.launch.setToolTip(launch.toolTip())
        self.launch.setEnabled(launch.isEnabled())

    def show_plan(self, topology: Topology, plan: Plan, hosts: tuple[HostFacts, ...]) -> None:
        """Shows the strategy, the number of GPUs that the topology uses, and the number of free GPUs or cluster nodes.

        Args:
            hosts: The hosts of the fleet, or the slots of the cluster for which the page plans.
        """
        self.where.show_topology(topology)
        self.when.set_on_cluster(any(host.cluster for host in hosts))
        kind = plan.topology.strategy.kind
        self.strategy.set_values([kind])
        self.strategy.setToolTip(strategy_sentence(kind))
        unknown = [host.name for host in hosts if host.gpus and not host.use_known]
        self.gpus.setToolTip("")
        self.gpus.setText(self._gpus(plan, hosts, bool(unknown)))
        if unknown:
            tip = self.tr("The current use of the GPUs of {hosts} is unknown.")
            self.gpus.setToolTip(tip.format(hosts=", ".join(unknown)))
        self.fit()

    def _gpus(self, plan: Plan, hosts: tuple[HostFacts, ...], unknown: bool) -> str:
        on_nodes = any(host.cluster and host.checked for host in hosts)
        used = sum(len(planned.gpus) for planned in plan.replicas)
        if on_nodes and used:
            return self._gpus_of_nodes(used, len(plan.hosts))
        # The slots of a cluster stand for any of its nodes, so it is unknown whether their GPUs are free.
        free = 0 if on_nodes else sum(gpu.uuid not in host.busy_gpus for host in hosts for gpu in host.gpus)
        if free and unknown:
            one, several = self.tr("{used} of 1 GPU used"), self.tr("{used} of {free} GPUs used")
            return (one if free == 1 else several).format(used=used, free=free)
        if free:
            one, several = self.tr("{used} of 1 free GPU used"), self.tr("{used} of {free} free GPUs used")
            return (one if free == 1 else several).format(used=used, free=free)
        count = len(plan.replicas)
        if not count:
            return ""
        if not used:
            return self.tr("1 replica") if count == 1 else self.tr("{count} replicas").format(count=count)
        return self.tr("1 GPU used") if used == 1 else self.tr("{used} GPUs used").format(used=used)

    def _gpus_of_nodes(self, gpus: int, nodes: int) -> str:
        if nodes == 1:
            return self.tr("1 GPU of 1 node") if gpus == 1 else self.tr("{gpus} GPUs of 1 node").format(gpus=gpus)
        return self.tr("{gpus} GPUs of {nodes} nodes").format(gpus=gpus, nodes=nodes)

    def kind(self) -> StrategyKind:
        return next(kind for kind in StrategyKind if strategy_name(kind) == self.strategy.currentText())


def _button(action: QAction) -> QWidget:
    button = QToolButton()
    button.setDefaultAction(action)
    button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonIconOnly)
    return button
