"""What each rank keeps of its own beside the chief's checkpoint: its random numbers, and where it is in its data.

A rank that is in no torch world with the chief keeps more (`of_script`), since nobody can send it the chief's.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from torchyard_roles.checkpoints.plain import copied


def random_state(device: torch.device) -> dict[str, Any]:
    """Of every generator that a script commonly draws from; numpy's only where the script has imported it."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = [kind, [int(key) for key in keys], *(float(number) for number in rest)]
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """As random_state() gave it; what was saved on another kind of device is left alone."""
    torch.set_rng_state(state["torch"])
    random.setstate(_tuples(state["python"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if "numpy" in state:
        try:
            import numpy
        except ImportError:  # it was there where this was saved; a script that needs it will say so itself
            return
        kind, keys, position, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), int(position), int(has_gauss), gauss))


def of_script(stateful: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the script makes anew when it is started again: the optimizer, and the objects of checkpoint()."""
    return {
        "stateful": {name: copied(each.state_dict(), name) for name, each in stateful.items()},
        "optimizer": copied(optimizer.state_dict(), "the optimizer's state"),
    }


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value
