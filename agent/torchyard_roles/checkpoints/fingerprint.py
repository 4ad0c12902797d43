"""The fingerprint of a checkpoint: a description of the model's and optimizer's structure, without their values."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch

from torchyard_roles.model_optimizer_pairs import names_of


def fingerprint(model: torch.nn.Module, optimizer: Any) -> dict[str, Any]:
    """Returns JSON: names, dtypes and shapes of the model's tensors, and the optimizer's class and group sizes."""
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return {"entries": entries(model), "optimizer": names_of(optimizer), "groups": groups}


def entries(model: torch.nn.Module) -> list[list[Any]]:
    """Returns the name, dtype and shape of each tensor in the model's state_dict()."""
    return [
        [name, str(value.dtype).replace("torch.", ""), list(value.shape)]
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    ]


def first_difference(saved: Any, now: dict[str, Any]) -> str:
    """Returns the first difference between a saved and the current fingerprint as a clause, or "" if they are equal."""
    if not isinstance(saved, dict):
        return "it does not record its model"
    difference = first_other_entry(saved, now["entries"])
    if difference:
        return difference
    if saved.get("optimizer") != now["optimizer"]:
        return f"its optimizer is {saved.get('optimizer')}, and here it is {now['optimizer']}"
    if saved.get("groups") != now["groups"]:
        return f"its optimizer's groups have {saved.get('groups')} parameters, and here they have {now['groups']}"
    return ""


def first_other_entry(saved: Any, now: list[list[Any]]) -> str:
    """Returns the first difference between the tensors of two models as a clause, or "" if there is none.

    Args:
        saved: A saved fingerprint.
        now: The result of entries() for the current model.
    """
    for there, here in zip_longest(saved.get("entries", []), now):
        if there == here:
            continue
        if there is None:
            return f"it has no {_described(here)}, which the model has"
        if here is None:
            return f"it has {_described(there)}, which the model lacks"
        return f"it has {_described(there)} where the model has {_described(here)}"
    return ""


def _described(entry: Any) -> str:
    name, dtype, shape = entry
    return f"{name} ({dtype}, {'×'.join(map(str, shape)) or 'a number'})"
