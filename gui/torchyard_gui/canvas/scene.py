"""The scene: racks, tray and edges of one plan. It listens only: what a gesture wants goes out as the view's signals.

A view tells it the zoom (for the level of detail) and the room (for the number of columns); so it has one view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from PySide6.QtCore import QObject, QPointF, QRectF, QSizeF, Signal
from PySide6.QtWidgets import (
    QGraphicsItem,
    QGraphicsRectItem,
    QGraphicsScene,
    QGraphicsSceneHelpEvent,
    QToolTip,
)

from torchyard_core.launch.plan import Plan
from torchyard_core.topology.edges import Traffic, traffic_of
from torchyard_core.topology.hosts import HostFacts
from torchyard_core.topology.model import StrategyKind
from torchyard_gui.canvas import ink, words
from torchyard_gui.canvas.boxes import Box, around
from torchyard_gui.canvas.chip_painting import ChipState
from torchyard_gui.canvas.content import TRAY, ChipContent, RackContent, racks_of, unplaced
from torchyard_gui.canvas.edge_item import EdgeItem
from torchyard_gui.canvas.layout import Grid, arrange, best_columns, lay_tray
from torchyard_gui.canvas.levels import Level, level_of
from torchyard_gui.canvas.looks import HostLook, ReplicaLook
from torchyard_gui.canvas.rack_item import RackItem, reason_lines
from torchyard_gui.canvas.routes import Hop, arrow_at
from torchyard_gui.canvas.target_mark import TargetMark
from torchyard_gui.canvas.trunk_item import TrunkItem
from torchyard_gui.canvas.wiring import Lines, Wiring, lay, wiring_of
from torchyard_gui.theme.theme import theme

EDGES, TARGET = 1.0, 2.0
"""Heights above the racks."""


class TopologyScene(QGraphicsScene):
    """The canvas's scene, in design (`show_plan`) and live (`show_states`)."""

    selection_changed = Signal(list)
    """Names of the selected replicas, in the plan's order."""
    arranged = Signal()
    """Racks came, went or moved."""
    looks_changed = Signal()
    """The selection or the states changed: what describes them in words is out of date."""
    touched = Signal()
    """Something that is seen changed, or is seen elsewhere."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        ink.follow_theme()
        self._racks: dict[str, RackItem] = {}
        self._chips: dict[str, ChipContent] = {}
        self._edges: list[EdgeItem] = []
        self.ground = self._layer(None, 0.0)
        """All racks and edges."""
        self._edge_layer = self._layer(self.ground, EDGES)
        self.mark = TargetMark(self, TARGET)
        self._grid = Grid(1)
        self._room = QSizeF()
        self._occasion: tuple[tuple[str, ...], float, float] | None = None
        self._columns = 1
        self._trunk: TrunkItem | None = None
        self._traffic = Traffic()
        self._wiring = Wiring()
        self._routed: tuple[Grid, Wiring, Lines] = (Grid(1), Wiring(), Lines())
        """The last lines, and what they were laid for: an edit mostly moves no rack."""
        self._zoom = 1.0
        self._kind = StrategyKind.NONE
        self._states: Mapping[str, ReplicaLook] | None = None
        self._hosts: Mapping[str, HostLook] = {}
        self._problems: Mapping[str, str] = {}
        self._selection: tuple[str, ...] = ()
        self._hovered = ""
        self._focused = ""
        self._lifted: frozenset[str] = frozenset()

        theme().changed.connect(self._take_theme)

    # What it shows

    def show_plan(self, plan: Plan | None, hosts: Sequence[HostFacts] = (), also: Collection[str] = ()) -> None:
        """Shows the hosts that the plan uses or pins, and those of `also`; None empties the scene.

        What is equal to what stands there is left alone.
        """
        self.touched.emit()
        traffic = traffic_of(plan.topology) if plan is not None else Traffic()
        contents = list(racks_of(plan, hosts, also, traffic.groups)) if plan is not None else []
        chips, reasons = unplaced(plan) if plan is not None else ((), ())
        if chips:
            layout = lay_tray([chip.name for chip in chips], len(reason_lines(reasons)))
            contents.append(RackContent(TRAY, layout, chips, reasons=reasons))
        members = {chip.name: chip for content in contents for chip in content.chips}
        order = [planned.name for planned in plan.replicas] if plan is not None else []
        self._chips = {name: members[name] for name in order if name in members}
        self._kind = plan.topology.strategy.kind if plan is not None else StrategyKind.NONE
        self._traffic = traffic
        placed = {chip.name: chip.host for chip in self._chips.values() if chip.host}
        self._wiring = wiring_of(traffic, placed, plan.topology.strategy) if plan is not None else Wiring()
        self._take_racks(contents)
        self.set_selection(name for name in self._selection if name in self._chips)
        self._arrange()

    def show_states(self, states: Mapping[str, ReplicaLook] | None) -> None:
        """Live: how each replica stands. None goes back to design."""
        self.touched.emit()
        self._states = dict(states) if states is not None else None
        for item in self._racks.values():
            item.set_states(self._states)
        self._show_edge_looks()
        self.looks_changed.emit()

    def show_hosts(self, hosts: Mapping[str, HostLook]) -> None:
        """How hosts stand, by name, where somebody looks after them."""
        self.touched.emit()
        self._hosts = dict(hosts)
        for name, item in self._racks.items():
            item.set_host(self._hosts.get(name))
        self._show_edge_looks()

    def show_problems(self, problems: Mapping[str, str]) -> None:
        """Sentences by replica; design marks these chips with a triangle."""
        touched = {*self._problems, *problems}
        self._problems = dict(problems)
        self._mark(touched)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to see: a page then says what to do first."""
        return not self._racks

    @property
    def is_live(self) -> bool:
        return self._states is not None

    @property
    def strategy(self) -> StrategyKind:
        return self._kind

    @property
    def wiring(self) -> Wiring:
        """What its lines stand for."""
        return self._wiring

    @property
    def has_edges(self) -> bool:
        return bool(self._edges) or self._trunk is not None

    @property
    def has_groups(self) -> bool:
        """Whether replicas act in groups."""
        return bool(self._traffic.groups)

    @property
    def names(self) -> list[str]:
        """All replicas, in the plan's order."""
        return list(self._chips)

    @property
    def hosts(self) -> list[str]:
        """Hosts with a rack, in the order of their racks."""
        return [key for key in self._racks if key != TRAY]

    def chip(self, name: str) -> ChipContent | None:
        return self._chips.get(name)

    def described(self, name: str) -> str:
        """A replica in words."""
        look = self._states.get(name) if self._states is not None else None
        return words.described(self._chips[name], look, self._problems.get(name, ""))

    # Selection

    @property
    def selection(self) -> list[str]:
        return list(self._selection)

    def set_selection(self, names: Iterable[str]) -> None:
        """Selects these replicas and no others."""
        if self.preview_selection(names):
            self.selection_changed.emit(list(self._selection))
            self.looks_changed.emit()

    def preview_selection(self, names: Iterable[str]) -> bool:
        """Shows a selection without telling anybody, while a gesture goes on. Whether it is another."""
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
        """After a preview: the selection as it stands now is meant."""
        self.selection_changed.emit(list(self._selection))
        self.looks_changed.emit()

    def set_hovered(self, name: str) -> None:
        if name != self._hovered:
            touched = {self._hovered, name}
            self._hovered = name
            self._mark(touched)

    @property
    def focused(self) -> str:
        """The replica that the keyboard is on, else ""."""
        return self._focused if self._focused in self._chips else ""

    def set_focused(self, name: str) -> None:
        if name != self._focused:
            touched = {self._focused, name}
            self._focused = name
            self._mark(touched)

    def set_lifted(self, names: Iterable[str]) -> None:
        """These are being dragged: their chips fade."""
        lifted = frozenset(names)
        touched = lifted ^ self._lifted
        self._lifted = lifted
        self._mark(touched)

    def set_target(self, target: str | None, fits: bool = True) -> None:
        """Marks the rack or slot where a drop would go ("gpu-b", "gpu-b:2", "" for the planner's choice)."""
        host, _, gpu = target.partition(":") if target else ("", "", "")
        rect = self.rect_of_slot(host, int(gpu)) if gpu.isdigit() else self.rect_of_rack(host)
        self.mark.aim(rect, fits=fits, slot=bool(gpu))

    # Where things are, in the scene's coordinates

    def rect_of(self, name: str) -> QRectF:
        """A replica's chip (its first piece); empty where it is not drawn."""
        chip = self._chips.get(name)
        item = self._racks.get(chip.host) if chip is not None else None
        boxes = item.pieces(name) if item is not None else ()
        return QRectF(*boxes[0]).translated(item.pos()) if item is not None and boxes else QRectF()

    def rect_of_rack(self, host: str) -> QRectF:
        item = self._racks.get(host)
        if item is None:
            return QRectF()
        return QRectF(item.x(), item.y(), item.content.layout.width, item.content.layout.height)

    def rect_of_slot(self, host: str, gpu: int) -> QRectF:
        item = self._racks.get(host)
        if item is None or gpu not in item.content.layout.slots:
            return QRectF()
        return QRectF(*item.content.layout.slots[gpu]).translated(item.pos())

    def chip_boxes(self) -> dict[str, Box]:
        """Every drawn replica's chip."""
        boxes = {}
        for name in self._chips:
            rect = self.rect_of(name)
            if not rect.isNull():
                boxes[name] = Box(rect.x(), rect.y(), rect.width(), rect.height())
        return boxes

    def replica_at(self, point: QPointF) -> str:
        item = self._rack_at(point)
        return item.chip_at(point.x() - item.x(), point.y() - item.y()) if item is not None else ""

    def replicas_in(self, rect: QRectF) -> list[str]:
        """Replicas with any part of their chips in there."""
        box = Box(rect.x(), rect.y(), rect.width(), rect.height())
        found = []
        for item in self._racks.values():
            here = box.moved(-item.x(), -item.y())
            if here.meets(Box(0, 0, item.content.layout.width, item.content.layout.height)):
                names = (chip.name for chip in item.content.chips)
                found += [name for name in names if any(piece.meets(here) for piece in item.pieces(name))]
        return found

    def target_at(self, point: QPointF) -> str:
        """What a drop there pins to: "gpu-b:2" on a slot, "gpu-b" on a rack, "" elsewhere: the planner's choice."""
        x, y = point.toTuple()
        cell = self._grid.cell_at(x, y)
        if cell is None or cell.key == TRAY:
            return ""
        left, top, _, _ = cell.box
        slot = self._racks[cell.key].slot_at(x - left, y - top)
        return cell.key if slot is None else f"{cell.key}:{slot}"

    def content_rect(self) -> QRectF:
        """All racks and edges."""
        rect = QRectF(*around(cell.box for cell in self._grid.cells))
        lines: list[QGraphicsItem] = [*self._edges, *([self._trunk] if self._trunk is not None else [])]
        for line in lines:
            rect = rect.united(line.boundingRect())
        return rect

    # What the view tells

    def set_room(self, room: QSizeF) -> None:
        """The view's size at zoom 1: as many columns as show racks largest there."""
        self.touched.emit()
        self._room = room
        self._arrange()

    def set_zoom(self, zoom: float) -> None:
        self.touched.emit()
        self._zoom = zoom
        self._edge_layer.setVisible(level_of(zoom) is not Level.TILE)
        for item in self._racks.values():
            item.set_zoom(zoom)

    def helpEvent(self, event: QGraphicsSceneHelpEvent) -> None:
        QToolTip.showText(event.screenPos(), self.told_at(event.scenePos()), event.widget())

    def told_at(self, point: QPointF) -> str:
        """What a tool tip there says: of a replica, a slot, or a rack whose header may be cut."""
        name, item = self.replica_at(point), self._rack_at(point)
        if name or item is None:
            return self.described(name) if name else ""
        return item.told_at(point.x() - item.x(), point.y() - item.y())

    # Inside

    def _layer(self, parent: QGraphicsItem | None, height: float) -> QGraphicsRectItem:
        layer = QGraphicsRectItem(parent)
        layer.setFlag(QGraphicsItem.GraphicsItemFlag.ItemHasNoContents)
        layer.setZValue(height)
        if parent is None:
            self.addItem(layer)
        return layer

    def _rack_at(self, point: QPointF) -> RackItem | None:
        cell = self._grid.cell_at(point.x(), point.y())
        return self._racks[cell.key] if cell is not None else None

    def _take_racks(self, contents: Sequence[RackContent]) -> None:
        keys = {content.key for content in contents}
        for key in [key for key in self._racks if key not in keys]:
            self.removeItem(self._racks.pop(key))
        racks = {}
        for content in contents:
            item = self._racks.get(content.key)
            if item is None:
                item = RackItem(content)
                item.set_states(self._states)
                item.set_host(self._hosts.get(content.key))
                item.set_zoom(self._zoom)
                item.setParentItem(self.ground)
            else:
                item.set_content(content)
            racks[content.key] = item
        self._racks = racks
        self._mark(self._chips)

    def _arrange(self) -> None:
        heights = {key: item.content.layout.height for key, item in self._racks.items()}
        # The same hosts in the same room keep their columns, however high a rack became: nothing jumps in a gesture.
        occasion = (tuple(heights), self._room.width(), self._room.height())
        if occasion != self._occasion:
            self._occasion = occasion
            self._columns = best_columns(list(heights.values()), self._room.width(), self._room.height())
        columns = self._columns
        grid = arrange(heights, columns)
        if grid != self._grid:
            self._grid = grid
            for cell in grid.cells:
                self._racks[cell.key].setPos(cell.box.x, cell.box.y)
            self._lay_edges()
            self.arranged.emit()
        else:
            self._lay_edges()

    def _lay_edges(self) -> None:
        if (self._grid, self._wiring) != self._routed[:2]:
            self._routed = self._grid, self._wiring, lay(self._grid, self._wiring)
        lines = self._routed[2]
        labelled = _labelled(lines.hops) if self._wiring.neighbours else None
        for edge in self._edges[len(lines.hops) :]:
            self.removeItem(edge)
        del self._edges[len(lines.hops) :]
        for hop in lines.hops[len(self._edges) :]:
            edge = EdgeItem(hop)
            edge.setParentItem(self._edge_layer)
            self._edges.append(edge)
        for edge, hop in zip(self._edges, lines.hops, strict=True):
            edge.set_hop(hop, self._wiring.label if hop is labelled else ())
        self._lay_trunk(lines)
        self._show_edge_looks()

    def _lay_trunk(self, lines: Lines) -> None:
        wiring = self._wiring
        if lines.trunk is None:
            if self._trunk is not None:
                self.removeItem(self._trunk)
                self._trunk = None
            return
        label = (*wiring.label, words.edges(wiring.count)) if wiring.count else wiring.label
        how = {"thick": bool(wiring.count), "dashed": not wiring.in_step}
        if self._trunk is None:
            self._trunk = TrunkItem(lines.trunk, label, **how)
            self._trunk.setParentItem(self._edge_layer)
        else:
            self._trunk.set_trunk(lines.trunk, label, **how)

    def _show_edge_looks(self) -> None:
        self.touched.emit()
        if not self.has_edges:
            return
        chosen = {self._chips[name].host for name in self._selection}
        unknown = {key for key, item in self._racks.items() if self._is_unknown(item)}
        for edge in self._edges:
            ends = {edge.hop.source, edge.hop.target}
            edge.set_look(bool(ends & chosen), bool(ends & unknown))
        if self._trunk is not None:
            self._trunk.set_look(chosen, unknown)

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
            )
            self._racks[chip.host].set_mark(name, state)

    def _take_theme(self) -> None:
        self.touched.emit()
        for item in (*self._racks.values(), *self._edges):
            item.update()
        if self._trunk is not None:
            self._trunk.update()
        self.update()


def _labelled(hops: Sequence[Hop]) -> Hop | None:
    """The hop that a pill has most room on: it lies across rather than up and down, and is a neighbour's."""
    exchanging = [hop for hop in hops if not hop.look.thin]
    return max(exchanging, key=lambda hop: abs(arrow_at(hop.points)[1][0]), default=None)
