"""The layer of racks, with their positions and hit tests in scene coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from PySide6.QtCore import QPointF, QRectF, QSizeF
from PySide6.QtWidgets import QGraphicsItem

from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.layout import Grid, arrange, arrange_sections, best_columns, best_shape
from torchyard_gui.canvas.racks.rack_content import TRAY, RackContent
from torchyard_gui.canvas.racks.rack_item import RackItem
from torchyard_gui.canvas.racks.section_heading import SectionHeading
from torchyard_gui.theme.tokens import METRICS as M


class RackLayer(Mapping[str, RackItem]):
    """The racks by key: first the hosts in fleet order, or the frames of groups, then the tray."""

    def __init__(self, ground: QGraphicsItem):
        self.grid = Grid(1)
        """The position of each rack."""
        self._ground = ground
        self._items: dict[str, RackItem] = {}
        self._key_of: dict[str, str] = {}
        """Key of the rack that contains a replica's chip, by replica."""
        self._room = QSizeF()
        self._occasion: tuple[tuple[str, ...], float, float] | None = None
        self._columns = 1
        self._shaped_for: tuple[object, ...] = ()
        self._shape = (1, 1)
        self.headings: dict[str, SectionHeading] = {}
        """The headings, by section."""
        self._placed_in = QSizeF()
        """The size of the view at the last arrangement."""

    def __getitem__(self, key: str) -> RackItem:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def take(self, contents: Sequence[RackContent], apply_states: Callable[[RackItem], None]) -> None:
        """Sets the racks to show. `apply_states` is called to set the current states of a new rack."""
        keys = {content.key for content in contents}
        for key in [key for key in self._items if key not in keys]:
            self._ground.scene().removeItem(self._items.pop(key))
        items = {}
        for content in contents:
            item = self._items.get(content.key)
            if item is None:
                item = RackItem(content)
                apply_states(item)
                item.setParentItem(self._ground)
            else:
                item.set_content(content)
            items[content.key] = item
        self._items = items
        self._key_of = {chip.name: content.key for content in contents for chip in content.chips}

    def set_room(self, room: QSizeF) -> None:
        """Sets the size of the view, from which `arrange` chooses the number of columns."""
        self._room = room

    def arrange(self, *, keep: bool = False) -> bool:
        """Places the racks. Returns whether a rack was added, removed, moved or resized.

        With `keep`, racks stay at their positions and new racks take free positions, unless the width of the view has
        changed.
        """
        heights = {key: item.content.layout.height for key, item in self._items.items()}
        keep = keep and self._room.width() == self._placed_in.width()
        # The number of columns changes only with the hosts or the view's size, so racks stay in place during a gesture.
        width = max((item.content.layout.width for item in self._items.values()), default=M.rack)
        room = (self._room.width(), self._room.height())
        occasion = (tuple(heights), *room)
        if occasion != self._occasion:
            best = best_columns(list(heights.values()), *room, width)
            self._columns = max(best, self._columns) if keep else best
            self._occasion = occasion
        kept = {cell.key: (cell.row, cell.column) for cell in self.grid.cells} if keep else {}
        self._placed_in = self._room
        grid = self._sectioned(heights) or arrange(heights, self._columns, kept, width)
        if grid == self.grid:
            return False
        self.grid = grid
        for cell in grid.cells:
            self._items[cell.key].setPos(cell.box.x, cell.box.y)
        self._head()
        return True

    def members(self, section: str) -> list[RackItem]:
        """Returns the racks of a section."""
        return [item for item in self._items.values() if item.content.section == section]

    def _sectioned(self, heights: Mapping[str, float]) -> Grid | None:
        """Returns the arrangement in sections, or None if the racks have no sections."""
        sections: dict[str, list[str]] = {}
        for key, item in self._items.items():
            sections.setdefault(item.content.section, []).append(key)
        if not any(sections):
            return None
        occasion = (tuple(heights), self._room.width(), self._room.height(), tuple(map(len, sections.values())))
        if occasion != self._shaped_for:
            self._shaped_for = occasion
            self._shape = best_shape(heights, sections, self._room.width(), self._room.height())
        return arrange_sections(heights, sections, self._shape)

    def _head(self) -> None:
        """Places the headings of the sections."""
        wanted = {heading.section: heading.box for heading in self.grid.headings}
        for name in [name for name in self.headings if name not in wanted]:
            self._ground.scene().removeItem(self.headings.pop(name))
        for name, box in wanted.items():
            if name not in self.headings:
                self.headings[name] = SectionHeading(name)
                self.headings[name].setParentItem(self._ground)
            self.headings[name].set_box(box)

    def holder_of(self, name: str) -> RackItem | None:
        """Returns the rack with the chip of a replica, or None if there is none."""
        return self._items.get(self._key_of.get(name, "?"))

    def rect_of(self, name: str) -> QRectF:
        """Returns the box of the first piece of a replica's chip, or an empty box if the chip is not drawn."""
        item = self.holder_of(name)
        boxes = item.pieces(name) if item is not None else ()
        return QRectF(*boxes[0]).translated(item.pos()) if item is not None and boxes else QRectF()

    def rect_of_rack(self, host: str) -> QRectF:
        item = self._items.get(host)
        if item is None:
            return QRectF()
        return QRectF(item.x(), item.y(), item.content.layout.width, item.content.layout.height)

    def rect_of_slot(self, host: str, gpu: int) -> QRectF:
        item = self._items.get(host)
        if item is None or gpu not in item.content.layout.slots:
            return QRectF()
        return QRectF(*item.content.layout.slots[gpu]).translated(item.pos())

    def rack_at(self, point: QPointF) -> RackItem | None:
        cell = self.grid.cell_at(point.x(), point.y())
        return self._items[cell.key] if cell is not None else None

    def replica_at(self, point: QPointF) -> str:
        """Returns the name of the replica at a point, or "" if there is none."""
        item = self.rack_at(point)
        return item.chip_at(point.x() - item.x(), point.y() - item.y()) if item is not None else ""

    def replicas_in(self, rect: QRectF) -> list[str]:
        """Returns the names of the replicas whose chips touch a rectangle."""
        box = Box(rect.x(), rect.y(), rect.width(), rect.height())
        found = []
        for item in self._items.values():
            here = box.moved(-item.x(), -item.y())
            if here.meets(Box(0, 0, item.content.layout.width, item.content.layout.height)):
                names = (chip.name for chip in item.content.chips)
                found += [name for name in names if any(piece.meets(here) for piece in item.pieces(name))]
        return found

    def target_at(self, point: QPointF) -> str:
        """Returns the target of a drop: "gpu-b:2" on a slot, "gpu-b" on a rack, or "" to let the planner choose.

        In the arrangement by group, the target is "trainers:1/worker-5" on a chip, "trainers:1" on a frame, or "" for a
        new group.
        """
        x, y = point.toTuple()
        cell = self.grid.cell_at(x, y)
        if cell is None or cell.key == TRAY:
            return ""
        left, top, _, _ = cell.box
        item = self._items[cell.key]
        if item.content.group is not None:
            name = item.chip_at(x - left, y - top)
            return f"{cell.key}/{name}" if name else cell.key
        slot = item.slot_at(x - left, y - top)
        return cell.key if slot is None else f"{cell.key}:{slot}"
