"""How the trainers keep in step: the kind, with a sentence, and the settings that this kind uses."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from torchyard_core.launch.runnable import RUNNABLE
from torchyard_core.topology.model import Strategy, StrategyKind
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.fields import ChoiceField, WholeField
from torchyard_gui.topology.inspector.group import Group
from torchyard_gui.topology.words import strategy_name, strategy_sentence
from torchyard_gui.widgets.labels import label

USES = {
    StrategyKind.SANDBLASTER: ("server_groups", "backup_workers"),
    StrategyKind.DOWNPOUR: ("worker_groups", "server_groups", "push_every", "pull_every", "warm_start_steps"),
    StrategyKind.HOGWILD: ("worker_groups", "sync_every"),
}
"""Settings beside the kind. None and all-reduce have none yet."""


def kinds_for(current: StrategyKind) -> list[StrategyKind]:
    """Strategies to choose from: those that can be run, and the one that the file says."""
    return [kind for kind in StrategyKind if kind in RUNNABLE or kind is current]


class StrategyGroup(QWidget):
    """Kind and settings of the strategy."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self.group = Group(self.tr("Strategy"), editor.set_strategy)
        self.kind = ChoiceField([])
        self.group.add("kind", self.tr("Kind"), self.kind, self.tr("How the trainers keep their parameters in step."))
        self._sentence = label(role="small", ink="2", wrap=True)
        self._fill()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(self.group)
        layout.addWidget(self._sentence)

    def _fill(self) -> None:
        add = self.group.add
        add(
            "worker_groups",
            self.tr("Worker groups"),
            WholeField(empty=self.tr("each worker alone"), least=1),
            self.tr("Blocks of workers that train as one; the chief is in the first."),
        )
        add("server_groups", self.tr("Server groups"), WholeField(1, least=1), self.tr("How the servers are cut."))
        add(
            "push_every",
            self.tr("Push every"),
            WholeField(1, least=1),
            self.tr("Steps between two pushes of gradients."),
        )
        add(
            "pull_every",
            self.tr("Pull every"),
            WholeField(1, least=1),
            self.tr("Steps between two pulls of parameters."),
        )
        add("warm_start_steps", self.tr("Warm start"), WholeField(0), self.tr("Steps that group 0 trains alone first."))
        add("sync_every", self.tr("Sync every"), WholeField(8, least=1), self.tr("Updates between two exchanges."))
        add(
            "backup_workers",
            self.tr("Backup workers"),
            WholeField(0),
            self.tr("So many of the slowest gradients of a step are dropped."),
        )

    def show_strategy(self, strategy: Strategy) -> None:
        """Shows a strategy, with the settings that its kind uses."""
        self.kind.set_choices([(kind, strategy_name(kind)) for kind in kinds_for(strategy.kind)])
        uses = USES.get(strategy.kind, ())
        for key, row in self.group.rows.items():
            row.setVisible(key == "kind" or key in uses)
        sentence = strategy_sentence(strategy.kind)
        if strategy.kind not in RUNNABLE:
            sentence += " " + self.tr("It can be drawn and checked, and not be run yet.")
        self._sentence.setText(sentence)
        self.group.show_blocks([strategy])
