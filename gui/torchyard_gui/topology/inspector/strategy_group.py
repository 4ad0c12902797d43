"""How the trainers keep in step: the kind, with a sentence, and the settings that this kind uses."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from torchyard_core.topology.model import OnNan, ReductionOrder, Role, StrategyKind, Topology
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.exchange_cost import exchange_sentence
from torchyard_gui.topology.inspector.field_group import Group
from torchyard_gui.topology.inspector.fields import ChoiceField, Field, WholeField
from torchyard_gui.topology.labels import strategy_name, strategy_sentence
from torchyard_gui.widgets.text_labels import label

USES: dict[StrategyKind, tuple[str, ...]] = {
    StrategyKind.ALL_REDUCE: ("on_nan",),
    StrategyKind.SANDBLASTER: ("server_groups", "backup_workers", "reduction_order", "on_nan"),
    StrategyKind.REDUCTION_SERVER: ("bucket_mb", "reduction_order", "on_nan"),
    StrategyKind.DOWNPOUR: (
        "worker_groups",
        "server_groups",
        "push_every",
        "pull_every",
        "max_staleness",
        "warm_start_steps",
        "reduction_order",
        "on_nan",
    ),
    StrategyKind.HOGWILD: ("worker_groups", "sync_every", "on_nan"),
}
"""Settings beside the kind. None leaves everything to the script."""

KIND_WIDTH = 72
"""The names of strategies need more room than numbers do."""


class StrategyGroup(QWidget):
    """Kind and settings of the strategy, each setting with what it does in a sentence below it."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self.group = Group(self.tr("Strategy"), editor.set_strategy)
        self.kind = ChoiceField([(kind, strategy_name(kind)) for kind in StrategyKind])
        tip = self.tr("How the trainers keep their parameters in step.")
        self.group.add("kind", self.tr("Kind"), self.kind, tip).name.setFixedWidth(KIND_WIDTH)
        self._sentence = label(role="small", ink="2", wrap=True)
        self.sums = label(role="small", ink="2", wrap=True)
        self._fill()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(self.group)

    def _fill(self) -> None:
        # What the kind is stands right below its choice, before the settings.
        within = self.group.layout()
        assert isinstance(within, QVBoxLayout)
        within.addWidget(self._sentence)
        within.addWidget(self.sums)
        self._add(
            "worker_groups",
            self.tr("Worker groups"),
            WholeField(empty=self.tr("each worker alone"), least=1),
            self.tr("So many blocks of workers train as one each. The chief is in the first."),
        )
        self._add(
            "server_groups",
            self.tr("Server groups"),
            WholeField(1, least=1),
            self.tr("So many blocks of servers, each with all parameters. Only 1 runs; several copies are Hogwild's."),
        )
        self._add(
            "push_every",
            self.tr("Push every"),
            WholeField(1, least=1),
            self.tr("Steps between two pushes of gradients to the servers. More steps send less."),
        )
        self._add(
            "pull_every",
            self.tr("Pull every"),
            WholeField(1, least=1),
            self.tr("Steps between two pulls of parameters from the servers. More steps see older ones."),
        )
        self._add(
            "sync_every",
            self.tr("Sync every"),
            WholeField(8, least=1),
            self.tr("Updates between two exchanges with the neighbours. More updates send less, and drift further."),
        )
        self._add(
            "max_staleness",
            self.tr("Most stale"),
            WholeField(16),
            self.tr("A push from parameters that are more versions old than this is dropped and counted."),
        )
        self._add(
            "backup_workers",
            self.tr("Backup workers"),
            WholeField(0),
            self.tr("A step waits for all but so many trainers; the slowest ones' gradients are dropped."),
        )
        self._add(
            "warm_start_steps",
            self.tr("Warm start"),
            WholeField(0),
            self.tr("Steps that group 0 trains alone before the other groups begin."),
        )
        orders = [(ReductionOrder.RANK, self.tr("by rank")), (ReductionOrder.ARRIVAL, self.tr("as they come"))]
        self._add(
            "reduction_order",
            self.tr("Sum gradients"),
            ChoiceField(orders),
            self.tr("By rank, two runs are equal bit by bit. As they come is faster."),
        )
        ways = [(OnNan.FAIL, self.tr("fail")), (OnNan.SKIP, self.tr("skip the step"))]
        self._add(
            "on_nan",
            self.tr("On NaN or Inf"),
            ChoiceField(ways),
            self.tr("What happens to a step whose gradients are not finite. Skipped steps are counted."),
        )
        self._add(
            "bucket_mb",
            self.tr("Bucket, MiB"),
            WholeField(64, least=1),
            self.tr("Gradients are sent in buckets of this size while others are still computed."),
        )

    def _add(self, key: str, name: str, field: Field, sentence: str) -> None:
        self.group.add(key, name, field, sentence).set_note(sentence)

    def show_topology(self, topology: Topology) -> None:
        """Shows a design's strategy, with the settings that its kind uses."""
        strategy = topology.strategy
        uses = USES.get(strategy.kind, ())
        for key, row in self.group.rows.items():
            row.setVisible(key == "kind" or key in uses)
        self._sentence.setText(strategy_sentence(strategy.kind))
        trainers = sum(pool.replicas for pool in topology.pools if pool.role.trains)
        servers = {role: sum(pool.replicas for pool in topology.pools if pool.role is role) for role in Role}
        sums = exchange_sentence(strategy, trainers, servers[Role.PS], servers[Role.REDUCER])
        self.sums.setText(sums)
        self.sums.setVisible(bool(sums))
        self.group.show_blocks([strategy])
