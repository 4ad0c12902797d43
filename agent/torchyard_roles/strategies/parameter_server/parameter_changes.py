"""Detects parameters that the script changes outside optimizer.step(), for example by clamping or loading them.

Each parameter is compared bitwise with a copy that was made after the last step and is on the same device. Version
counters are not sufficient, because changes through `.data` do not increment them. Comparing and copying CPU parameters
takes 0.14 core-seconds per GB in each step.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
import zlib
from collections.abc import Sequence

import torch

from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.environment import Environment
from torchyard_roles.errors import StoreLost, StoreTimeout, UsageProblem
from torchyard_roles.strategies.parameter_check import are_alike, is_same

LAST_CHECK_S = 30.0
"""Longest time in seconds for which a group's first worker waits at the end for the other workers' checksums."""


class InstalledParameters:
    """Copies of the parameters that were made after the last step.

    Args:
        names, parameters: The names and parameters of the worker's pair. Parameters may be added later.
    """

    def __init__(self, names: Sequence[str], parameters: Sequence[torch.nn.Parameter]) -> None:
        self._names = names
        self._parameters = parameters
        self._values: list[torch.Tensor] = []

    def note(self) -> None:
        """Copies the parameters after a step, or after another update that was not made by the script.

        The version counters of changed parameters are incremented, because autograd does not notice that values were
        received into a parameter's memory. The counters of unchanged parameters are not incremented, because a graph
        may still refer to these parameters.
        """
        for number, parameter in enumerate(self._parameters):
            value = parameter.detach()
            if number == len(self._values):
                self._values.append(value.clone())
            elif not are_alike(value, self._values[number]):
                self._values[number] = value.clone()
            elif not is_same(value, self._values[number]):
                self._values[number].copy_(value)
                torch.autograd.graph.increment_version(parameter)

    def check(self) -> None:
        """Raises UsageProblem if the shape, dtype or device of a parameter has changed since note()."""
        for name, parameter, noted in zip(self._names, self._parameters, self._values):
            if not are_alike(parameter, noted):
                raise UsageProblem(
                    f"The parameter {name} was {_kind(noted)} when the last step ended, and is now {_kind(parameter)}.",
                    "Change the model's dtypes, sizes and devices before distribute().",
                )

    def changed(self) -> list[int]:
        """Returns the numbers of the parameters that have changed since note(), except those that check() would reject.

        Such parameters are ignored because a script may move or convert its model after training.
        """
        return [
            number
            for number, (parameter, noted) in enumerate(zip(self._parameters, self._values))
            if are_alike(parameter, noted) and not is_same(parameter.detach(), noted)
        ]


def reason_against_changes(environment: Environment) -> str:
    """Returns why the script must not change parameters, as the end of a sentence, or "" if it may change them."""
    options, is_asynchronous = environment.options, environment.strategy == "downpour"
    if is_asynchronous and environment.groups > 1:
        return "the change would overwrite the updates of other worker groups on the servers."
    if is_asynchronous and max(options.pull_every, options.push_every) > 1:
        return "parameters that are not exchanged in every step (push_every, pull_every) would undo the change."
    if not is_asynchronous and options.backup_workers:
        return "a step that does not wait for all workers (backup_workers) would undo the change."
    return ""


def compare_at_end(environment: Environment, pair: int, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Compares the parameters of a synchronous group's workers after the last step.

    A change that a script makes after the last step is not sent to the servers, so all workers must make the same
    change. The first worker waits at most LAST_CHECK_S for the others, and raises UsageProblem if parameters differ.
    The parameters are not compared if there are backup workers or there is no join store.
    """
    if environment.options.backup_workers > 0 or not environment.store or not environment.key:
        return
    own = str([checksum(each.detach().cpu().contiguous()) for each in parameters]).encode()
    key = f"finish/{environment.gang}/{environment.generation}/{pair}"
    store = JoinStore.of(environment)
    try:
        if environment.group_rank > 0:
            store.set(f"{key}/{environment.group_rank}", hashlib.sha256(own).digest())
            return
        deadline = time.monotonic() + LAST_CHECK_S
        for rank in range(1, environment.group_size):
            theirs = store.get(f"{key}/{rank}", max(0.0, deadline - time.monotonic()))
            if theirs != hashlib.sha256(own).digest():
                raise UsageProblem(
                    "The workers end with different parameters: after its last step, something other than "
                    "the optimizer that was passed to distribute() has changed them differently.",
                    "Pass every optimizer to distribute(), or set strategy.kind to all_reduce.",
                )
    except (StoreTimeout, StoreLost):
        print("torchyard: the workers' parameters were not compared at the end: a worker is missing.", flush=True)
    finally:
        store.close()


def checksum(values: torch.Tensor) -> int:
    """Returns the CRC-32 of a contiguous CPU tensor."""
    size = values.numel() * values.element_size()
    return zlib.crc32((ctypes.c_char * size).from_address(values.data_ptr())) if size else 0


def _kind(tensor: torch.Tensor) -> str:
    return (
        f"{'×'.join(map(str, tensor.shape)) or 'a number'} of {str(tensor.dtype).partition('.')[2]} on {tensor.device}"
    )
