"""A pair of a sharded model and its optimizer, with a copy of the whole parameters for the parameter servers.

Parameter servers exchange whole parameters. Therefore the first rank of a worker group that shards its model has a copy
of the whole parameters on the CPU, and the strategy that exchanges with the servers gets this copy instead of the
model. Values are gathered and distributed one parameter after another, by collective calls of all ranks of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchyard_roles.checkpoints.sharded_tensors import set_from_first_rank, whole_values
from torchyard_roles.errors import UsageProblem
from torchyard_roles.strategies.finite_gradients import FiniteGradients
from torchyard_roles.strategies.parameter_check import are_alike, is_same
from torchyard_roles.strategies.parameter_server import remote_optimizer
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy
from torchyard_roles.strategies.sharded.buffer_sync import spread_buffers
from torchyard_roles.strategies.sharded.sharded_model import reshard


class WholeCopy:
    """A CPU copy of the whole parameters of a pair, on the group's first rank, with an optimizer for them.

    This optimizer has the same class and parameter groups as the pair's optimizer, but never steps, because the servers
    take the steps.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter]
    ) -> None:
        self.model = torch.nn.Module()
        copies: dict[int, torch.nn.Parameter] = {}
        for name, each in parameters.items():
            copies[id(each)] = torch.nn.Parameter(torch.empty(each.shape, dtype=each.dtype, device="cpu"))
            # register_parameter() accepts no names with dots, but servers identify parameters by the model's names.
            self.model._parameters[name] = copies[id(each)]
        self.parameters = list(copies.values())
        for name, buffer in model.named_buffers():
            self.model._buffers[name] = buffer  # Buffers are not sharded, so those of the model are used.
        kind: Any = type(optimizer)
        self.optimizer: Any = kind(
            [
                {**options, "params": [copies[id(each)] for each in group["params"]]}
                for group, options in zip(optimizer.param_groups, remote_optimizer.arguments(optimizer))
            ]
        )


class ShardedPair:
    """A sharded model and its optimizer, on one rank of a worker group.

    Args:
        finite: The check of the optimizer's gradients.
        device: The device that the group's collective calls use.
        is_first: Whether this is the group's first rank.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        finite: FiniteGradients,
        device: torch.device,
        *,
        is_first: bool,
    ) -> None:
        self.steps = 0
        self._model = model
        self._optimizer: Any = optimizer
        self._finite = finite
        self._skipped = finite.skipped
        self._device = device
        self._ids = self._parameter_ids()
        trained = {each for group in self._ids for each in group}
        self._parameters = {name: each for name, each in model.named_parameters() if id(each) in trained}
        self.whole = WholeCopy(model, optimizer, self._parameters) if is_first else None
        """The copy of the whole parameters, on the first rank only."""
        self._noted: list[torch.Tensor] = []
        """Copies of this rank's parts of the parameters, made after the last step."""
        self._own_step: Callable[[], None] = lambda: None

    def replace_step(self, step: Callable[[], None]) -> None:
        """Replaces the optimizer's step() by `step`. The optimizer's hooks are still called."""
        self._own_step = remote_optimizer.hand_over(self._optimizer, lambda _: step())

    def _parameter_ids(self) -> list[list[int]]:
        return [[id(each) for each in group["params"]] for group in self._optimizer.param_groups]

    def gather_values(self) -> None:
        """Gathers the parameters of all ranks in the first rank's copy. All ranks must call this method."""
        for number, parameter in enumerate(self._parameters.values()):
            values = whole_values(parameter, self._device)
            if self.whole is not None:
                self.whole.parameters[number].detach().copy_(values)

    def gather_gradients(self) -> None:
        """Gathers the gradients of all ranks in the first rank's copy.

        All ranks must call this method, and must have gradients for the same parameters.
        """
        for number, parameter in enumerate(self._parameters.values()):
            copy = self.whole.parameters[number] if self.whole is not None else None
            if parameter.grad is None:
                if copy is not None:
                    copy.grad = None
                continue
            values = whole_values(parameter.grad, self._device)
            if copy is not None:
                if copy.grad is None:
                    copy.grad = torch.empty_like(copy)
                copy.grad.copy_(values)

    def distribute_values(self) -> None:
        """Sets the parameters on all ranks to the values of the first rank's copy. All ranks must call this method."""
        reshard([self._model])
        for number, parameter in enumerate(self._parameters.values()):
            values = self.whole.parameters[number].detach() if self.whole is not None else None
            set_from_first_rank(parameter, values, self._device)
        self._note()

    def distribute_buffers(self) -> None:
        """Sets the buffers on all ranks to the first rank's values. All ranks must call this method."""
        spread_buffers([self._model], self._device)

    def prepare_step(self) -> bool:
        """Checks the parameters, unscales the gradients, and returns whether this step must be skipped.

        The result is the same on all ranks. This method must be called in the optimizer's step(), after the check for
        gradients that are not finite.

        Raises:
            UsageProblem: The script changed the values of parameters, or the list of the optimizer's parameters.
        """
        if self._parameter_ids() != self._ids:
            raise UsageProblem(
                "The optimizer has other parameters than it had in distribute(), which downpour does not support with "
                "strategy.shard.",
                "Give it all parameters before distribute(), or set strategy.shard to none.",
            )
        for name, own, noted in zip(self._parameters, self._parts(), self._noted):
            if not are_alike(own, noted) or not is_same(own, noted):
                raise UsageProblem(
                    f"The script has changed the parameter {name} outside optimizer.step(), which downpour does not "
                    "support with strategy.shard.",
                    "Set strategy.kind to all_reduce, or strategy.shard to none.",
                )
        self.steps += 1
        is_skipped, self._skipped = self._finite.skipped > self._skipped, self._finite.skipped
        found = getattr(self._optimizer, "found_inf", None)  # A GradScaler sets these attributes only during the step.
        if is_skipped or (found is not None and bool(found)):
            return True
        scale = getattr(self._optimizer, "grad_scale", None)
        if scale is not None:  # The script has not called unscale_() before the step.
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    gradient = _own_part(parameter.grad)
                    gradient.div_(scale.to(gradient.device))
        return False

    def begin(self, served: ParameterServerStrategy) -> None:
        """Begins the exchange of the copy with the servers. Only the first rank calls this method."""
        assert self.whole is not None
        served.distribute(self.whole.model, self.whole.optimizer, torch.device("cpu"))

    def exchange(self, *, skips: bool) -> None:
        """Exchanges gradients and parameters with the servers. Only the first rank calls this method.

        Args:
            skips: Whether this step is skipped. The servers must know this to complete the round.
        """
        assert self.whole is not None
        optimizer = self.whole.optimizer
        for group, options in zip(optimizer.param_groups, remote_optimizer.arguments(self._optimizer)):
            group.update(options)
        optimizer.found_inf = torch.tensor(float(skips), dtype=torch.float32, device="cpu")
        optimizer.step()

    def step_locally(self) -> None:
        """Takes a step of this rank's own optimizer. Called between two pulls."""
        self._own_step()
        self._note()

    def _note(self) -> None:
        parts = self._parts()
        if not self._noted:
            self._noted = [part.clone() for part in parts]
        for part, noted in zip(parts, self._noted):
            noted.copy_(part)

    def _parts(self) -> list[torch.Tensor]:
        return [_own_part(each) for each in self._parameters.values()]


def _own_part(tensor: Any) -> torch.Tensor:
    """Returns this rank's part of a DTensor as a tensor that shares its memory."""
    part: torch.Tensor = tensor.detach().to_local()
    return part
