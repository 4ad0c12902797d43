"""Compares the models and optimizers of all trainers through the join store, before training.

Each trainer describes its model and optimizer in lines of `name: description`. The chief publishes its description, and
the others compare their own descriptions with it. A worker whose description differs reports the difference and exits.
A gang begins to train only if the descriptions of all its ranks are equal.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from typing import TYPE_CHECKING, Any

from torchyard_roles.environment import Environment
from torchyard_roles.errors import StoreTimeout, UsageProblem

if TYPE_CHECKING:
    import torch

    from torchyard_roles.coordination.join_store_client import JoinStore

AGREE_WITHIN_S = 600.0
"""Longest time in seconds between the first and the last trainer's call of distribute().

Scripts may load their data before this call.
"""
PART = 60 * 1024
"""The number of bytes of a compressed description that are stored as one value in the join store."""
LATER_S = 2.0
"""Time in seconds by which the other ranks wait longer than the first rank.

The first rank must time out first, because only its error message can name the missing ranks.
"""


def describe(model: torch.nn.Module, optimizer: Any, **more: Any) -> str:
    """Returns the description that must be equal on all trainers.

    The description contains the parameters and buffers in order, the optimizer, and `more`.

    Args:
        more: Further JSON values by name, such as the options of the strategy.
    """
    from torchyard_roles.model_optimizer_pairs import names_of

    group_of = {
        id(parameter): number for number, group in enumerate(optimizer.param_groups) for parameter in group["params"]
    }
    lines: list[str] = []
    for name, parameter in model.named_parameters():
        words = [_shape_and_dtype(parameter)]
        if not parameter.requires_grad:
            words.append("frozen")
        elif id(parameter) not in group_of:
            words.append("in no parameter group")
        elif len(optimizer.param_groups) > 1:
            words.append(f"in parameter group {group_of[id(parameter)]}")
        lines.append(f"{name}: {', '.join(words)}")
    lines += [f"{name}: {_shape_and_dtype(buffer)}, a buffer" for name, buffer in model.named_buffers()]
    lines.append(f"the optimizer: {names_of(optimizer)}")
    for number, group in enumerate(optimizer.param_groups):
        where = f" of parameter group {number}" if len(optimizer.param_groups) > 1 else ""
        for option in sorted(set(group) - {"params"}):
            lines.append(f"the optimizer's {option}{where}: {_plain(group[option])}")
    lines += [f"{name}: {_plain(value)}" for name, value in sorted(more.items())]
    return "\n".join(lines)


def _shape_and_dtype(tensor: torch.Tensor) -> str:
    shape = "×".join(str(size) for size in tensor.shape) or "one number"
    return f"{shape} {str(tensor.dtype).partition('.')[2]}"


def _plain(value: Any) -> str:
    if hasattr(value, "tolist"):  # An optimizer setting such as the learning rate may be a tensor.
        value = value.tolist()
    return json.dumps(value, sort_keys=True, default=lambda other: type(other).__name__)


def agree(
    store: JoinStore, environment: Environment, fingerprint: str, within_s: float = AGREE_WITHIN_S, *, number: int = 0
) -> None:
    """Compares this trainer's description with the chief's, and waits until all trainers of the gang have done so.

    Args:
        fingerprint: This trainer's description, as returned by describe().
        within_s: The longest wait in seconds.
        number: The number of the distribute() call, the same on all trainers.

    Raises:
        UsageProblem: This trainer's description differs from the chief's. The message names the first difference.
        StoreTimeout: A trainer did not call this function in time. On the gang's first rank, the message names that
            trainer.
    """
    if environment.rank is None:
        raise ValueError("only trainers are compared")
    by = time.monotonic() + within_s
    # In synchronous strategies all trainers restart together, so each generation repeats the comparison.
    scope = f"agree/trainers/{environment.generation}" if environment.gang == "trainers" else "agree/run"
    if number:
        scope += f"/call-{number}"
    if environment.attempt:
        # The other trainers made the comparison earlier. A returning chief uses the description that it published at
        # that time.
        _compare(store, scope, environment, fingerprint, by, within_s)
        return
    if environment.rank == 0:
        _publish(store, scope, fingerprint)
    else:
        _compare(store, scope, environment, fingerprint, by, within_s)
    _meet(store, environment, by, within_s, number)


def difference(mine: str, chiefs: str) -> str:
    """Returns the first difference between two descriptions as a clause, or "" if they are equal."""
    here, there = _by_name(mine), _by_name(chiefs)
    for name, words in here.items():
        if name not in there:
            return f"{_called(name)} ({words}) exists here, but not there"
        if words != there[name]:
            return f"{_called(name)} is {words} here and {there[name]} there"
    for name, words in there.items():
        if name not in here:
            return f"{_called(name)} ({words}) exists there, but not here"
    for one, other in zip(here, there):
        if one != other:
            return f"{_called(one)} is here at the position of {_called(other)} there"
    return ""


def _by_name(description: str) -> dict[str, str]:
    lines = (line.partition(": ") for line in description.splitlines())
    return {name: words for name, _, words in lines}


def _called(name: str) -> str:
    return name if name.startswith("the ") else f"`{name}`"


def _publish(store: JoinStore, scope: str, fingerprint: str) -> None:
    packed = zlib.compress(fingerprint.encode())
    parts = [packed[start : start + PART] for start in range(0, len(packed), PART)]
    for number, part in enumerate(parts):
        store.set(f"{scope}/part/{number}", part)
    store.set(scope, json.dumps({"sha256": _digest(fingerprint), "parts": len(parts)}).encode())


def _compare(
    store: JoinStore, scope: str, environment: Environment, fingerprint: str, by: float, within_s: float
) -> None:
    try:
        published = json.loads(store.get(scope, max(0.0, by - time.monotonic())))
    except StoreTimeout as timeout:
        raise _did_not_come([_name_of(environment, 0)], within_s) from timeout
    if published["sha256"] == _digest(fingerprint):
        return
    packed = b"".join(store.get(f"{scope}/part/{number}", 10.0) for number in range(int(published["parts"])))
    differs = difference(fingerprint, zlib.decompress(packed).decode())
    chiefs = "that of the workers to which it returns" if environment.attempt else "the chief's"
    raise UsageProblem(
        f"{environment.name}'s model differs from {chiefs}: {differs}.",
        "Every trainer must build the same model and optimizer: check whether the script depends on the rank, or on "
        "files that differ between hosts.",
    )


def _meet(store: JoinStore, environment: Environment, by: float, within_s: float, number: int) -> None:
    """Waits for all ranks of the gang. The error on the gang's first rank names the missing ranks, if any."""
    if environment.group_size == 1:
        return
    scope = f"agree/{environment.gang}/{environment.generation}/met" + (f"-{number}" if number else "")
    ranks = range(environment.group_size)
    left_s = max(0.0, by - time.monotonic())
    if environment.group_rank > 0:
        store.set(f"{scope}/{environment.group_rank}", b"")
        try:
            store.get(scope, left_s + LATER_S)
        except StoreTimeout as timeout:
            raise StoreTimeout(
                f"The trainers of {environment.gang} did not all arrive within {within_s:g} s."
            ) from timeout
        return
    keys = {rank: f"{scope}/{rank}" for rank in ranks[1:]}
    try:
        store.wait(keys.values(), left_s)
    except StoreTimeout as timeout:
        first_rank = environment.rank or 0
        missing = [_name_of(environment, first_rank + rank) for rank, key in keys.items() if store.try_get(key) is None]
        raise _did_not_come(missing, within_s) from timeout
    store.set(scope, b"")


def _did_not_come(names: list[str], within_s: float) -> StoreTimeout:
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return StoreTimeout(f"{listed} did not call distribute() within {within_s:g} s.")


def _name_of(environment: Environment, rank: int) -> str:
    """Returns the name of the trainer process with this rank, as in `Environment.name`, if the process is listed."""
    listed = environment.peers.trainer_process(rank)
    return listed[0] if listed else f"rank {rank}" if rank else "the chief"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
