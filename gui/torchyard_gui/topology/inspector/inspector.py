"""The inspector. It shows the settings of the selected replicas and their pools or, without a selection, of the whole
topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QScrollArea, QStackedWidget, QWidget

from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.problems import Problem
from torchyard_core.topology.model import Pool, Role
from torchyard_core.topology.strategies.link_load import ExchangeFacts
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.theme.theme import theme
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.field_group import Group, stack
from torchyard_gui.topology.inspector.fields import LineField
from torchyard_gui.topology.inspector.placement_group import PlaceGroup
from torchyard_gui.topology.inspector.pool_group import PoolGroup
from torchyard_gui.topology.inspector.program_group import ProgramGroup
from torchyard_gui.topology.inspector.strategy_group import StrategyGroup
from torchyard_gui.topology.labels import named, role_name
from torchyard_gui.topology.problem_locations import keys_of_block, pool_of, whole_block_key
from torchyard_gui.widgets.containers import scroll_area
from torchyard_gui.widgets.indicators import RoleBadge
from torchyard_gui.widgets.layouts import FLUSH, hbox, settle_layouts, vbox
from torchyard_gui.widgets.text_labels import ElidedLabel


class Inspector(QFrame):
    """A panel that shows either the fields of the topology or the fields of the selection."""

    wanted = Signal()
    """Emitted before `focus` moves the focus to a field, so that the receiver can show the inspector."""

    def __init__(self, editor: Editor, planning: PlanningTime, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", "right")
        self.setAccessibleName(self.tr("Inspector"))
        self._editor = editor
        self._planning = planning
        self._plan: Plan | None = None
        self.exchange = ExchangeFacts()
        """The known facts about the gradient exchange; set by the page before `show_plan`."""
        self.badge = RoleBadge("worker", 20)
        self.title = ElidedLabel(role="title")
        self.subtitle = ElidedLabel(role="small", ink="2")
        self.topology = Group("", lambda key, value, label: editor.set_name(value))
        self.topology.add("name", self.tr("Name"), LineField(), self.tr("The run's name."))
        self.strategy = StrategyGroup(editor)
        self.program = ProgramGroup(editor)
        self._panels = QStackedWidget()
        self._panels.addWidget(_scrolled(self.tr("Fields of the topology"), self.topology, self.strategy, self.program))
        words = vbox(self.title, self.subtitle, spacing=0)
        head = hbox(margins=(16, 12, 16, 8), spacing=10)
        head.addWidget(self.badge, 0, Qt.AlignmentFlag.AlignTop)
        head.addLayout(words, 1)
        vbox(head, (self._panels, 1), parent=self, margins=FLUSH, spacing=0)
        self.setFixedWidth(theme().metrics.inspector)

    @cached_property
    def _of_selection(self) -> tuple[PlaceGroup, PoolGroup]:
        """The fields for a selection.

        They are created when replicas are first selected, or earlier by `make_rest`, so that the window opens faster.
        """
        place, pools = PlaceGroup(self._editor, self._planning), PoolGroup(self._editor)
        self._panels.addWidget(_scrolled(self.tr("Fields of the selection"), place, pools))
        return place, pools

    @property
    def place(self) -> PlaceGroup:
        return self._of_selection[0]

    @property
    def pools(self) -> PoolGroup:
        return self._of_selection[1]

    def make_rest(self) -> None:
        """Creates the fields for a selection in advance."""
        _ = self._of_selection

    def show_plan(self, plan: Plan) -> None:
        """Shows the current topology and its plan."""
        self._plan = plan
        self.setEnabled(self._editor.holds_topology)
        chosen = self._editor.selection
        if chosen:
            self._show_replicas(chosen, plan)
        else:
            self._show_topology()
        settle_layouts()

    def show_problems(self, problems: Sequence[Problem]) -> None:
        if self._editor.selection:
            names = [self._editor.value.pools[position].name for position in self._editor.selected_pools()]
            of_pools = keys_of_block([problem for problem in problems if pool_of(problem, names)], "pools", names)
            for group in self.pools.groups:
                group.show_problems(of_pools)
        self.strategy.group.show_problems(keys_of_block(problems, "strategy"))
        self.topology.show_problems({problem.path: problem.message for problem in problems if problem.path == "name"})
        program = keys_of_block(problems, "program")
        if "" in program:
            program[whole_block_key(self._editor.value, "program")] = program[""]
        for group in self.program.groups:
            group.show_problems(program)
        if len(self._editor.selection) == 1:
            pin = f"pins.{self._editor.selection[0]}"
            self.place.row.set_problem(next((p.message for p in problems if p.path == pin), ""))
        settle_layouts()

    def focus(self, block: str, key: str) -> bool:
        """Moves the focus to the field for a key of `pools`, `pins`, `strategy`, `program` or the top level (`""`).

        Returns whether there is a visible field for the key.
        """
        if block == "pins":
            if not self._editor.selection or self.place.row.isHidden():
                return False
            return self._focus(self.place.pin)
        if block == "pools":
            groups = self.pools.groups
        else:
            of_topology = {"strategy": (self.strategy.group,), "program": self.program.groups}
            groups = of_topology.get(block, (self.topology,))
        for group in groups:
            if group.shows(key):
                return self._focus(group.field(key))
        return False

    def focus_first(self) -> None:
        if self._editor.selection:
            self.focus("pools", "replicas")
        else:
            self.focus("", "name")

    def _focus(self, field: QWidget) -> bool:
        self.wanted.emit()
        field.setFocus(Qt.FocusReason.OtherFocusReason)
        area = self._panels.currentWidget()
        if isinstance(area, QScrollArea):
            area.ensureWidgetVisible(field, 0, 2 * field.height())
        return True

    def _show_topology(self) -> None:
        self._panels.setCurrentIndex(0)
        value = self._editor.value
        count = sum(pool.replicas for pool in value.pools)
        self.badge.hide()
        self.title.setText(self.tr("Topology"))
        if count == 1:
            text = self.tr("1 replica")
        elif len(value.pools) == 1:
            text = self.tr("{replicas} replicas in 1 pool").format(replicas=count)
        else:
            text = self.tr("{replicas} replicas in {pools} pools").format(replicas=count, pools=len(value.pools))
        self.subtitle.setText(text)
        self.topology.show_blocks([value])
        self.strategy.show_topology(value, self.exchange)
        self.program.show_program(value.program)

    def _show_replicas(self, chosen: Sequence[str], plan: Plan) -> None:
        place, fields = self._of_selection
        self._panels.setCurrentIndex(1)
        pools = [self._editor.value.pools[position] for position in self._editor.selected_pools()]
        roles = {pool.role for pool in pools}
        self.badge.setVisible(len(roles) == 1)
        if len(roles) == 1:
            self.badge.set_role(next(iter(roles)).value)
        self.title.setText(self._title(chosen, roles))
        self.subtitle.setText(self._subtitle(pools, chosen, plan))
        fields.show_pools(pools, list(self._editor.host_names()))
        place.show_selection(plan)

    def _title(self, chosen: Sequence[str], roles: set[Role]) -> str:
        if len(chosen) > 1:
            return self.tr("{replicas} selected").format(replicas=named(chosen))
        role = next(iter(roles))
        return f"{role_name(role)} {chosen[0].rpartition('-')[2]}"

    def _subtitle(self, pools: Sequence[Pool], chosen: Sequence[str], plan: Plan) -> str:
        if len(pools) > 1:
            return self.tr("{count} pools").format(count=len(pools))
        wanted = set(chosen)
        hosts = list(dict.fromkeys(p.host for p in plan.replicas if p.name in wanted and p.host is not None))
        parts = [self.tr("pool “{pool}”").format(pool=pools[0].name)]
        if hosts:
            parts.append(", ".join(hosts) if len(hosts) <= 2 else self.tr("{count} hosts").format(count=len(hosts)))
        return " · ".join(parts)


def _scrolled(name: str, *groups: QWidget) -> QScrollArea:
    inside = QWidget()
    layout = vbox(parent=inside, margins=(16, 4, 10, 16), spacing=14)
    stack(groups, layout)
    layout.addStretch()
    return scroll_area(inside, name)
