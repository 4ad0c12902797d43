"""A rack zoomed far out: a tile with the host's name and a cell for each slot and CPU replica. Pure geometry."""

from __future__ import annotations

from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.content import RackContent

NAME_HEIGHT = 17
"""Of the name, in pixels on the screen."""
PAD = 5
GAP = 1.5
NO_NAME_BELOW = 0.12
"""Zoom below which names could not be read and cells take their room."""
ACROSS = 4


def cells(rack: RackContent, zoom: float) -> list[tuple[str, Box]]:
    """Each slot's and CPU replica's cell in the rack's coordinates, with its replica's name or ""."""
    of_gpu = {gpu: chip.name for chip in rack.chips for gpu in chip.gpus}
    names = [of_gpu.get(gpu, "") for gpu in rack.layout.slots]
    names += [chip.name for chip in rack.chips if not chip.gpus or rack.is_tray]
    if not names:
        return []
    pad, gap = PAD / zoom, GAP / zoom
    top = (NAME_HEIGHT + 2) / zoom if zoom >= NO_NAME_BELOW else pad
    across = min(len(names), ACROSS) if len(names) <= 4 * ACROSS else -(-len(names) // 4)
    rows = -(-len(names) // across)
    width = (rack.layout.width - 2 * pad + gap) / across
    height = max((rack.layout.height - top - pad + gap) / rows, gap)
    return [
        (
            name,
            Box(pad + at % across * width, top + at // across * height, max(width - gap, 0), max(height - gap, 0)),
        )
        for at, name in enumerate(names)
    ]
