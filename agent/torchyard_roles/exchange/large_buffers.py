"""Tensors in huge pages, for values that are exchanged as a whole.

Ordinary memory is mapped page by page (4 KiB) when it is first written. For 60 MB, this mapping takes longer than
copying the values, and every later pass over the values is slower too.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

LARGE_BYTES = 4 * 1024 * 1024
"""Smallest size in bytes of a tensor that gets huge pages (of 2 MiB each)."""


def zeros(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a one-dimensional tensor of zeros on the CPU, in huge pages if it has at least LARGE_BYTES."""
    size = elements * dtype.itemsize
    if size < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(elements, dtype=dtype, device="cpu")
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # The kernel may have been built without huge pages.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)
