"""The Topology page: palette, canvas, inspector, problems and YAML of one topology."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QAction, QHideEvent, QShowEvent
from PySide6.QtWidgets import QMenu, QWidget

from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.problems import Problem
from torchyard_core.topology.document.regrouping import next_group
from torchyard_core.topology.document.topology_document import DocumentState, TopologyDocument, topology_in
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import Role
from torchyard_core.topology.placement.pin_syntax import pin_text
from torchyard_core.topology.strategies.link_load import ExchangeFacts
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.topology.booked_gpus import planned_gpu_states
from torchyard_gui.topology.edit_actions import EditActions
from torchyard_gui.topology.editor import Editor, HostsSource
from torchyard_gui.topology.files.autosave import Autosave, offer_recovery, restore_session
from torchyard_gui.topology.files.file_actions import FileActions, RecentFiles
from torchyard_gui.topology.files.import_export import ImportExport
from torchyard_gui.topology.inspector.inspector import Inspector
from torchyard_gui.topology.notice_queue import NoticeButton, NoticeQueue
from torchyard_gui.topology.palette import Palette
from torchyard_gui.topology.planned_time_control import name_launch
from torchyard_gui.topology.preset_choice import choose_preset
from torchyard_gui.topology.problem_locations import in_window
from torchyard_gui.topology.problems_dock import ProblemNavigation, ProblemsDock
from torchyard_gui.topology.side_drawers import InspectorSide, PaletteSide
from torchyard_gui.topology.top_bar import TopBar
from torchyard_gui.topology.validation import Validation
from torchyard_gui.topology.yaml_pane import YamlPane
from torchyard_gui.widgets.layouts import FLUSH, hbox, splitter, vbox
from torchyard_gui.widgets.notice_bar import NoticeBar
from torchyard_gui.widgets.page_actions import action
from torchyard_gui.widgets.toast import Toast

if TYPE_CHECKING:
    from torchyard_core.topology.file import TopologyFile
    from torchyard_core.topology.model import Topology
    from torchyard_gui.topology.advice.drawer import AdviceDrawer, Advisor
    from torchyard_gui.topology.find_bar import FindBar

YAML_WIDTH = 420
SHOWN_PROBLEMS = 4
"""Maximum number of an invalid file's problems that the canvas shows."""


class PageSettings(RecentFiles, Protocol):
    """Settings of the Topology page that the next window restores."""

    canvas_by_group: bool
    """Whether replicas are shown by group instead of by host."""
    minimap: str
    """`shown` or `hidden`; "" shows the minimap only for a large topology that is partly outside the view."""


class TopologyPage(QWidget):
    """The Topology page. The window places `bar`, the top bar, above the page."""

    launch_requested = Signal(object)
    """Emitted with the TopologyFile to launch."""
    sweep_requested = Signal()
    """Emitted when the user wants to start a sweep of the topology."""
    title_changed = Signal(str)
    status_changed = Signal()

    def __init__(
        self,
        hosts: HostsSource,
        settings: PageSettings,
        *,
        document: TopologyDocument | None = None,
        recovery_folder: Path | None = None,
        planning: PlanningTime | None = None,
        place: PlanningPlace | None = None,
        parent: QWidget | None = None,
    ) -> None:
        """Creates the page.

        Args:
            recovery_folder: Folder for recovery snapshots. If it is None, no snapshots are written.
            planning: The planned time with its bookings. By default, the current time without bookings.
            place: The place for which the page plans. By default, the hosts of the fleet file, without clusters.
        """
        super().__init__(parent)
        self.title = self.tr("Topology")
        self.icon_name = "topology"
        self.document = document if document is not None else TopologyDocument()
        self.place = place if place is not None else PlanningPlace(parent=self)
        self.editor = Editor(self.document, hosts, self.place, self)
        self._hosts = hosts
        self._settings = settings
        self.planning = planning if planning is not None else PlanningTime(parent=self)
        self.exchange_facts: Callable[[str, Collection[str]], ExchangeFacts] = lambda name, hosts: ExchangeFacts()
        """Returns the known facts about the gradient exchange, by the topology's name and hosts; set by the window."""
        self.advisor: Advisor | None = None
        """Computes advice and measures scripts; set by the window."""
        self._may_close = False
        self._planned_for: tuple[object, object] = (None, None)
        """The cluster for which the page plans, and the cluster's description."""
        self._is_refused = False
        """Whether a notice says that errors prevent the launch."""
        self._keeps_racks = False
        """Whether racks keep their places in the next update; False after opening, tidying or a change of place."""
        self._racks: WeakKeyDictionary[DocumentState, Sequence[str]] = WeakKeyDictionary()
        """The hosts that had a rack in each state of the document. Undo and redo show these racks again."""
        self._plan: Plan = plan(self.document.value, ())

        self.scene = TopologyScene(self)
        self.view = CanvasView(self.scene)
        self.palette_ = Palette()
        self.side = PaletteSide(self.palette_, self)
        self.inspector = Inspector(self.editor, self.planning)
        self.fields = InspectorSide(self.inspector, self)
        self.problems = ProblemsDock()
        self.yaml = YamlPane(self.editor)
        self.checks = Validation(self.editor, self.scene, self.problems, self.inspector, self.yaml, self)
        self.notice_bar = NoticeBar()
        self.notices = NoticeQueue(self.notice_bar)
        self._lay_out()
        self._toast = Toast(self.view)

        self.files = FileActions(self.editor, settings, self.notices, self)
        self.foreign = ImportExport(self.editor, self.files, self.notices, self.problems, self.say, self)
        self.edits = EditActions(self.editor, self.say, self.side.open, self.choose_preset, self)
        self.autosave = Autosave(self.document, recovery_folder, self)
        self._make_actions()
        self.bar = TopBar(
            *(self.edits.undo, self.edits.redo, self.show_advice, self.show_yaml, self.launch_action),
            *(self.planning, self.place),
        )
        self._jumps = ProblemNavigation(
            self.editor, self.scene, self.view, self.inspector, self._show_in_palette, self._show_line
        )
        self.setFocusProxy(self.view)
        self._join()
        self.by_group.setChecked(settings.canvas_by_group)
        self.view.minimap.set_wanted({"shown": True, "hidden": False}.get(settings.minimap))
        self._follow_file()
        self._refresh()
        offer_recovery(self.autosave, self.files, self.notices, self.editor)

    def page_actions(self) -> list[QAction]:
        of_files = [*self.files.actions(), *self.foreign.actions()]
        return [*of_files, *self.edits.actions(), *self._view_actions, *self._run_actions]

    def more_actions(self) -> list[QAction]:
        return self.edits.add_presets

    def status_texts(self) -> list[str]:
        hosts = len(self._plan.hosts)
        count = sum(one.host is not None for one in self._plan.replicas)
        unplaced = len(self._plan.replicas) - count
        texts = [self.tr("{count} not placed").format(count=unplaced)] if unplaced else []
        if not count:
            return texts
        replicas = self.tr("1 replica") if count == 1 else self.tr("{count} replicas").format(count=count)
        on = self.tr("1 host") if hosts == 1 else self.tr("{count} hosts").format(count=hosts)
        cluster = self.editor.cluster
        if cluster is not None and self.place.status(cluster).description is None:
            on = cluster.name
        elif cluster is not None:
            on = self.tr("1 node of {cluster}") if hosts == 1 else self.tr("{count} nodes of {cluster}")
            on = on.format(count=hosts, cluster=cluster.name)
        return [self.tr("{replicas} on {hosts}").format(replicas=replicas, hosts=on), *texts]

    def panes(self) -> list[QWidget]:
        return [self.bar, self.side.pane, self.view, self.yaml, self.problems, self.fields.pane]

    def make_rest(self) -> None:
        """Creates the inspector's fields for selected replicas, which are not visible at first."""
        self.inspector.make_rest()

    def can_close(self) -> bool:
        """Returns whether the window may close now.

        If there are unsaved changes, returns False and asks the user. Once the user has saved or discarded the changes,
        the page closes the window.
        """
        self.editor.settle()
        if self._may_close or not self.document.is_modified:
            self.autosave.finish()
            return True
        self.files.guard(self._close_window)
        return False

    def open(self, path: Path | str) -> None:
        """Opens a file. The user is asked first if there are unsaved changes."""
        self.files.open(Path(path))

    open_file = open

    def restore(self, path: Path | None) -> None:
        """Opens the file of the last window, if any, and applies its unsaved changes."""
        restore_session(path, self.autosave, self.files, self.notices, self.editor)

    def save(self) -> None:
        """Saves the document. If it has no file, the user is asked for one."""
        self.files.save()

    def edit_copy(self, text: str) -> None:
        """Opens a topology, such as the topology of a run, as a document without a file.

        The user is asked first if there are unsaved changes.
        """
        self.files.guard(lambda: self._edit_copy(text))

    def say(self, sentence: str) -> None:
        """Shows a short message, such as the reason why an edit was refused."""
        self._toast.say(sentence, urgent=True)

    @property
    def current_plan(self) -> Plan:
        return self._plan

    @cached_property
    def finder(self) -> FindBar:
        """The find bar. It is created on first use."""
        from torchyard_gui.topology.find_bar import FindBar

        made = FindBar(self.editor, self.scene, self.view)
        made.show_plan(self._plan)
        return made

    @cached_property
    def advice(self) -> AdviceDrawer:
        """The Advice drawer. It is created on first use."""
        from torchyard_gui.topology.advice.drawer import AdviceDrawer

        assert self.advisor is not None
        made = AdviceDrawer(self.advisor, self.as_file, self.editor.facts)
        made.hide()
        made.apply_wanted.connect(self._apply_advice)
        made.closed.connect(lambda: self.show_advice.setChecked(False))
        self.editor.changed.connect(made.topology_changed)
        self.split.addWidget(made)
        self.split.setCollapsible(self.split.count() - 1, False)
        return made

    def profile(self) -> None:
        """Opens the Advice drawer and measures the script."""
        self.show_advice.setChecked(True)
        self.advice.measure()

    def as_file(self) -> TopologyFile:
        """Returns the open topology as if it had been read from its file."""
        text = self.document.text.removeprefix("\ufeff")
        return topology_from_text(text, str(self.document.path or ""), self.document.folder)

    def _show_advice(self, shown: bool) -> None:
        self.advice.setVisible(shown)
        (self.advice if shown else self.view).setFocus()

    def _apply_advice(self, topology: Topology, title: str) -> None:
        self._do(self.editor.apply(title, lambda _: topology))

    def _lay_out(self) -> None:
        sizes = [YAML_WIDTH * 2, YAML_WIDTH]
        self.split = splitter(Qt.Orientation.Horizontal, self.view, self.yaml, grows=0, sizes=sizes)
        self.split.setObjectName("topology-canvas-yaml")
        self.yaml.hide()
        middle = vbox(self.notice_bar, (self.split, 1), self.problems, spacing=0)
        hbox(self.palette_, (middle, 1), self.inspector, parent=self, margins=FLUSH, spacing=0)

    def _make_actions(self) -> None:
        view = partial(action, self, "view")
        self.show_yaml = view(self.tr("YAML"), lambda: None, "Ctrl+E", "code", self.tr("Show and edit the file's text"))
        self.show_yaml.setCheckable(True)
        self.show_yaml.toggled.connect(self._show_yaml)
        self.show_yaml.triggered.connect(lambda shown: (self.yaml.view if shown else self.view).setFocus())
        tip = self.tr("Predict how fast the script trains on other topologies, and apply one")
        self.show_advice = view(self.tr("Advice"), lambda: None, "Ctrl+Shift+V", "chart", tip)
        self.show_advice.setCheckable(True)
        self.show_advice.toggled.connect(self._show_advice)
        tip = self.tr("Show replicas in their worker and server groups, instead of on their hosts")
        self.by_group = view(self.tr("By group"), lambda: None, "Ctrl+G", "", tip)
        self.by_group.setCheckable(True)
        self.by_group.toggled.connect(self._show_by_group)
        tip = self.tr(
            "Show or hide the minimap. It is shown automatically while part of a large topology is outside the view"
        )
        self.minimap = view(self.tr("Minimap"), self._toggle_minimap, "Ctrl+Shift+M", "", tip)
        tip = self.tr("Exchange the selected replicas with members of the next group")
        move = self.tr("Move to the next group")
        self.next_group = action(self, "edit", move, self._to_next_group, "Ctrl+Shift+G", "", tip)
        fields = self.tr("Go to the fields of the selection; closes them again in a narrow window")
        tidies = self.tr("Remove empty racks from the canvas and arrange the others")
        checks = self.tr("Log in to all hosts and read their hardware and state. Changes nothing on them")
        self._view_actions = [
            view(self.tr("Zoom in"), self.view.zoom_in, "Ctrl++", "zoom-in"),
            view(self.tr("Zoom out"), self.view.zoom_out, "Ctrl+-", "zoom-out"),
            view(self.tr("Full size"), self.view.reset, "Ctrl+0"),
            view(self.tr("Fit everything"), self.view.fit, "Ctrl+Shift+0", "fit"),
            self.by_group,
            self.next_group,
            self.minimap,
            view(self.tr("Tidy"), self.tidy, "Ctrl+Shift+T", "", tidies),
            self.show_yaml,
            self.show_advice,
            view(self.tr("Problems"), self.problems.toggle, "Ctrl+J", "warning", self.tr("Show or hide problems")),
            view(self.tr("Next problem"), self.problems.next_problem, "F8"),
            view(self.tr("Check all hosts"), self._check, "F5", "refresh", checks),
            view(self.tr("Fields of the selection"), self.fields.toggle, "Ctrl+I", "edit", fields),
        ]
        found = self.tr("Select replicas by part of their name, pool or host; is:pinned and is:invalid")
        self._view_actions.append(
            action(self, "edit", self.tr("Find replicas"), lambda: self.finder.open(), "Ctrl+F", "search", found)
        )
        tip = self.tr("Set the time for which free GPUs are counted")
        self.when_action = action(self, "run", self.tr("When …"), lambda: self.bar.when.open(), "Ctrl+T", "clock", tip)
        tip = self.tr("Choose the hosts of the fleet, or a Slurm cluster, for runs")
        self.where_action = action(
            self, "run", self.tr("Where …"), lambda: self.bar.where.open(), "Ctrl+Shift+L", "fleet", tip
        )
        self.where_action.setVisible(bool(self.place.clusters))
        self.launch_action = action(self, "run", self.tr("Launch …"), self.launch, "Ctrl+Enter", "play")
        tip = self.tr("Search the best hyperparameters: run the topology many times with other arguments")
        sweep = self.tr("New sweep …")
        self.sweep_action = action(self, "run", sweep, self.sweep_requested.emit, "Ctrl+Shift+Enter", "sweeps", tip)
        self._run_actions = [self.when_action, self.where_action, self.launch_action, self.sweep_action]
        self._name_launch()
        self.addActions(self.page_actions())

    def _join(self) -> None:
        self.editor.changed.connect(self._refresh)
        self.editor.selection_changed.connect(self._show_selection)
        self._hosts.facts_changed.connect(self._refresh)
        self.planning.changed.connect(self._planning_changed)
        self.place.changed.connect(self._place_changed)
        self.document.path_changed.connect(self._follow_file)
        self.files.opened.connect(self.view.fit)
        self.files.opened.connect(self.yaml.forget)
        self.files.saved.connect(self.tidy)
        self.yaml.left.connect(self.view.setFocus)
        self.scene.selection_changed.connect(self.editor.select)
        self.view.fits = self.editor.why_not
        self.view.group_fits = self.editor.why_not_regroup
        self.view.group_effect = self.editor.regroup_effect
        self.view.regroup_requested.connect(self._regroup)
        self.view.role_fits = lambda role, target: self.editor.why_not_new(Role(role), target)
        self.view.pin_requested.connect(lambda names, target: self._do(self.editor.pin(names, target)))
        self.view.role_dropped.connect(lambda role, target: self._do(self.editor.add(Role(role), 1, target)))
        self.view.host_dropped.connect(lambda host: self._do(self.editor.show_host(host)))
        self.view.preset_dropped.connect(self.palette_.preset_chosen)
        self.view.machine_effect = self.editor.machine_effect
        self.view.machine_dropped.connect(lambda name, on: self._do(self.editor.set_machine(name, on)))
        self.view.delete_requested.connect(lambda names: self._do(self.editor.remove(names)))
        self.view.context_requested.connect(self._context)
        self.view.activated.connect(lambda _: self.inspector.focus("pools", "replicas"))
        self.palette_.role_chosen.connect(lambda role, count: self._do(self.editor.add(Role(role), count)))
        self.palette_.host_chosen.connect(self._host_chosen)
        self.palette_.preset_chosen.connect(self.choose_preset)
        self.palette_.machine_chosen.connect(lambda name: self._do(self.editor.set_machine(name)))
        self.problems.jump.connect(self.jump_to)
        self.checks.validated.connect(self._clear_refusal)
        set_kind = partial(self.editor.set_strategy, "kind", label=self.tr("strategy"))
        self.bar.strategy_chosen.connect(lambda kind: self._do(set_kind(kind.value)))
        self.bar.arrangement.changed.connect(lambda key: self.by_group.setChecked(key == "group"))
        self.autosave.failed.connect(self.say)

    def _refresh(self) -> None:
        """Shows the current topology and schedules its validation."""
        states = self._hosts.states()
        value = self.document.value
        cluster = self.editor.cluster
        planned, hosts = self.editor.plan_input()
        self._plan = plan(planned, hosts)
        if cluster is not None:
            self._plan, hosts = self.place.numbered(self._plan, cluster, hosts)
            states = {host.name: HostState.READY if host.checked else HostState.UNKNOWN for host in hosts}
        keep, state = self._keeps_racks, self.document.state
        # Undo and redo show the racks that belong to the restored state. Any other edit keeps the racks and adds new
        # ones.
        racks = self._racks.get(state, self.scene.hosts) if keep else ()
        exchange = self.exchange_facts(value.name, self._plan.hosts)
        self.inspector.exchange = self.scene.exchange = exchange
        self.scene.show_plan(self._plan, hosts, {*racks, *self.editor.shown_hosts()}, keep=keep)
        self._racks[state] = tuple(self.scene.hosts)
        self._keeps_racks = True
        self.scene.show_hosts(planned_gpu_states(self._plan, hosts, states, self.planning))
        self.scene.set_selection(self.editor.selection)
        self.palette_.show_plan(self._plan, hosts if cluster is None else (), states)
        self.inspector.show_plan(self._plan)
        if "finder" in self.__dict__:
            self.finder.show_plan(self._plan)
        self.bar.show_plan(value, self._plan, hosts)
        self.bar.show_document(self.document)
        self.launch_action.setEnabled(bool(value.pools))
        self._name_launch()
        self._show_whether_editable()
        self._say_title()
        self.checks.soon()
        self.status_changed.emit()
        if cluster is not None:
            self.place.want(cluster)

    def tidy(self) -> None:
        """Removes racks that the topology does not use and that the user has not added. Arranges all other racks in
        fleet order.
        """
        self._keeps_racks = False
        self._racks.clear()
        self._refresh()

    def _name_launch(self) -> None:
        """Updates the text of the launch action. The tool tip describes the action, or says why it is disabled."""
        if self.launch_action.isEnabled():
            reason = ""
        elif self.editor.holds_topology:
            reason = self.tr("Add a replica first: drag a role from the palette, or press A")
        else:
            reason = self.tr("Correct the text of the file first")
        name_launch(self.launch_action, self.planning, self.editor.cluster, reason)

    def _check(self) -> None:
        """Checks all hosts, and the cluster for which the page plans, if any."""
        self._hosts.check()
        if (cluster := self.editor.cluster) is not None:
            self.place.check(cluster)

    def _place_changed(self) -> None:
        """Updates the page after a change of the place, or of the known facts about its cluster."""
        self.where_action.setVisible(bool(self.place.clusters))
        cluster = self.editor.cluster
        description = self.place.status(cluster).description if cluster is not None else None
        if (cluster, description) != self._planned_for:
            self._planned_for = cluster, description
            self._keeps_racks = False  # All racks are treated as new, so that no replica counts as moved.
            self._racks.clear()
        self._refresh()
        error = self.place.status(cluster).check_error if cluster is not None else None
        if cluster is None or error is None:
            self.notices.clear("place")
        else:
            again = NoticeButton(self.tr("Try again"), lambda: self.place.check(cluster))
            self.notices.show_error("place", error, again)

    def _planning_changed(self) -> None:
        """Updates the page after a change of the planned time or of the bookings during that time."""
        self._refresh()

    def _show_selection(self) -> None:
        self.scene.set_selection(self.editor.selection)
        self.inspector.show_plan(self._plan)
        self.inspector.show_problems(self.problems.problems)
        self.yaml.point_at_selection()

    def _show_yaml(self, shown: bool) -> None:
        self.yaml.setVisible(shown)
        if shown:
            self.yaml.show_text(self.problems.problems)

    def _follow_file(self) -> None:
        self._keeps_racks = False
        self._racks.clear()
        self._say_title()
        self.bar.show_document(self.document)
        if not self.editor.holds_topology:
            self.show_yaml.setChecked(True)
            self.problems.set_open(True)

    def _show_whether_editable(self) -> None:
        editable = self.editor.holds_topology
        self.palette_.setEnabled(editable)
        self.view.set_editable(editable)
        if editable:
            self.view.set_empty_text(
                self.tr("Nothing drawn yet"),
                self.tr("Drag a role from the left onto this canvas, or press A and type what to add."),
            )
            return
        # Only the first problem of each line is shown, because a misspelt key is also reported as missing.
        found = list({one.line: one for one in reversed(in_window(self.document.problems))}.values())[::-1]
        lines = [
            self.tr("Line {line}: {problem}").format(line=one.line, problem=one.message) if one.line else one.message
            for one in found[:SHOWN_PROBLEMS]
        ]
        if len(found) > SHOWN_PROBLEMS:
            lines.append(self.tr("{count} more below.").format(count=len(found) - SHOWN_PROBLEMS))
        lines.append(self.tr("Correct the text on the right."))
        title = self.tr("1 line of {file} has an error")
        if len(found) > 1:
            title = self.tr("{count} lines of {file} have errors")
        self.view.set_empty_text(title.format(count=len(found), file=self.document.name), "\n".join(lines))

    def _say_title(self) -> None:
        mark = "*" if self.document.is_modified else ""
        self.title_changed.emit(f"{self.document.name}{mark}")

    def launch(self) -> None:
        """Requests to launch the current topology, or shows why it must be corrected or saved first."""
        self.editor.settle()
        self.checks.now()
        if errors := self.checks.errors:
            self._report_errors(errors)
            return
        self.notices.clear("launch")
        if self.document.path is None and self.document.value.program.workdir is not None:
            text = self.tr("Save this topology first: the working folder is relative to its file.")
            save = NoticeButton(self.tr("Save and launch …"), lambda: self.files.save(self.launch))
            self.notices.show("launch", "info", text, save)
            return
        self.launch_requested.emit(self.as_file())

    def add_arguments(self, words: Sequence[str]) -> None:
        """Adds arguments to the topology's program, as one undoable edit."""
        args = [*self.document.value.program.args, *words]
        self._do(self.editor.set_program("args", args, self.tr("arguments")))

    def _clear_refusal(self) -> None:
        """Removes the notice about errors that prevent the launch, once they are corrected."""
        if self._is_refused and not self.checks.errors:
            self._is_refused = False
            self.notices.clear("launch")

    def _report_errors(self, count: int) -> None:
        self._is_refused = True
        self.problems.set_open(True)
        if count == 1:
            text, way = self.tr("1 error prevents the launch."), self.tr("Show it")
        else:
            text, way = self.tr("{count} errors prevent the launch."), self.tr("Show the first")
        self.notices.show("launch", "fail", text.format(count=count), NoticeButton(way, self.problems.next_problem))

    def choose_preset(self, key: str) -> None:
        """Applies a preset, after asking about replicas that its strategy does not use."""
        choose_preset(self.editor, key, self.say, self)

    def jump_to(self, problem: Problem) -> None:
        """Shows the place where a problem can be fixed: replicas, a field, a host or a line."""
        self._jumps.to(problem)
        if problem.line is not None and self.show_yaml.isChecked():
            self._show_line(problem.line)

    def _show_in_palette(self, host: str) -> bool:
        self.side.reveal()
        return self.palette_.go_to(host)

    def _show_line(self, line: int) -> None:
        self.show_yaml.setChecked(True)
        self.yaml.point_at(line)

    def _do(self, why_not: str) -> None:
        if why_not:
            self.say(why_not)

    def _regroup(self, names: list[str], target: str) -> None:
        places = {
            planned.name: pin_text(planned.host, [gpu.index for gpu in planned.gpus])
            for planned in self._plan.replicas
            if planned.host is not None
        }
        self._do(self.editor.regroup(names, target, places))

    def _to_next_group(self) -> None:
        names = list(self.editor.selection)
        target = next_group(self.document.value, names)
        if not names:
            self.say(self.tr("Select replicas first."))
        elif target is None:
            self.say(self.tr("These replicas have no other group of their kind."))
        else:
            self._regroup(names, target)

    def _show_by_group(self, by_group: bool) -> None:
        self.bar.arrangement.set_value("group" if by_group else "host")
        self.scene.set_by_group(by_group)
        self.view.fit()
        self._settings.canvas_by_group = by_group

    def _toggle_minimap(self) -> None:
        shown = self.view.minimap.isHidden()
        self.view.minimap.set_wanted(shown)
        self._settings.minimap = "shown" if shown else "hidden"

    def _host_chosen(self, host: str) -> None:
        self._do(self.editor.show_host(host))
        rect = self.scene.rect_of_rack(host)
        if not rect.isNull():
            self.view.ensureVisible(rect)

    def _context(self, place: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        if self.editor.selection:
            menu.addActions(self.edits.of_selection())
        else:
            menu.addActions([self.edits.paste, self.edits.add, *self.edits.add_roles, self.edits.select_all])
        menu.popup(place)

    def _edit_copy(self, text: str) -> None:
        value, _ = topology_in(text)
        if value is not None:
            self.files.begin(value)

    def _close_window(self) -> None:
        self._may_close = True
        self.window().close()
        self._may_close = False

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._hosts.watch(True, "topology")
        self.planning.watch(True)
        self.files.watch.look()

    def hideEvent(self, event: QHideEvent) -> None:
        self._hosts.watch(False, "topology")
        self.planning.watch(False)
        super().hideEvent(event)
