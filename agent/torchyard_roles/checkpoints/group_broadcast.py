"""Broadcasts bytes from the first rank of a group, because the checkpoint may exist only on the chief's host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore

WAIT_S = 600.0
"""Longest time in seconds to wait for the first rank to read its checkpoint, in groups without torch.distributed."""
LARGEST = 64 * 1024
"""Largest size in bytes of a value that is sent through the join store."""


def is_connected(size: int) -> bool:
    """Returns whether torch.distributed connects the group, so that values of any size can be broadcast."""
    return size > 1 and dist.is_available() and dist.is_initialized() and dist.get_world_size() == size


def from_first(data: bytes | None, device: torch.device) -> bytes:
    """Returns the first rank's `data` on all ranks, using torch.distributed. Other ranks pass None."""
    place = device if dist.get_backend() == "nccl" else torch.device("cpu")
    length = torch.tensor([0 if data is None else len(data)], dtype=torch.int64, device=place)
    dist.broadcast(length, src=0)
    size = int(length.item())
    if not size:
        return b""
    if data is None:
        buffer = torch.empty(size, dtype=torch.uint8, device=place)
    else:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(place)
    dist.broadcast(buffer, src=0)
    if data is not None:
        return data
    received = buffer.cpu()
    return ctypes.string_at(received.data_ptr(), size)  # Tensor.numpy() would need numpy, which may not be installed.


def offer(versions: Iterable[bytes], store: JoinStore, key: str) -> None:
    """Stores the first of several versions of a value that is small enough for the join store.

    If all versions are too large, stores nothing.
    """
    for data in versions:
        if len(data) <= LARGEST:
            store.set(key, data)
            return


def value_from_first(value: bytes | None, store: JoinStore, key: str) -> bytes:
    """Returns the first rank's value on all ranks, using the join store (at most 64 KiB). Other ranks pass None."""
    if value is not None:
        store.set(key, value)
        return value
    return store.get(key, WAIT_S)
