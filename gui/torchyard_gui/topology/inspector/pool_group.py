"""Settings of the selected replicas' pools in the inspector, changed in all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QWidget

from torchyard_core.topology.model import PlacementRule, Pool, Role
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.field_group import Group, stack
from torchyard_gui.topology.inspector.fields import (
    AmountField,
    ChoiceField,
    HostsField,
    LineField,
    PairsField,
    TextField,
    WholeField,
    WordsField,
)
from torchyard_gui.topology.labels import role_name
from torchyard_gui.widgets.layouts import FLUSH, vbox


class PoolGroup(QWidget):
    """Three groups: the pool, requirements of its replicas, and their arguments and environment."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self._editor = editor
        self.pool = Group("", self._change)
        self.needs = Group(self.tr("Needs"), self._change)
        self.runs_with = Group(self.tr("Runs with"), self._change)
        self._fill_pool()
        self._fill_needs()
        self._fill_runs_with()
        layout = vbox(parent=self, margins=FLUSH, spacing=12)
        stack(self.groups, layout)

    @property
    def groups(self) -> tuple[Group, ...]:
        return (self.pool, self.needs, self.runs_with)

    def _fill_pool(self) -> None:
        add = self.pool.add
        add(
            "replicas",
            self.tr("Replicas in pool"),
            WholeField(least=1),
            self.tr("How many there are. The arrow keys count up and down."),
        )
        add(
            "min_replicas",
            self.tr("Least replicas"),
            WholeField(empty=self.tr("all of them")),
            self.tr("How few the run may go on with when hosts are lost. Empty: all of them are needed."),
        )
        add(
            "gpus",
            self.tr("GPUs per replica"),
            WholeField(0),
            self.tr("GPUs of each replica. A trainer has one process a GPU, else one."),
        )
        placement = ChoiceField(
            [
                (None, self.tr("automatic")),
                (PlacementRule.PACK, self.tr("pack")),
                (PlacementRule.SPREAD, self.tr("spread")),
            ]
        )
        add(
            "placement",
            self.tr("Placement"),
            placement,
            self.tr("Pack fills host by host, spread goes round them. Automatic packs with GPUs, else spreads."),
        )
        self.hosts = HostsField(self.tr("any"))
        add("hosts", self.tr("Hosts"), self.hosts, self.tr("Hosts that may be used, the preferred first."))
        add(
            "machine",
            self.tr("Machine type"),
            TextField(self.tr("any")),
            self.tr("Its CPUs, memory and GPU model count where none are set below. The palette has CloudML's."),
        )
        add("name", self.tr("Pool's name"), LineField(), self.tr("What the file calls this pool."))
        roles = ChoiceField([(role, role_name(role)) for role in Role])
        add("role", self.tr("Role"), roles, self.tr("What the pool's replicas do."))

    def _fill_needs(self) -> None:
        add = self.needs.add
        add(
            "cpus",
            self.tr("CPUs"),
            AmountField(empty=self.tr("none set aside")),
            self.tr("CPUs to set aside for each."),
        )
        add(
            "memory_gb",
            self.tr("Memory, GB"),
            AmountField(empty=self.tr("none set aside")),
            self.tr("Memory to set aside for each, in GB."),
        )
        add(
            "gpu_model",
            self.tr("GPU model"),
            TextField(self.tr("any")),
            self.tr("Only GPUs with this in their name, as A100."),
        )
        add(
            "gpu_memory_gb",
            self.tr("GPU memory, GB"),
            AmountField(empty=self.tr("any")),
            self.tr("Only GPUs with at least this much memory."),
        )
        labels = PairsField("rack=r1")
        add("labels", self.tr("Host labels"), labels, self.tr("Only hosts with these labels, NAME=value, one a line."))

    def _fill_runs_with(self) -> None:
        add = self.runs_with.add
        args = WordsField(self.tr("none"))
        add("args", self.tr("Arguments"), args, self.tr("Arguments of these replicas, after the program's."))
        env = PairsField(self.tr("NAME=value"))
        add("env", self.tr("Environment"), env, self.tr("Variables of these replicas, over the program's; one a line."))

    def show_pools(self, pools: Sequence[Pool], hosts: Sequence[str]) -> None:
        """Shows the common values of pools."""
        self.hosts.set_offered(hosts)
        self.pool.rows["name"].setVisible(len(pools) == 1)
        for group in self.groups:
            group.show_blocks(pools)

    def _change(self, key: str, value: object, label: str) -> str:
        return self._editor.set_pools(self._editor.selected_pools(), key, value, label)
