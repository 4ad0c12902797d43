"""State as plain data: copied off the training's own tensors, and of kinds that can be read without running code."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from torchyard_roles.errors import UsageProblem

_SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def copied(value: Any, where: str) -> Any:
    """The same state in memory of its own on the CPU: training may go on while it is written.

    `where` names it for messages. Raises UsageProblem for what weights_only loading would refuse later.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in _SCALARS:
        return value
    if isinstance(value, dict):
        return _copied_dict(value, where)
    if type(value) in (list, tuple, set):
        return type(value)(copied(each, f"{where}[{number}]") for number, each in enumerate(value))
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # numpy's scalars
        return value.item()
    raise UsageProblem(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold.",
        "Its state_dict() may have tensors, numbers, texts, and lists and dicts of them.",
    )


def _copied_dict(value: dict[Any, Any], where: str) -> dict[Any, Any]:
    copy: dict[Any, Any] = OrderedDict() if isinstance(value, OrderedDict) else {}
    for key, each in value.items():
        copy[key] = copied(each, f"{where}[{key!r}]")
    metadata = getattr(value, "_metadata", None)  # of a module's state_dict: the versions of its buffers
    if metadata is not None:
        copy._metadata = _copied_dict(metadata, where)  # type: ignore[attr-defined]  # as torch itself does it
    return copy
