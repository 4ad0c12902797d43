"""Edits of the topology as named, undoable steps, and the selection of replicas.

The editor has no widgets: panels call its methods and receive its signals, and torchyard_core implements the edits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from PySide6.QtCore import QObject, Signal, SignalInstance
from PySide6.QtGui import QUndoStack

from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.topology.document import clipboard, edits
from torchyard_core.topology.document.regrouping import regrouped, regrouping
from torchyard_core.topology.document.topology_document import TopologyDocument
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.machine_types import with_machine
from torchyard_core.topology.model import Role, Topology
from torchyard_core.topology.placement import manual_placement
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.topology.strategies.presets import preset, with_preset
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.planner.planning_place import PlanningPlace
from torchyard_gui.topology.labels import named, preset_title, regrouped_text, role_name, role_plural
from torchyard_gui.topology.undo import Edit
from torchyard_gui.widgets.next_steps import error_text, quoted

MOST_STEPS = 2000
"""Maximum number of undo steps. A step holds two versions of the topology, which share their unchanged parts."""


class Editor(QObject):
    """Edits one document. Methods that may refuse an edit return the reason for the refusal, or "" if the edit was
    made.
    """

    changed = Signal()
    """Emitted when the document has changed."""
    selection_changed = Signal()

    def __init__(
        self, document: TopologyDocument, hosts: HostsSource, place: PlanningPlace, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.document = document
        self._hosts = hosts
        self._place = place
        self._selection: tuple[str, ...] = ()
        self._known: frozenset[str] = frozenset()
        self.stack = QUndoStack(self, undoLimit=MOST_STEPS)
        self.settle: Callable[[], None] = lambda: None
        """Applies pending input of the YAML editor to the document. Called before the document is edited or used."""
        document.changed.connect(self._document_changed)

    @property
    def value(self) -> Topology:
        return self.document.value

    @property
    def holds_topology(self) -> bool:
        """Whether there is a topology to edit.

        After an invalid file was opened, there is no topology until the user has corrected the text.
        """
        return not self.document.problems or bool(self.value.pools)

    @property
    def cluster(self) -> Cluster | None:
        """The cluster for which the topology is planned, or None if it is planned for the hosts of the fleet file."""
        return self._place.cluster_for(self.value)

    def plan_input(self) -> tuple[Topology, tuple[HostFacts, ...]]:
        """Returns the topology and the hosts, or the slots of a cluster, for the planner."""
        cluster = self.cluster
        if cluster is None:
            return self.value, tuple(self._hosts.facts())
        return self._place.plan_input(self.value, cluster)

    def facts(self) -> Sequence[HostFacts]:
        """Returns the hosts, or the slots of a cluster, on which replicas can be placed."""
        return self.plan_input()[1]

    def host_names(self) -> tuple[str, ...]:
        """Returns the names of the hosts and clusters that a pool may list as its hosts."""
        names = [facts.name for facts in self._hosts.facts()]
        return (*names, *(cluster.name for cluster in self._place.clusters))

    def _chosen_by_scheduler(self) -> str:
        """If a scheduler chooses the nodes, returns why replicas cannot be pinned to them; otherwise, returns ""."""
        cluster = self.cluster
        if cluster is None:
            return ""
        return self.tr("Slurm chooses the nodes of {cluster}, so replicas cannot be pinned to them.").format(
            cluster=cluster.name
        )

    @property
    def selection(self) -> tuple[str, ...]:
        """Names of the selected replicas."""
        return self._selection

    def select(self, names: Sequence[str]) -> None:
        """Selects replicas. Names that do not exist are ignored."""
        chosen = tuple(name for name in dict.fromkeys(names) if name in self._known)
        if chosen != self._selection:
            self._selection = chosen
            self.selection_changed.emit()

    def select_all(self) -> None:
        self.select([replica.name for replica in replicas_of(self.value)])

    def selected_pools(self) -> tuple[int, ...]:
        """Returns the indices of the pools to which the selected replicas belong."""
        return edits.pools_of(self.value, self._selection)

    def _document_changed(self) -> None:
        self._known = frozenset(replica.name for replica in replicas_of(self.value))
        left = tuple(name for name in self._selection if name in self._known)
        gone = left != self._selection
        self._selection = left
        self.changed.emit()
        if gone:
            self.selection_changed.emit()

    def apply(
        self,
        text: str,
        change: Callable[[Topology], Topology],
        *,
        key: str = "",
        select: Callable[[Topology], Sequence[str]] | None = None,
    ) -> str:
        """Performs one edit.

        Args:
            text: Name of the edit in the undo stack.
            change: Returns the changed topology.
            key: Successive edits with the same non-empty key are merged into one step.
            select: Returns the replicas to select afterwards. By default, the selection is unchanged.
        """
        self.settle()
        before = self.document.state
        try:
            value = change(before.value)
            if value == before.value:
                return ""
            after = self.document.with_value(value)
            chosen = tuple(select(value)) if select is not None else self._selection
            selections = (self._selection, chosen)
            self.stack.push(Edit(self.document, before, after, text, key, self.select, selections))
        except TorchyardError as problem:
            return _refusal(problem)
        return ""

    def type_text(self, shown: str, text: str = "") -> None:
        """Replaces the document's text with `shown`, the text in the YAML editor. `text` is the name of the edit.

        While the document's text is invalid, the topology remains that of the last valid text.
        """
        if shown != self.document.shown_text:
            before, after = self.document.state, self.document.with_shown_text(shown)
            self.stack.push(Edit(self.document, before, after, text or self.tr("Edit the text")))

    def undo(self) -> None:
        self.settle()
        self.stack.undo()

    def redo(self) -> None:
        self.settle()
        self.stack.redo()

    def add(self, role: Role, count: int = 1, target: str = "") -> str:
        """Adds replicas and selects them. `target` is a host or slot, or "" to let the planner place them."""
        new: list[str] = []

        def change(value: Topology) -> Topology:
            grown, names = edits.add_replicas(value, role, count, gpus=self.gpus_for(role, target))
            new.extend(names)
            pins = manual_placement.pins_for(grown, self.facts(), names, target) if target else {}
            return edits.set_pins(grown, pins) if pins else grown

        if count == 1:
            text = self.tr("Add {role}").format(role=role_name(role).lower())
        else:
            text = self.tr("Add {count} {roles}").format(count=count, roles=role_plural(role))
        return self.apply(text, change, select=lambda _: new)

    def add_preset(self, key: str, *, removes_unused: bool = False) -> str:
        """Sets the strategy of a preset and adds the pools that the preset needs, as one step.

        With `removes_unused`, the step removes the servers and reducers that the strategy does not use.
        """
        has_gpus = any(facts.gpus for facts in self.facts())
        text = self.tr("Preset {strategy}").format(strategy=preset_title(preset(key)))

        def change(value: Topology) -> Topology:
            return with_preset(value, key, has_gpus=has_gpus, removes_unused=removes_unused)[0]

        # If nothing is selected, the inspector shows the strategy's settings.
        return self.apply(text, change, select=lambda _: ())

    def set_machine(self, name: str, replicas: Sequence[str] | None = None) -> str:
        """Sets the machine type of the pools to which the replicas belong, by default the selected replicas."""
        positions = edits.pools_of(self.value, self._selection if replicas is None else replicas)
        if not positions:
            return self.tr("Select replicas first: a machine type applies to their pool.")
        text = self.tr("Machine type {machine}").format(machine=name)
        return self.apply(text, lambda value: with_machine(value, positions, name))

    def machine_effect(self, name: str, replicas: Sequence[str]) -> tuple[str, bool]:
        """Returns a description of a machine type's effect on pools, and whether the type can be applied to them."""
        pools = [self.value.pools[at].name for at in edits.pools_of(self.value, replicas)]
        if not pools:
            return self.tr(
                "a machine type applies to a pool: drop it on a replica, or on a host that has replicas"
            ), False
        if len(pools) == 1:
            return self.tr("set the machine type of pool {pool} to {machine}").format(pool=pools[0], machine=name), True
        return self.tr("set the machine type of the pools {pools} to {machine}").format(
            pools=", ".join(pools), machine=name
        ), True

    def gpus_for(self, role: Role, target: str = "") -> int:
        """Returns the number of GPUs per replica of a new pool.

        The number is 1 for trainers and evaluators if the target has GPUs or, without a target, if any host has GPUs.
        Otherwise, the number is 0.
        """
        if not (role.trains or role is Role.EVALUATOR):
            return 0
        host = target.partition(":")[0]
        return int(any(facts.gpus for facts in self.facts() if not host or facts.name == host))

    def remove(self, names: Collection[str]) -> str:
        text = self.tr("Delete {replicas}").format(replicas=named(list(names)))
        return self.apply(text, lambda value: edits.remove_replicas(value, names), select=lambda _: ())

    def pin(self, names: Sequence[str], target: str) -> str:
        """Pins replicas to a host or slot. An empty target unpins the replicas."""
        if not target:
            return self.unpin(names)
        if why := self._chosen_by_scheduler():
            return why
        text = self.tr("Put {replicas} on {target}").format(replicas=named(names), target=target)

        def change(value: Topology) -> Topology:
            return edits.set_pins(value, manual_placement.pins_for(value, self.facts(), names, target))

        return self.apply(text, change)

    def pin_exactly(self, name: str, target: str) -> str:
        """Sets a pin to the text that the user typed.

        Invalid pins are accepted and reported as problems of the topology.
        """
        text = self.tr("Pin {replica} to {target}").format(replica=name, target=target)
        return self.apply(text, lambda value: edits.set_pins(value, {name: target}))

    def pin_all(self, pins: Mapping[str, str]) -> str:
        """Pins each replica to the target given for it."""
        text = self.tr("Pin {replicas}").format(replicas=named(list(pins)))
        return self.apply(text, lambda value: edits.set_pins(value, pins))

    def unpin(self, names: Collection[str]) -> str:
        text = self.tr("Unpin {replicas}").format(replicas=named(list(names)))
        return self.apply(text, lambda value: edits.unpin(value, names))

    def why_not(self, names: Sequence[str], target: str) -> str:
        """Returns why replicas cannot be placed on a target, or "" if they can."""
        if why := self._why_invalid() or (self._chosen_by_scheduler() if target else ""):
            return why
        return manual_placement.drop_refusal(*self.plan_input(), names, target)

    def why_not_new(self, role: Role, target: str) -> str:
        """Returns why a new replica cannot be placed on a target, or "" if it can."""
        if why := self._why_invalid() or (self._chosen_by_scheduler() if target else ""):
            return why
        return manual_placement.new_replica_refusal(*self.plan_input(), role, target, gpus=self.gpus_for(role, target))

    def regroup(self, names: Sequence[str], target: str, places: Mapping[str, str]) -> str:
        """Moves replicas to another group, as computed by `regrouping`, and selects the corresponding replicas of that
        group.

        Args:
            places: The current place of each placed replica, written like a pin.
        """
        if why := self.why_not_regroup(names, target):
            return why
        now: list[str] = []

        def change(value: Topology) -> Topology:
            found = regrouping(value, names, target)
            partners = dict(found.exchanges)
            now.extend(partners.get(name, name) for name in names)
            return regrouped(value, found, places)

        text = self.tr("Move {replicas} to another group").format(replicas=named(names))
        return self.apply(text, change, select=lambda _: now)

    def why_not_regroup(self, names: Sequence[str], target: str) -> str:
        """Returns why replicas cannot move to another group, or "" if they can."""
        try:
            found = regrouping(self.value, names, target)
        except TorchyardError as problem:
            return quoted(problem.message)
        # An exchange pins each replica to its partner's place, which is possible only if the nodes are known.
        return self._chosen_by_scheduler() if found.exchanges else ""

    def regroup_effect(self, names: Sequence[str], target: str) -> str:
        """Returns a description of the effect of moving replicas to another group, or "" if the move changes nothing.

        If the move is refused, returns a general description that names no replicas.
        """
        try:
            found = regrouping(self.value, names, target)
        except TorchyardError:
            return self.tr("move to this group")
        if found.sizes:
            return regrouped_text(found.sizes, is_trainers=names[0].rpartition("-")[0] in ("chief", "worker"))
        if len(found.exchanges) == 1:
            return self.tr("exchange with {replica}").format(replica=found.exchanges[0][1])
        if found.exchanges:
            return self.tr("exchange with {replicas}").format(replicas=named([other for _, other in found.exchanges]))
        return ""

    def _why_invalid(self) -> str:
        """Returns why the topology cannot be edited while the text is invalid, or "" if the text is valid."""
        try:
            self.document.with_value(self.value)
        except TorchyardError as problem:
            return _refusal(problem)
        return ""

    def copied(self) -> str:
        """Returns the selected replicas as text for the clipboard."""
        return clipboard.copy_replicas(self.value, self._selection)

    def cut(self) -> str:
        names = self._selection
        text = self.tr("Cut {replicas}").format(replicas=named(names))
        return self.apply(text, lambda value: edits.remove_replicas(value, names), select=lambda _: ())

    def paste(self, text: str) -> str:
        try:
            copied = clipboard.read_copied(text)
        except TorchyardError as problem:
            return error_text(problem)
        return self._grow(self.tr("Paste"), lambda value: clipboard.paste_replicas(value, copied))

    def duplicate(self) -> str:
        names = self._selection
        text = self.tr("Duplicate {replicas}").format(replicas=named(names))
        return self._grow(text, lambda value: clipboard.duplicate_replicas(value, names))

    def _grow(self, text: str, change: Callable[[Topology], tuple[Topology, tuple[str, ...]]]) -> str:
        new: list[str] = []

        def grown(value: Topology) -> Topology:
            after, names = change(value)
            new.extend(names)
            return after

        return self.apply(text, grown, select=lambda _: new)

    def set_pools(self, positions: Sequence[int], key: str, value: Any, label: str) -> str:
        """Sets the value of a key in pools. `label` is the displayed name of the key."""
        pools = self.value.pools
        what = (
            pools[positions[0]].name if len(positions) == 1 else self.tr("{count} pools").format(count=len(positions))
        )
        text = self.tr("Change {field} of {pools}").format(field=label, pools=what)
        merge = f"pools {sorted(positions)} {key}"
        return self.apply(text, lambda before: edits.set_pools(before, positions, **{key: value}), key=merge)

    def set_strategy(self, key: str, value: Any, label: str) -> str:
        text = self.tr("Change {field}").format(field=label)
        return self.apply(text, lambda before: edits.set_strategy(before, **{key: value}), key=f"strategy {key}")

    def set_program(self, key: str, value: Any, label: str) -> str:
        text = self.tr("Change {field}").format(field=label)
        return self.apply(text, lambda before: edits.set_program(before, **{key: value}), key=f"program {key}")

    def set_name(self, name: str) -> str:
        text = self.tr("Rename to {name}").format(name=name)
        return self.apply(text, lambda value: edits.set_name(value, name), key="name")

    def shown_hosts(self) -> tuple[str, ...]:
        """Returns the hosts that the user has added to the canvas, even if the topology does not use them."""
        hosts = (self.value.layout or {}).get("hosts")
        return tuple(name for name in hosts if isinstance(name, str)) if isinstance(hosts, list) else ()

    def show_host(self, name: str) -> str:
        text = self.tr("Show {host}").format(host=name)
        return self._set_hosts(text, [*self.shown_hosts(), name])

    def _set_hosts(self, text: str, hosts: Sequence[str]) -> str:
        def change(value: Topology) -> Topology:
            layout = dict(value.layout or {})
            layout.pop("hosts", None)
            if hosts:
                layout["hosts"] = list(dict.fromkeys(hosts))
            return edits.set_layout(value, layout)

        return self.apply(text, change)


def _refusal(problem: TorchyardError) -> str:
    return error_text(problem) if problem.code == "broken_file" else quoted(problem.message)


class HostsSource(Protocol):
    """Interface that provides the hosts for the page. The fleet model implements it."""

    @property
    def facts_changed(self) -> SignalInstance: ...

    def watch(self, on: bool, by: str = "") -> None:
        """Starts or stops watching for the caller `by`. Watched hosts are often queried for the users of their GPUs."""

    def check(self) -> None:
        """Checks all hosts."""

    def facts(self) -> Sequence[HostFacts]: ...

    def states(self) -> Mapping[str, HostState]:
        """Returns the state of each host by name. `facts_changed` is also emitted when a state changes."""
