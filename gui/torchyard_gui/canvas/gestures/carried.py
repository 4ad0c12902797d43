"""What a drag from the palette carries: a role, a host, a preset or a machine type, each as its key in UTF-8."""

from __future__ import annotations

from PySide6.QtCore import QMimeData

ROLE_MIME = "application/x-torchyard-role"
HOST_MIME = "application/x-torchyard-host"
PRESET_MIME = "application/x-torchyard-preset"
MACHINE_MIME = "application/x-torchyard-machine"


def carried(data: QMimeData, kind: str) -> str:
    """The key of that kind in a drag, else ""."""
    return bytes(data.data(kind).data()).decode("utf-8", "replace") if data.hasFormat(kind) else ""
