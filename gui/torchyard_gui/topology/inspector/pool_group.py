"""Inspector groups for the settings of the selected replicas' pools, which are changed together."""

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
    """Three groups of fields: the pool itself, the requirements of its replicas, and their arguments and
    environment.
    """

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self._editor = editor
        self.pool = Group("", self._change)
        self.needs = Group(self.tr("Needs"), self._change)
        self.runs_with = Group(self.tr("Program"), self._change)
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
        tip = tr("Number of replicas. The arrow keys change it.")
        add("replicas", tr("Replicas in pool"), WholeField(least=1), tip)
        tip = tr("Minimum number with which the run continues when hosts are lost. If empty, all are needed.")
        add("min_replicas", tr("Minimum replicas"), WholeField(empty=tr("all")), tip)
        tip = tr("GPUs of each replica. A trainer runs one process per GPU, or one without GPUs.")
        add("gpus", tr("GPUs per replica"), WholeField(0), tip)
        placement = ChoiceField(
            [(None, tr("automatic")), (PlacementRule.PACK, tr("pack")), (PlacementRule.SPREAD, tr("spread"))]
        )
        tip = tr("Pack fills host after host; spread distributes evenly. Automatic packs where GPUs are used.")
        add("placement", tr("Placement"), placement, tip)
        self.hosts = HostsField(tr("any"))
        add("hosts", tr("Hosts"), self.hosts, tr("Allowed hosts, the preferred ones first."))
        tip = tr("Provides CPUs, memory and GPU model where they are not set below. The palette lists CloudML's.")
        add("machine", tr("Machine type"), TextField(tr("any")), tip)
        add("name", tr("Pool name"), LineField(), tr("Name of the pool in the file."))
        roles = ChoiceField([(role, role_name(role)) for role in Role])
        add("role", tr("Role"), roles, tr("Role of the pool's replicas."))

    def _fill_needs(self) -> None:
        add, tr = self.needs.add, self.tr
        add("cpus", tr("CPUs"), AmountField(empty=tr("not reserved")), tr("CPUs to reserve for each replica."))
        tip = tr("Memory to reserve for each replica, in GB.")
        add("memory_gb", tr("Memory (GB)"), AmountField(empty=tr("not reserved")), tip)
        add(
            "gpu_model",
            tr("GPU model"),
            TextField(tr("any")),
            tr("Only GPUs with this text in their name, such as A100."),
        )
        tip = tr("Only GPUs with at least this much memory.")
        add("gpu_memory_gb", tr("GPU memory (GB)"), AmountField(empty=tr("any")), tip)
        labels = PairsField("rack=r1")
        add("labels", tr("Host labels"), labels, tr("Only hosts with these labels: NAME=value, one per line."))

    def _fill_runs_with(self) -> None:
        add, tr = self.runs_with.add, self.tr
        args = WordsField(tr("none"))
        add("args", tr("Arguments"), args, tr("Arguments of these replicas, after the program's."))
        env = PairsField(tr("NAME=value"))
        add(
            "env",
            tr("Environment"),
            env,
            tr("Variables of these replicas, in addition to the program's; one per line."),
        )

    def show_pools(self, pools: Sequence[Pool], hosts: Sequence[str]) -> None:
        self.hosts.set_offered(hosts)
        self.pool.rows["name"].setVisible(len(pools) == 1)
        for group in self.groups:
            group.show_blocks(pools)

    def _change(self, key: str, value: object, label: str) -> str:
        return self._editor.set_pools(self._editor.selected_pools(), key, value, label)
