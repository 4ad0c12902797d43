"""Presses the shortcuts of all commands, with the focus in the page and with the focus in the page's bar.

Each shortcut must trigger only its own command, and only once. The commands are counted and not carried out.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from PySide6.QtCore import SIGNAL, Qt
from PySide6.QtGui import QAction, QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QComboBox, QLineEdit, QWidget

from tests.window.user import User

X_NAMES = {
    "+": "plus",
    "-": "minus",
    ",": "comma",
    ".": "period",
    "Del": "Delete",
    "Esc": "Escape",
    "Enter": "KP_Enter",
}
"""X11 names of keys by Qt name, for keys whose two names differ in more than upper and lower case."""
END = "F9"
"""A key without a command, which is pressed after each shortcut. Events are handled in order, so the shortcut has been
handled when this key has been.
"""


def journey(user: User) -> None:
    window: Any = user.window
    actions: list[QAction] = user.gui(lambda: list(window.all_actions()))
    triggered: Counter[int] = Counter()
    user.gui(lambda: count_instead(user, actions, triggered))
    texts = user.gui(lambda: {number: action.text() for number, action in enumerate(actions)})
    wrong = []
    tried = 0
    for key in user.gui(lambda: window.keys):
        page = user.show_page(key)
        places = user.gui(partial(places_of, page))
        here = user.gui(lambda key=key: [*window.page_actions(key), *window.actions_.all()])
        shown = user.gui(lambda: [action.isVisible() for action in actions])  # A hidden action has no shortcut.
        for number in (number for number, action in enumerate(actions) if action in here and shown[number]):
            for sequence in user.gui(lambda number=number: [one.toString() for one in actions[number].shortcuts()]):
                for place in places:
                    press(user, place, sequence, triggered)
                    tried += 1
                    if triggered != {number: 1}:
                        found = {texts[one]: count for one, count in triggered.items()}
                        wrong.append(f"{key}: {sequence} with the focus in {place}: {found}, not {texts[number]}")
    assert not wrong, "\n".join(wrong)
    assert tried > 200


def press(user: User, place: QWidget, sequence: str, triggered: Counter[int]) -> None:
    """Presses a shortcut with the focus in a widget, and waits until it has been handled."""
    user.gui(place.setFocus)
    user.expect(
        lambda: place is (focus := QApplication.focusWidget()) or place.isAncestorOf(focus), f"focus in {place}"
    )
    triggered.clear()
    user.key(x_name(sequence), END)
    user.expect(lambda: triggered.pop(-1, 0), f"{sequence} is handled")


def count_instead(user: User, actions: list[QAction], triggered: Counter[int]) -> None:
    """Replaces the effect of each action by a count of how often it is triggered."""
    for number, action in enumerate(actions):
        assert action.receivers(SIGNAL("triggered(bool)")), f"{action.text()} does nothing"
        action.triggered.disconnect()
        action.triggered.connect(lambda _=False, number=number: triggered.update([number]))
        action.setEnabled(True)
        action.enabledChanged.connect(partial(keep_enabled, action))
    end = QShortcut(QKeySequence(END), user.window)
    end.setContext(Qt.ShortcutContext.ApplicationShortcut)
    end.activated.connect(lambda: triggered.update([-1]))


def keep_enabled(action: QAction, is_enabled: bool) -> None:
    if not is_enabled:
        action.setEnabled(True)


def places_of(page: Any) -> list[QWidget]:
    """Returns the widgets that get the focus: the page, and the first focusable part of its bar that is not a text
    field.
    """
    parts = (one for one in page.bar.findChildren(QWidget) if one.isVisible() and one.isEnabled())
    return [page, *[one for one in parts if one.focusPolicy() & Qt.FocusPolicy.TabFocus and not is_text(one)][:1]]


def is_text(widget: QWidget) -> bool:
    return isinstance(widget, QLineEdit | QComboBox)


def x_name(sequence: str) -> str:
    """Returns a key sequence such as `Ctrl+Shift+N` in the notation of xdotool, `Ctrl+Shift+n`."""
    *modifiers, key = sequence.replace("++", "+plus").split("+") if sequence != "+" else [sequence]
    return "+".join([*modifiers, X_NAMES.get(key, key.lower() if len(key) == 1 else key)])
