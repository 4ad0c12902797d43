"""What keys do on the canvas: a table, so that the view stays short. Codes, not letters: input methods may be on."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent

from torchyard_gui.canvas.neighbours import Direction

Key = Qt.Key
PLAIN = Qt.KeyboardModifier.NoModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier
CONTROL = Qt.KeyboardModifier.ControlModifier
IGNORED = Qt.KeyboardModifier.KeypadModifier

ARROWS: dict[int, Direction] = {
    Key.Key_Left: "left",
    Key.Key_Right: "right",
    Key.Key_Up: "up",
    Key.Key_Down: "down",
}

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
"""Names of the view's methods."""


def command_of(event: QKeyEvent) -> str:
    """The view's method that a key stands for, else ""."""
    modifiers = event.modifiers() & ~IGNORED
    return next((name for (key, held), name in COMMANDS.items() if event.key() == key and modifiers == held), "")
