"""A worker's description of its model and optimizer, which the server compares with the chief's.

layout       the fingerprint of the parameters (parameter_layout.Layout)
optimizer    the name of the optimizer's class in torch.optim
options      the optimizer's options, one JSON object per parameter group
chunk_bytes  size of a chunk in bytes, or None if the layout determines it
rows         sizes in bytes of the buffers and of the frozen parameters
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchyard_roles.exchange.parameter_layout import Chunk, Layout
from torchyard_roles.strategies.parameter_server import messages, remote_optimizer

KEPT = ("layout", "options", "optimizer", "chunk_bytes", "rows", "whole_rows")
"""The fields of the chief's description that a server keeps.

`rows` are the sizes of the buffers and frozen parameters on this server, and `whole_rows` those of the model.
"""


def row_sizes(description: dict[str, Any]) -> dict[str, int]:
    """Returns the sizes in bytes of the buffers and of the frozen parameters. Raises ValueError if they are invalid."""
    sizes = {name: int(description["rows"][name]) for name in ("buffers", "constants")}
    if min(sizes.values()) < 0:
        raise ValueError(f"rows of {sizes} bytes")
    return sizes


def kept(description: dict[str, Any], rows: dict[str, int]) -> dict[str, Any]:
    """Returns the fields of a description that a server keeps.

    `rows` are the sizes of buffers and constants on this server.
    """
    whole = {**description, "rows": rows, "whole_rows": row_sizes(description)}
    return {name: whole.get(name) for name in KEPT}


def needs(
    description: dict[str, Any], rows: dict[str, int], chunks: Sequence[Chunk], workers: int, groups: int
) -> dict[str, int]:
    """Returns the memory in bytes that a server needs for these chunks, by the purpose of the memory."""
    size = sum(chunk.bytes for chunk in chunks)
    largest = max((chunk.bytes for chunk in chunks), default=0)
    return {
        "parameters": 2 * size,
        "gradients": min(size, messages.IN_FLIGHT * largest) * workers,
        "optimizer": remote_optimizer.state_bytes(description["optimizer"], size),
        "buffers": groups * rows["buffers"],
        "frozen parameters": rows["constants"],
    }


def difference(chiefs: dict[str, Any], layout: Layout, description: dict[str, Any], other: Layout) -> str:
    """Returns how another worker's description differs from the chief's, or "" if both are equal.

    The text is a clause whose subject "it" is the other worker's model.
    """
    found = layout.difference(other)
    if found:
        return found
    if description["optimizer"] != chiefs["optimizer"]:
        return f"has the optimizer {description['optimizer']} where the chief's has {chiefs['optimizer']}"
    for name, size in row_sizes(description).items():
        if size != chiefs["whole_rows"][name]:
            what = "frozen parameters" if name == "constants" else name
            return f"has {size} bytes of {what} where the chief's has {chiefs['whole_rows'][name]}"
    return ""
