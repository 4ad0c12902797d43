"""The state that each rank saves in addition to the chief's checkpoint: random states and positions in the data.

A rank outside the chief's process group also saves the optimizer and the script's objects (`of_script`), because the
rank cannot receive the chief's objects when the run resumes.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from typing import Any

import torch

from torchyard_roles.errors import UsageProblem


def random_state(device: torch.device) -> dict[str, Any]:
    """Returns the states of the random generators of torch (also of the GPU `device`), Python and numpy.

    The state of numpy is omitted if numpy is not imported.
    """
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = [kind, [int(key) for key in keys], *(float(number) for number in rest)]
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restores a state that random_state() returned.

    A GPU's state is ignored if `device` is of a different type.
    """
    torch.set_rng_state(state["torch"])
    random.setstate(_tuples(state["python"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if "numpy" in state:
        try:
            import numpy
        except ImportError:  # numpy is not installed; a script that needs numpy fails anyway.
            return
        kind, keys, position, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), int(position), int(has_gauss), gauss))


def of_script(stateful: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the state of the optimizer and of the objects that were given to checkpoint()."""
    return {
        "stateful": {name: copied(each.state_dict(), name) for name, each in stateful.items()},
        "optimizer": copied(optimizer.state_dict(), "the optimizer's state"),
    }


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value


_SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def copied(value: Any, where: str) -> Any:
    """Copies a state to the CPU, so that training may continue while the copy is written. See on_cpu()."""
    return on_cpu(value, where, copy=True)


def on_cpu(value: Any, where: str, *, copy: bool) -> Any:
    """Returns a state with all tensors on the CPU, in new dicts and lists.

    Args:
        where: The name of the state in messages.
        copy: Whether tensors that are already on the CPU are copied too.

    Raises:
        UsageProblem: The state contains values that loading with weights_only would reject.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=copy)
    if type(value) in _SCALARS:
        return value
    if isinstance(value, dict):
        return _dict_on_cpu(value, where, copy=copy)
    if type(value) in (list, tuple, set):
        return type(value)(on_cpu(each, f"{where}[{number}]", copy=copy) for number, each in enumerate(value))
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # A numpy scalar is saved as a Python number.
        return value.item()
    raise UsageProblem(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold.",
        "Its state_dict() may have tensors, numbers, texts, and lists and dicts of them.",
    )


def _dict_on_cpu(value: dict[Any, Any], where: str, *, copy: bool) -> dict[Any, Any]:
    found: dict[Any, Any] = OrderedDict() if isinstance(value, OrderedDict) else {}
    for key, each in value.items():
        found[key] = on_cpu(each, f"{where}[{key!r}]", copy=copy)
    metadata = getattr(value, "_metadata", None)  # A module's state_dict() contains format versions in this attribute.
    if metadata is not None:
        found._metadata = _dict_on_cpu(metadata, where, copy=copy)  # type: ignore[attr-defined]  # torch keeps the metadata in the same attribute.
    return found
