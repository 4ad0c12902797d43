"""Programs that are on a GPU because a monitor is."""

from __future__ import annotations

DRAW_THE_SCREEN = frozenset(
    {"X", "Xorg", "Xwayland", "gnome-shell", "mutter", "kwin_x11", "kwin_wayland", "plasmashell", "sway", "weston"}
)
"""Who trains there shares it with them; they are nobody's use of it."""
