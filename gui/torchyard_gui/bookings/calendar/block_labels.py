"""What stands in a block, as far as there is room: its title; person, GPUs and end; the person; an initial. No Qt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Measure = Callable[[str, bool], float]
"""How wide a text is; bold where True."""
LINE_HEIGHT = 15
READABLE = 42
"""Less of a title than this is no title."""


@dataclass(frozen=True)
class Label:
    """`title` is bold; `more` stands below it, or alone. `outside` goes beside a block that is too narrow for it."""

    title: str = ""
    more: str = ""
    initial: str = ""
    outside: str = ""


def label_for(
    width: float, height: float, title: str, person: str, gpus: str, ends: str, beside: float, measure: Measure
) -> Label:
    """`width`, `height`: what is free inside; `beside`: what is free to the right of the block."""
    two_lines = height >= 2 * LINE_HEIGHT + 2
    below = _longest(width, (f"{person} · {gpus} · {ends}", f"{person} · {gpus}", person), measure)
    if measure(title, True) <= width:
        if two_lines:
            return Label(title, below)
        rest = _longest(width - measure(title, True) - 8, (f"{person} · {ends}", person), measure)
        return Label(title, rest)
    initial = person[:1]
    if width >= READABLE and (two_lines or not below):
        return Label(title, below if two_lines else "")
    fits = initial if initial and measure(initial, True) <= width else ""
    if beside >= READABLE:
        return Label("", "", fits, title)
    return Label("", below) if below else Label("", "", fits)


def _longest(width: float, texts: tuple[str, ...], measure: Measure) -> str:
    return next((text for text in texts if measure(text, False) <= width), "")
