"""The top bar of the page: file, undo, strategy, arrangement, planned time, used GPUs, advice, YAML and Launch."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QToolButton, QWidget

from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.document.topology_document import TopologyDocument
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import StrategyKind
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.inspector.fields import ChoiceField
from torchyard_gui.topology.labels import strategy_name, strategy_sentence
from torchyard_gui.topology.planned_time_control import PlannedTimeControl
from torchyard_gui.widgets.input_fields import Segmented
from torchyard_gui.widgets.layouts import hbox
from torchyard_gui.widgets.text_labels import ElidedLabel, label

NARROW = 1100
"""Width in pixels below which the bar has its short form."""
NO_COUNT = 1000
"""Width in pixels below which the bar does not show the number of GPUs."""


class TopBar(QFrame):
    """A bar that shows the state of the document. Requests of the user are emitted as signals or trigger actions."""

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
    ) -> None:
        super().__init__()
        self.setProperty("bar", True)
        self.setFixedHeight(theme().metrics.bar)
        self.file = ElidedLabel(role="title", in_middle=True)
        self.unsaved = label(role="small", ink="2")
        self._is_modified = False
        self.strategy = ChoiceField([(kind, strategy_name(kind)) for kind in StrategyKind])
        self.strategy.setAccessibleName(self.tr("Strategy"))
        self.strategy.setMinimumWidth(148)
        self.strategy.committed.connect(self.strategy_chosen)
        self.arrangement = Segmented([("host", self.tr("By host")), ("group", self.tr("By group"))])
        self.arrangement.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.arrangement.setAccessibleName(self.tr("Arrangement of replicas"))
        self.arrangement.button("host").setToolTip(self.tr("Replicas on their hosts (Ctrl+G)"))
        self.arrangement.button("group").setToolTip(self.tr("Replicas in their worker and server groups (Ctrl+G)"))
        self.when = PlannedTimeControl(planning)
        self.gpus = ElidedLabel(role="small", ink="2")
        self._strategy_name = label(self.tr("Strategy"), ink="2")
        self.launch = QPushButton(icon("play", "on_accent"), self.tr("Launch …"))
        self.launch.setProperty("primary", True)
        self.launch.clicked.connect(launch.trigger)
        hbox(
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
            self.when,
            self.gpus,
            4,
            _button(advice),
            _button(yaml),
            self.launch,
            parent=self,
            margins=(16, 0, 12, 0),
            spacing=8,
        )
        launch.changed.connect(lambda: self._show_launch(launch))
        self._show_launch(launch)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Gives the bar its short form if the window is narrow."""
        super().resizeEvent(event)
        is_narrow = self.width() < NARROW
        self._strategy_name.setHidden(is_narrow)
        self.when.set_short(is_narrow)
        self.gpus.setHidden(self.width() < NO_COUNT)
        self._show_unsaved()

    def show_document(self, document: TopologyDocument) -> None:
        """Shows the name of the file and whether there are unsaved changes."""
        self.file.setText(document.name)
        self.file.setToolTip(str(document.path or ""))
        self._is_modified = document.is_modified
        self._show_unsaved()

    def _show_unsaved(self) -> None:
        """Shows that there are unsaved changes by a dot and, if there is space, a word beside it."""
        word = self.tr("unsaved") if self._is_modified else ""
        dot = "•" if word else ""
        self.unsaved.setText(dot if self.width() < NARROW else f"{dot} {word}".strip())
        self.unsaved.setToolTip(word)
        self.unsaved.setAccessibleName(word)

    def _show_launch(self, launch: QAction) -> None:
        self.launch.setText(launch.text())
        self.launch.setToolTip(launch.toolTip())
        self.launch.setEnabled(launch.isEnabled())

    def show_plan(self, plan: Plan, hosts: tuple[HostFacts, ...]) -> None:
        """Shows the strategy, and how many of the free GPUs the topology uses."""
        kind = plan.topology.strategy.kind
        self.strategy.set_values([kind])
        self.strategy.setToolTip(strategy_sentence(kind))
        unknown = [host.name for host in hosts if host.gpus and not host.use_known]
        self.gpus.setToolTip("")
        self.gpus.setText(self._gpus(plan, hosts, bool(unknown)))
        if unknown:
            tip = self.tr("The current use of the GPUs of {hosts} is unknown.")
            self.gpus.setToolTip(tip.format(hosts=", ".join(unknown)))

    def _gpus(self, plan: Plan, hosts: tuple[HostFacts, ...], unknown: bool) -> str:
        free = sum(gpu.uuid not in host.busy_gpus for host in hosts for gpu in host.gpus)
        used = sum(len(planned.gpus) for planned in plan.replicas)
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

    def kind(self) -> StrategyKind:
        return next(kind for kind in StrategyKind if strategy_name(kind) == self.strategy.currentText())


def _button(action: QAction) -> QWidget:
    button = QToolButton()
    button.setDefaultAction(action)
    button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonIconOnly)
    return button
