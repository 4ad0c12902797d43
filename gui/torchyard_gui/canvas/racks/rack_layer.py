"""The layer of racks: their positions and hit tests, in the scene's coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from PySide6.QtCore import QPointF, QRectF, QSizeF
from PySide6.QtWidgets import QGraphicsItem

from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.content import TRAY, ChipContent, RackContent
from torchyard_gui.canvas.racks.layout import Grid, arrange, best_columns
from torchyard_gui.canvas.racks.rack_item import RackItem


class RackLayer(Mapping[str, RackItem]):
    """The racks by host, and the tray, in the order of the fleet."""

    def __init__(self, ground: QGraphicsItem):
        self.grid = Grid(1)
        """The place of each rack."""
        self._ground = ground
        self._items: dict[str, RackItem] = {}
        self._room = QSizeF()
        self._occasion: tuple[tuple[str, ...], float, float] | None = None
        self._columns = 1
        self._placed_in = QSizeF()
        """The room at the last arrangement."""

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

    def set_room(self, room: QSizeF) -> None:
        """Sets the size of the view, from which `arrange` chooses the number of columns."""
        self._room = room

    def arrange(self, *, keep: bool = False) -> bool:
        """Places the racks. Returns whether a rack was added, removed or moved.

        With `keep`, racks stay at their places, and new ones take free places, as long as the view keeps its width.
        """
        heights = {key: item.content.layout.height for key, item in self._items.items()}
        keep = keep and self._room.width() == self._placed_in.width()
        # The number of columns changes only with the hosts or the view, so that racks stay in place during a gesture.
        occasion = (tuple(heights), self._room.width(), self._room.height())
        if occasion != self._occasion:
            best = best_columns(list(heights.values()), self._room.width(), self._room.height())
            self._columns = max(best, self._columns) if keep else best
            self._occasion = occasion
        kept = {cell.key: (cell.row, cell.column) for cell in self.grid.cells} if keep else {}
        self._placed_in = self._room
        grid = arrange(heights, self._columns, kept)
        if grid == self.grid:
            return False
        self.grid = grid
        for cell in grid.cells:
            self._items[cell.key].setPos(cell.box.x, cell.box.y)
        return True

    def rect_of(self, chip: ChipContent) -> QRectF:
        """Returns the box of the first piece of a replica's chip; it is empty if the chip is not drawn."""
        item = self._items.get(chip.host)
        boxes = item.pieces(chip.name) if item is not None else ()
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
        """Returns the name of the replica at a point, or ""."""
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
        """Returns the target of a drop: "gpu-b:2" on a slot, "gpu-b" on a rack, or "" to let the planner choose."""
        x, y = point.toTuple()
        cell = self.grid.cell_at(x, y)
        if cell is None or cell.key == TRAY:
            return ""
        left, top, _, _ = cell.box
        slot = self._items[cell.key].slot_at(x - left, y - top)
        return cell.key if slot is None else f"{cell.key}:{slot}"
