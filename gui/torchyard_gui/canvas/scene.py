"""The scene of one plan: racks, edges, and the tray of unplaced replicas. The scene never changes the topology.

The scene has a single view. The view's zoom determines the level of detail, and the view's size determines the number
of columns of racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from PySide6.QtCore import QObject, QPointF, QRectF, QSizeF, QTimer, Signal
from PySide6.QtWidgets import QGraphicsItem, QGraphicsRectItem, QGraphicsScene, QGraphicsSceneHelpEvent, QToolTip

from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.strategies.link_load import ExchangeFacts, link_loads
from torchyard_core.topology.strategies.replica_groups import replica_groups
from torchyard_core.topology.strategies.topology_traffic import traffic_of
from torchyard_core.topology.strategies.traffic import Traffic
from torchyard_gui.canvas import labels, paint_cache
from torchyard_gui.canvas.drop_highlight import DropHighlight
from torchyard_gui.canvas.edges.edge_layer import EdgeLayer
from torchyard_gui.canvas.edges.traffic import HostTraffic, host_traffic, leaving_edges
from torchyard_gui.canvas.geometry import Box, around
from torchyard_gui.canvas.level_of_detail import Level, level_of
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState
from torchyard_gui.canvas.racks.chip_painting import ChipState
from torchyard_gui.canvas.racks.cluster_frame import ClusterFrame
from torchyard_gui.canvas.racks.layout import lay_tray
from torchyard_gui.canvas.racks.rack_content import TRAY, ChipContent, RackContent, frames_of, racks_of, unplaced
from torchyard_gui.canvas.racks.rack_item import RackItem, reason_lines
from torchyard_gui.canvas.racks.rack_layer import RackLayer
from torchyard_gui.canvas.racks.tile_painting import tint_of
from torchyard_gui.theme.theme import theme

EDGES, TARGET = 1.0, 2.0
"""Z values of edges and of drop targets, above those of racks."""
HIGHLIGHT_MS = 6000
"""How long replicas that have moved are highlighted, in milliseconds."""


class TopologyScene(QGraphicsScene):
    """Scene of an edited topology (`show_plan`) or of a live run (`show_states`)."""

    selection_changed = Signal(list)
    """Emitted with the names of the selected replicas, in the plan's order."""
    arranged = Signal()
    """Emitted when racks have been added, removed, moved or resized."""
    states_changed = Signal()
    """Emitted when the selection or the live states of replicas have changed."""
    traffic_changed = Signal()
    """Emitted when the traffic that the edges show has changed."""
    touched = Signal()
    """Emitted when something visible changes or moves."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        # All items are children of a few top-level items, so keeping Qt's item index up to date would bring no benefit.
        self.setItemIndexMethod(QGraphicsScene.ItemIndexMethod.NoIndex)
        paint_cache.follow_theme()
        self._chips: dict[str, ChipContent] = {}
        self.ground = self._layer(None, 0.0)
        """The parent item of racks and edges."""
        self._racks = RackLayer(self.ground)
        self.frame = ClusterFrame(self.ground)
        """The frame of the cluster, hidden if the racks are hosts of the fleet file."""
        self._edges = EdgeLayer(self._layer(self.ground, EDGES))
        self.mark = DropHighlight(self, TARGET)
        self._by_group = False
        self._content: QRectF | None = None
        """The cached result of `content_rect`; None after racks or edges have moved."""
        self._host_names: list[str] = []
        self._shown: tuple[Plan | None, Sequence[HostFacts], Collection[str]] = (None, (), ())
        self._wiring = HostTraffic()
        self._section_wiring = HostTraffic()
        self.exchange = ExchangeFacts()
        """The known facts about the gradient exchange. A change takes effect at the next call of `show_plan`."""
        self._loads: dict[str, float] = {}
        """Data per step on each host's link, in multiples of the gradients' size."""
        self._leaving: Counter[str] = Counter()
        """Number of edges between each section and all other sections."""
        self._zoom = 1.0
        self._states: Mapping[str, ReplicaLiveState] | None = None
        self._hosts: Mapping[str, HostLiveState] = {}
        self._problems: Mapping[str, str] = {}
        self._selection: tuple[str, ...] = ()
        self._hovered = ""
        self._focused = ""
        self._lifted: frozenset[str] = frozenset()
        self._moved: Mapping[str, str] = {}
        self._highlighting = QTimer(self, singleShot=True, interval=HIGHLIGHT_MS)
        self._highlighting.timeout.connect(self._end_highlight)
        self.keeps = False
        """Whether racks keep their positions where possible when the plan changes, as while the user edits it."""

        theme().changed.connect(self._take_theme)

    def show_plan(
        self, plan: Plan | None, hosts: Sequence[HostFacts] = (), also: Collection[str] = (), *, keep: bool = False
    ) -> None:
        """Shows the hosts with placed or pinned replicas and the hosts in `also`. A plan of None empties the scene.

        With `keep`, which is used while the user edits a topology, racks keep their places where possible, and replicas
        that moved without being selected are highlighted for a while. Existing items of racks and edges are reused. In
        the arrangement *By group*, frames of groups are shown instead of hosts.
        """
        self.touched.emit()
        self._shown = (plan, hosts, also)
        self.keeps = keep
        before = self._chips if keep else {}
        traffic = traffic_of(plan.topology) if plan is not None else Traffic()
        contents: list[RackContent] = []
        chips: tuple[ChipContent, ...] = ()
        reasons: tuple[str, ...] = ()
        self._host_names = []
        if plan is not None and self._by_group:
            contents = list(frames_of(plan, replica_groups(plan.topology)))
            used = {*also, *(planned.host for planned in plan.replicas)}
            self._host_names = [host.name for host in hosts if host.name in used]
        elif plan is not None:
            contents = list(racks_of(plan, hosts, also, traffic.groups))
            self._host_names = [content.key for content in contents]
            chips, reasons = unplaced(plan)
        if chips:
            layout = lay_tray([chip.name for chip in chips], len(reason_lines(reasons)))
            contents.append(RackContent(TRAY, layout, chips, reasons=reasons))
        members = {chip.name: chip for content in contents for chip in content.chips}
        drawn = self._wiring
        order = [planned.name for planned in plan.replicas] if plan is not None else []
        self._chips = {name: members[name] for name in order if name in members}
        placed = {chip.name: content.key for content in contents for chip in content.chips if content.key}
        self._wiring = host_traffic(traffic, placed, plan.topology.strategy) if plan is not None else HostTraffic()
        section_of = {chip.name: content.section for content in contents for chip in content.chips if content.section}
        self._section_wiring, self._leaving = HostTraffic(), Counter[str]()
        self._loads = {}
        if plan is not None:
            hosts_of = {chip.name: chip.host for chip in self._chips.values() if chip.host}
            self._loads = link_loads(plan.topology, traffic, hosts_of)
        load = labels.load_parts(max(self._loads.values()), self.exchange) if self._loads else ()
        self._wiring = replace(self._wiring, load=load)
        if plan is not None and section_of:
            self._section_wiring = replace(host_traffic(traffic, section_of, plan.topology.strategy), load=load)
            self._leaving = leaving_edges(traffic, section_of)
        self._racks.take(contents, self._apply_states)
        self._note_moves(before)
        self._mark(self._chips)
        self.set_selection(name for name in self._selection if name in self._chips)
        self._arrange()
        if self._wiring != drawn:
            self.traffic_changed.emit()

    @property
    def moved(self) -> Mapping[str, str]:
        """The previous place of each replica that is highlighted because it has moved, by the replica's name."""
        return self._moved

    def _note_moves(self, before: Mapping[str, ChipContent]) -> None:
        moves = {
            name: labels.place_of(old)
            for name, old in before.items()
            if (chip := self._chips.get(name)) is not None
            and old.host
            and chip.host
            and (chip.host, chip.gpus) != (old.host, old.gpus)
            and name not in self._selection
        }
        if moves:
            self._moved = moves
            self._highlighting.start()
        elif not before:
            self._highlighting.stop()
            self._moved = {}

    def _end_highlight(self) -> None:
        moved, self._moved = self._moved, {}
        self._mark(moved)

    def show_states(self, states: Mapping[str, ReplicaLiveState] | None) -> None:
        """Shows the live states of replicas; None shows the edited topology again."""
        self.touched.emit()
        self._states = dict(states) if states is not None else None
        for item in self._racks.values():
            item.set_states(self._states)
        self._show_edge_looks()
        self._show_headings()
        self.states_changed.emit()

    def show_hosts(self, hosts: Mapping[str, HostLiveState]) -> None:
        """Shows the live states of hosts."""
        self.touched.emit()
        self._hosts = dict(hosts)
        for name, item in self._racks.items():
            item.set_host(self._hosts.get(name))
        self._show_edge_looks()
        self._show_headings()

    def show_problems(self, problems: Mapping[str, str]) -> None:
        """Sets the problem text of each affected replica, by the replica's name.

        In an edited topology, the chip of a replica with a problem has a warning triangle.
        """
        touched = {*self._problems, *problems}
        self._problems = dict(problems)
        self._mark(touched)

    @property
    def is_empty(self) -> bool:
        return not self._racks

    @property
    def is_live(self) -> bool:
        return self._states is not None

    @property
    def wiring(self) -> HostTraffic:
        """The traffic between hosts, or between frames of groups."""
        return self._wiring

    @property
    def drawn_wiring(self) -> HostTraffic:
        """The traffic that is drawn at the current zoom: between hosts, or summarised between sections."""
        sectioned = level_of(self._zoom) is Level.TILE and self._racks.grid.sections is not None
        return self._section_wiring if sectioned else self._wiring

    @property
    def has_edges(self) -> bool:
        return bool(self._edges.items)

    @property
    def by_group(self) -> bool:
        """Whether replicas are shown in the frames of their groups, instead of on their hosts."""
        return self._by_group

    def set_by_group(self, by_group: bool) -> None:
        if by_group != self._by_group:
            self._by_group = by_group
            self.mark.hide()
            self.show_plan(*self._shown)

    @property
    def names(self) -> list[str]:
        """The names of all replicas in the order of the plan."""
        return list(self._chips)

    @property
    def hosts(self) -> list[str]:
        """The hosts that have a rack in the arrangement by host, in the order of the fleet."""
        return list(self._host_names)

    def chip(self, name: str) -> ChipContent | None:
        return self._chips.get(name)

    def described(self, name: str) -> str:
        look = self._states.get(name) if self._states is not None else None
        text = labels.described(self._chips[name], look, self._problems.get(name, ""))
        return f"{text}, {labels.moved_from(self._moved[name])}" if name in self._moved else text

    @property
    def selection(self) -> list[str]:
        return list(self._selection)

    def set_selection(self, names: Iterable[str]) -> None:
        if self.preview_selection(names):
            self.selection_changed.emit(list(self._selection))
            self.states_changed.emit()

    def preview_selection(self, names: Iterable[str]) -> bool:
        """Changes the displayed selection during a gesture, without emitting a signal.

        Returns whether the selection changed.
        """
        wanted = set(names)
        selection = tuple(name for name in self._chips if name in wanted)
        if selection == self._selection:
            return False
        changed = set(selection).symmetric_difference(self._selection)
        self._selection = selection
        self._mark(changed)
        self._show_edge_looks()
        return True

    def announce_selection(self) -> None:
        """Emits the selection signals that `preview_selection` did not emit."""
        self.selection_changed.emit(list(self._selection))
        self.states_changed.emit()

    def set_hovered(self, name: str) -> None:
        if name != self._hovered:
            touched = {self._hovered, name}
            self._hovered = name
            self._mark(touched)

    @property
    def focused(self) -> str:
        """The name of the replica with the keyboard focus, or "" if there is none."""
        return self._focused if self._focused in self._chips else ""

    def set_focused(self, name: str) -> None:
        if name != self._focused:
            touched = {self._focused, name}
            self._focused = name
            self._mark(touched)

    def set_lifted(self, names: Iterable[str]) -> None:
        """Draws the chips of the named replicas pale while the user drags them."""
        lifted = frozenset(names)
        touched = lifted ^ self._lifted
        self._lifted = lifted
        self._mark(touched)

    def set_target(self, target: str | None, fits: bool = True) -> None:
        """Highlights a drop target, given in the format of `target_at`; "" or None removes the highlight."""
        if not target:
            self.mark.hide()
            return
        if self._by_group:
            key, _, member = target.partition("/")
            self.mark.aim(self.rect_of(member) if member else self.rect_of_rack(key), fits=fits, slot=bool(member))
            return
        host, _, gpu = target.partition(":")
        rect = self.rect_of_slot(host, int(gpu)) if gpu.isdigit() else self.rect_of_rack(host)
        self.mark.aim(rect, fits=fits, slot=bool(gpu))

    # Points and rectangles in the following methods are in scene coordinates.

    def rect_of(self, name: str) -> QRectF:
        """Returns the rectangle of the first piece of a replica's chip. The rectangle is empty if the chip is not
        drawn.
        """
        return self._racks.rect_of(name)

    def rect_of_rack(self, host: str) -> QRectF:
        return self._racks.rect_of_rack(host)

    def rect_of_slot(self, host: str, gpu: int) -> QRectF:
        return self._racks.rect_of_slot(host, gpu)

    def chip_boxes(self) -> dict[str, Box]:
        boxes = {}
        for name in self._chips:
            rect = self.rect_of(name)
            if not rect.isNull():
                boxes[name] = Box(rect.x(), rect.y(), rect.width(), rect.height())
        return boxes

    def replica_at(self, point: QPointF) -> str:
        return self._racks.replica_at(point)

    def replicas_in(self, rect: QRectF) -> list[str]:
        """Returns the names of the replicas whose chips touch a rectangle."""
        return self._racks.replicas_in(rect)

    @property
    def troubled(self) -> Collection[str]:
        return self._problems.keys()

    @property
    def unplaced(self) -> list[str]:
        return self.replicas_on("")

    def replicas_on(self, host: str) -> list[str]:
        """Returns the names of the replicas placed on a host, in the order of the plan."""
        return [name for name, chip in self._chips.items() if chip.host == host]

    def target_at(self, point: QPointF) -> str:
        """Returns the target of a drop, as described at `RackLayer.target_at`."""
        return self._racks.target_at(point)

    def host_at(self, point: QPointF) -> str:
        """Returns the host whose rack is at a point, or "" if there is none.

        In the arrangement by group, always returns "".
        """
        return "" if self._by_group else self.target_at(point).partition(":")[0]

    def content_rect(self) -> QRectF:
        """Returns the area of all racks, headings and edges."""
        if self._content is None:
            self._content = self._measured_content()
        return self._content

    def _measured_content(self) -> QRectF:
        rect = self._measured_racks()
        return rect.united(self.frame.bounds()) if self.frame.isVisible() else rect

    def _measured_racks(self) -> QRectF:
        rect = QRectF(*around(cell.box for cell in self._racks.grid.cells))
        for heading in self._racks.grid.headings:
            rect = rect.united(QRectF(*heading.box))
        # Edges between sections are ignored: they lie within the area of racks and headings, and depend on the zoom.
        for item in self._edges.items if self._racks.grid.sections is None else ():
            rect = rect.united(item.sceneBoundingRect())
        return rect

    @property
    def rack_count(self) -> int:
        return len(self._racks)

    def rack_boxes(self) -> list[tuple[Box, str]]:
        """Returns the box of each rack and the colour token of the rack's most important state, for the minimap."""
        selected = {item.content.key for name in self._selection if (item := self._racks.holder_of(name)) is not None}
        troubled = {item.content.key for name in self._problems if (item := self._racks.holder_of(name)) is not None}
        found = []
        for cell in self._racks.grid.cells:
            item = self._racks[cell.key]
            looks = [self._states.get(chip.name) for chip in item.content.chips] if self._states is not None else []
            failed = any(look is not None and tint_of(look) == "fail" for look in looks)
            if cell.key in selected:
                token = "accent"
            elif failed or cell.key in troubled:
                token = "fail"
            else:
                token = "unknown" if self._is_unknown(item) else "line"
            found.append((cell.box, token))
        return found

    def set_room(self, room: QSizeF) -> None:
        """Sets the size of the view at zoom 1, which determines the number of columns."""
        self.touched.emit()
        self._racks.set_room(room)
        self._arrange()

    def set_zoom(self, zoom: float) -> None:
        self.touched.emit()
        before, self._zoom = self._zoom, zoom
        for item in self._racks.values():
            item.set_zoom(zoom)
        for heading in self._racks.headings.values():
            heading.set_zoom(zoom)
        self.frame.set_zoom(zoom)
        if Level.TILE in (level_of(before), level_of(zoom)):
            self._lay_edges()

    def helpEvent(self, event: QGraphicsSceneHelpEvent) -> None:
        QToolTip.showText(event.screenPos(), self.tooltip_at(event.scenePos()), event.widget())

    def tooltip_at(self, point: QPointF) -> str:
        """Returns the tool tip of the replica, slot or rack at a point."""
        name, item = self.replica_at(point), self._racks.rack_at(point)
        if name or item is None:
            return self.described(name) if name else ""
        x, y = point.x() - item.x(), point.y() - item.y()
        text = item.tooltip_at(x, y)
        load = self._loads.get(item.content.key) if item.slot_at(x, y) is None else None
        return f"{text}\n{labels.link_sentence(load, self.exchange)}" if text and load else text

    def _layer(self, parent: QGraphicsItem | None, height: float) -> QGraphicsRectItem:
        layer = QGraphicsRectItem(parent)
        layer.setFlag(QGraphicsItem.GraphicsItemFlag.ItemHasNoContents)
        layer.setZValue(height)
        if parent is None:
            self.addItem(layer)
        return layer

    def _apply_states(self, item: RackItem) -> None:
        item.set_states(self._states)
        item.set_host(self._hosts.get(item.content.key))
        item.set_zoom(self._zoom)

    def _arrange(self) -> None:
        moved = self._racks.arrange(keep=self.keeps)
        self._content = None
        self._show_headings()
        if moved and self._racks.grid.sections is not None:
            # In response to `arranged`, the view sets the zoom, which determines the edges to draw. The edges are
            # routed after that, because routing the edges of a hundred hosts for the old zoom would waste time.
            self.arranged.emit()
            moved = False
        self._lay_edges()
        if moved:
            self.arranged.emit()

    def _lay_edges(self) -> None:
        self._content = None
        self._route_edges()
        self._frame_cluster()

    def _frame_cluster(self) -> None:
        """Draws a frame around all racks if they are nodes of a cluster, and hides the frame otherwise."""
        racks = [item.content for item in self._racks.values() if item.content.cluster]
        if not racks:
            self.frame.hide()
            return
        inside = self._measured_racks()
        box = Box(inside.x(), inside.y(), inside.width(), inside.height())
        self.frame.show_cluster(racks[0].cluster, labels.cluster_summary(racks), box)

    def _route_edges(self) -> None:
        """Routes the edges between hosts or, if hosts in sections are drawn as tiles, the edges between sections."""
        grid = self._racks.grid
        if level_of(self._zoom) is not Level.TILE:
            self._edges.lay(grid, self._wiring)
        elif grid.sections is not None:
            self._edges.lay(grid.sections, self._section_wiring, self._zoom)
        else:
            self._edges.lay(grid, self._wiring, self._zoom)
        self._show_edge_looks()

    def _show_headings(self) -> None:
        for name, heading in self._racks.headings.items():
            racks = [item.content for item in self._racks.members(name)]
            heading.set_zoom(self._zoom)
            heading.set_summary(labels.section_summary(racks, self._hosts, self._states, self._leaving[name]))

    def _show_edge_looks(self) -> None:
        self.touched.emit()
        if not self.has_edges:
            return
        holders = (self._racks.holder_of(name) for name in self._selection)
        if level_of(self._zoom) is Level.TILE and self._racks.grid.sections is not None:
            self._edges.show_looks({item.content.section for item in holders if item is not None}, ())
            return
        chosen = {item.content.key for item in holders if item is not None}
        unknown = {key for key, item in self._racks.items() if self._is_unknown(item)}
        self._edges.show_looks(chosen, unknown)

    def _is_unknown(self, item: RackItem) -> bool:
        if item.host is not None and item.host.is_unknown:
            return True
        if self._states is None:
            return False
        looks = [self._states.get(chip.name) for chip in item.content.chips if chip.trains]
        return bool(looks) and all(look is None or look.is_unknown for look in looks)

    def _mark(self, names: Iterable[str]) -> None:
        self.touched.emit()
        selected = set(self._selection)
        for name in names:
            chip = self._chips.get(name)
            if chip is None:
                continue
            state = ChipState(
                selected=name in selected,
                hovered=name == self._hovered,
                focused=name == self._focused,
                lifted=name in self._lifted,
                problem=self._problems.get(name, ""),
                moved=name in self._moved,
            )
            if (holder := self._racks.holder_of(name)) is not None:
                holder.set_mark(name, state)

    def _take_theme(self) -> None:
        self.touched.emit()
        framing = (self.frame, self.frame.heading)
        for item in (*self._racks.values(), *self._racks.headings.values(), *self._edges.items, *framing):
            item.update()
        self.update()
