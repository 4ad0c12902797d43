"""Detection of a graphical display."""

from __future__ import annotations

import os
import sys

from torchyard_core.errors import UsageError


def require_display() -> None:
    """Raises UsageError if no window can be shown.

    Windows and macOS always have a display. On other systems, DISPLAY, WAYLAND_DISPLAY or QT_QPA_PLATFORM must be set.
    """
    if sys.platform in ("win32", "darwin"):
        return
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")):
        message = "there is no display on which the window could open."
        raise UsageError(message, code="no_display", hint="Log in with `ssh -X`, or use the command `torchyard`.")
