"""The script's own module, whatever was put around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module within DistributedDataParallel, DataParallel and what torch.compile() returns, in any order.

    Any other module is returned as it is.
    """
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    inner: Any = model
    while True:
        if isinstance(inner, (DataParallel, DistributedDataParallel)):
            inner = inner.module
        elif type(inner).__name__ == "OptimizedModule" and "_orig_mod" in inner._modules:
            inner = inner._modules["_orig_mod"]  # by its name: to import torch._dynamo takes a second
        else:
            return inner
