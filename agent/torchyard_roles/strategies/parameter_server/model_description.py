"""What a worker says of its model and optimizer: what a server needs for it, and how one's differs from the chief's.

layout       the fingerprint of the parameters (layout.Layout)
optimizer    the class's name under torch.optim
options      its arguments, a parameter group each
chunk_bytes  of a message; None where the layout chooses
rows         bytes of buffers and of frozen parameters
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchyard_roles.exchange.parameter_layout import Chunk, Layout
from torchyard_roles.strategies.parameter_server import messages, remote_optimizer

KEPT = ("layout", "options", "optimizer", "chunk_bytes", "rows", "whole_rows")
"""What stays of the chief's. `rows`: those that come to this server, and `whole_rows`: that there are, whichever
server they come to."""


def row_sizes(said: dict[str, Any]) -> dict[str, int]:
    """Bytes of buffers and of frozen parameters. Raises ValueError."""
    sizes = {name: int(said["rows"][name]) for name in ("buffers", "constants")}
    if min(sizes.values()) < 0:
        raise ValueError(f"rows of {sizes} bytes")
    return sizes


def kept(said: dict[str, Any], rows: dict[str, int]) -> dict[str, Any]:
    """What stays of the chief's description on a server that `rows` come to."""
    whole = {**said, "rows": rows, "whole_rows": row_sizes(said)}
    return {name: whole.get(name) for name in KEPT}


def needs(
    said: dict[str, Any], rows: dict[str, int], chunks: Sequence[Chunk], workers: int, groups: int
) -> dict[str, int]:
    """Bytes that these chunks take on a server, by what for."""
    size = sum(chunk.bytes for chunk in chunks)
    largest = max((chunk.bytes for chunk in chunks), default=0)
    return {
        "parameters": 2 * size,
        "gradients": min(size, messages.IN_FLIGHT * largest) * workers,
        "optimizer": remote_optimizer.state_bytes(said["optimizer"], size),
        "buffers": groups * rows["buffers"],
        "frozen parameters": rows["constants"],
    }


def difference(chiefs: dict[str, Any], layout: Layout, said: dict[str, Any], other: Layout) -> str:
    """How another worker's differs, in words that follow "it"; empty where it does not."""
    found = layout.difference(other)
    if found:
        return found
    if said["optimizer"] != chiefs["optimizer"]:
        return f"has the optimizer {said['optimizer']} where the chief's has {chiefs['optimizer']}"
    for name, size in row_sizes(said).items():
        if size != chiefs["whole_rows"][name]:
            what = "frozen parameters" if name == "constants" else name
            return f"has {size} bytes of {what} where the chief's has {chiefs['whole_rows'][name]}"
    return ""
