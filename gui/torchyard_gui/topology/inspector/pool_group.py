"""Groups of the inspector with the settings of the selected replicas' pools, which are changed together."""

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
    """Three groups: the pool itself, the requirements of its replicas, and their arguments and environment."""

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
        add, tr = self.pool.add, self.tr
        tip = tr("How many there are. The arrow keys count up and down.")
        add("replicas", tr("Replicas in pool"), WholeField(least=1), tip)
        tip = tr("How few the run may go on with when hosts are lost. Empty: all of them are needed.")
        add("min_replicas", tr("Least replicas"), WholeField(empty=tr("all of them")), tip)
        tip = tr("GPUs of each replica. A trainer has one process a GPU, else one.")
        add("gpus", tr("GPUs per replica"), WholeField(0), tip)
        placement = ChoiceField(
            [(None, tr("automatic")), (PlacementRule.PACK, tr("pack")), (PlacementRule.SPREAD, tr("spread"))]
        )
        tip = tr("Pack fills host by host, spread goes round them. Automatic packs with GPUs, else spreads.")
        add("placement", tr("Placement"), placement, tip)
        self.hosts = HostsField(tr("any"))
        add("hosts", tr("Hosts"), self.hosts, tr("Hosts that may be used, the preferred first."))
        tip = tr("Its CPUs, memory and GPU model count where none are set below. The palette has CloudML's.")
        add("machine", tr("Machine type"), TextField(tr("any")), tip)
        add("name", tr("Pool's name"), LineField(), tr("What the file calls this pool."))
        roles = ChoiceField([(role, role_name(role)) for role in Role])
        add("role", tr("Role"), roles, tr("What the pool's replicas do."))

    def _fill_needs(self) -> None:
        add, tr = self.needs.add, self.tr
        add("cpus", tr("CPUs"), AmountField(empty=tr("none set aside")), tr("CPUs to set aside for each."))
        tip = tr("Memory to set aside for each, in GB.")
        add("memory_gb", tr("Memory, GB"), AmountField(empty=tr("none set aside")), tip)
        add("gpu_model", tr("GPU model"), TextField(tr("any")), tr("Only GPUs with this in their name, as A100."))
        tip = tr("Only GPUs with at least this much memory.")
        add("gpu_memory_gb", tr("GPU memory, GB"), AmountField(empty=tr("any")), tip)
        labels = PairsField("rack=r1")
        add("labels", tr("Host labels"), labels, tr("Only hosts with these labels, NAME=value, one a line."))

    def _fill_runs_with(self) -> None:
        add, tr = self.runs_with.add, self.tr
        args = WordsField(tr("none"))
        add("args", tr("Arguments"), args, tr("Arguments of these replicas, after the program's."))
        env = PairsField(tr("NAME=value"))
        add("env", tr("Environment"), env, tr("Variables of these replicas, over the program's; one a line."))

    def show_pools(self, pools: Sequence[Pool], hosts: Sequence[str]) -> None:
        self.hosts.set_offered(hosts)
        self.pool.rows["name"].setVisible(len(pools) == 1)
        for group in self.groups:
            group.show_blocks(pools)

    def _change(self, key: str, value: object, label: str) -> str:
        return self._editor.set_pools(self._editor.selected_pools(), key, value, label)
