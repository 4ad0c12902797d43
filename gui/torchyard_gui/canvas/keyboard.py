"""Keyboard input of the canvas: commands, and navigation by arrow keys.

Commands are identified by key codes, because the text of a key event depends on the input method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent

from torchyard_gui.canvas.geometry import Box

Key = Qt.Key
PLAIN = Qt.KeyboardModifier.NoModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier
CONTROL = Qt.KeyboardModifier.ControlModifier
IGNORED = Qt.KeyboardModifier.KeypadModifier

ARROWS: dict[int, Direction] = {Key.Key_Left: "left", Key.Key_Right: "right", Key.Key_Up: "up", Key.Key_Down: "down"}

COMMANDS = {
    (Key.Key_Plus, PLAIN): "zoom_in",
    (Key.Key_Plus, SHIFT): "zoom_in",
    (Key.Key_Equal, PLAIN): "zoom_in",
    (Key.Key_Minus, PLAIN): "zoom_out",
    (Key.Key_0, PLAIN): "reset",
    (Key.Key_ParenRight, SHIFT): "fit",
    (Key.Key_0, SHIFT): "fit",
    (Key.Key_Home, PLAIN): "fit",
    (Key.Key_A, CONTROL): "select_all",
    (Key.Key_Delete, PLAIN): "request_delete",
    (Key.Key_Backspace, PLAIN): "request_delete",
    (Key.Key_Return, PLAIN): "activate",
    (Key.Key_Enter, PLAIN): "activate",
}
"""The name of the canvas view's method that a key triggers, by key and modifiers."""


def command_of(event: QKeyEvent) -> str:
    """Returns the name of the canvas view's method that a key event triggers, or "" if there is none."""
    modifiers = event.modifiers() & ~IGNORED
    return next((name for (key, held), name in COMMANDS.items() if event.key() == key and modifiers == held), "")


Direction = Literal["left", "right", "up", "down"]

ASIDE = 3.0
"""Weight of the distance perpendicular to the arrow key's direction. The distance along it has weight 1."""


def neighbour(boxes: Mapping[str, Box], start: str, direction: Direction) -> str | None:
    """Returns the name of the chip that is nearest to the chip `start` in a direction, or None if there is none."""
    box = boxes[start]
    x, y = box.middle
    best: tuple[float, str] | None = None
    for name, other in boxes.items():
        if name == start:
            continue
        ox, oy = other.middle
        if direction in ("left", "right"):
            ahead = ox - x if direction == "right" else x - ox
            aside = _apart(box.y, box.bottom, other.y, other.bottom)
        else:
            ahead = oy - y if direction == "down" else y - oy
            aside = _apart(box.x, box.right, other.x, other.right) + abs(ox - x) / 1000
        if ahead < 1:
            continue
        merit = ahead + ASIDE * aside
        if best is None or merit < best[0]:
            best = merit, name
    return best[1] if best else None


def _apart(start: float, end: float, other_start: float, other_end: float) -> float:
    """Returns the length of the gap between two intervals, or 0 if they overlap."""
    return max(0.0, other_start - end, start - other_end)
