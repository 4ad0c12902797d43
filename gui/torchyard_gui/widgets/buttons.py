"""Functions that create buttons with a style, a tool tip and an action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from PySide6.QtCore import SignalInstance
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QPushButton, QToolButton

from torchyard_gui.theme.icons import icon

Pressed = Callable[..., object] | SignalInstance | None
Look = Literal["", "primary", "quiet", "danger"]


def push_button(text: str, pressed: Pressed = None, look: Look = "", tip: str = "") -> QPushButton:
    """Returns a button with a text label. A click calls `pressed` or, if `pressed` is a signal, emits it."""
    button = QPushButton(text)
    if look:
        button.setProperty(look, True)
    button.setToolTip(tip)
    if pressed is not None:
        button.clicked.connect(pressed)
    return button


def tool_button(icon_name: str, tip: str, pressed: Pressed = None) -> QToolButton:
    """Returns a button with an icon. Its accessible name is the tool tip without the shortcut."""
    button = QToolButton()
    if icon_name:
        button.setIcon(icon(icon_name))
    button.setToolTip(tip)
    button.setAccessibleName(tip.partition(" (")[0])
    if pressed is not None:
        button.clicked.connect(pressed)
    return button


def action_button(action: QAction, text: str = "") -> QPushButton:
    """Returns a button that triggers an action. The button is enabled while the action is enabled.

    By default, the button has the text of the action.
    """
    button = push_button(text or action.text(), action.trigger, "danger" if action.property("danger") else "")
    button.setToolTip(action.toolTip())
    button.setEnabled(action.isEnabled())
    action.enabledChanged.connect(button.setEnabled)
    return button
