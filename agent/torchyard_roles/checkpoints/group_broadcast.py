"""Bytes from the first rank of a group to all of it: a run's checkpoint may lie on the chief's host alone."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore

WAIT_S = 600.0
"""For the first rank to have read its checkpoint, where the store and not a collective brings it."""

LARGEST = 64 * 1024
"""Bytes of a value in the join store."""


def is_connected(size: int) -> bool:
    """Whether the group is a torch world, so that whatever size can be shared in it."""
    return size > 1 and dist.is_available() and dist.is_initialized() and dist.get_world_size() == size


def from_first(data: bytes | None, device: torch.device) -> bytes:
    """The first rank's `data` on every rank of a torch world; the others give None."""
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
    return ctypes.string_at(received.data_ptr(), size)  # not by numpy, which torch can do without


def offer(versions: Iterable[bytes], store: JoinStore, key: str) -> None:
    """Leave in the join store, for those who lack it, the first version that is small enough."""
    for data in versions:
        if len(data) <= LARGEST:
            store.set(key, data)
            return


def word_from_first(word: bytes | None, store: JoinStore, key: str) -> bytes:
    """The same for a short word (≤ 64 KiB), by the join store, where the group is no torch world."""
    if word is not None:
        store.set(key, word)
        return word
    return store.get(key, WAIT_S)
