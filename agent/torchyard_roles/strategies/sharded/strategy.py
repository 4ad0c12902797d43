"""All-reduce with models that FSDP2 shards over the ranks of each host, or over all ranks (`strategy.shard`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree

from torchyard_roles.checkpoints.sharded_saving import ShardedSaving
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, UsageProblem
from torchyard_roles.model_optimizer_pairs import unwrap
from torchyard_roles.module_hooks import ModuleHook
from torchyard_roles.optimizer_hooks import before_step
from torchyard_roles.strategies.all_reduce import AllReduce
from torchyard_roles.strategies.finite_gradients import FiniteGradients
from torchyard_roles.strategies.sharded import sharded_model
from torchyard_roles.strategies.sharded.blocks import blocks_of, check_shardable
from torchyard_roles.strategies.sharded.buffer_sync import spread_buffers
from torchyard_roles.strategies.sharded.step_flags import StepFlags

OLDEST_TORCH = (2, 6)
_BUILD_ON_CHIEF = (
    "Build the model on the meta device on the other ranks only: "
    'with torch.device("cpu" if cluster.is_chief else "meta"): model = …'
)


class ShardedAllReduce(AllReduce):
    """The strategy `all_reduce` with sharding: each trainer has a part of parameters, gradients and optimizer state.

    The parameters of a block are gathered before its forward and backward pass, and freed afterwards. Gradients are
    averaged and split in the backward pass.
    """

    needs_optimizer = "parameters are sharded, which the optimizer's steps take into account"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._environment = environment
        self._options = environment.options
        self._device = torch.device("cpu")
        self._mesh: Any = None
        self._models: list[Any] = []
        self._flags: StepFlags | None = None
        self._synchronizes = True
        """Whether backward passes average the gradients."""
        self._accumulated = False
        """Whether gradients were accumulated that no backward pass has averaged."""

    def start(self, device: torch.device) -> None:
        check_torch()
        super().start(device)
        self._device = device
        self._mesh = mesh_of(device, hosts_of(self._environment) if self._options.shard == "host" else [])
        self.sharded_saving = ShardedSaving(self._mesh, self._gloo_group(), device)

    def _gloo_group(self) -> Any:
        """Creates a gloo group, over which a separate thread exchanges checkpoints from CPU memory."""
        self._groups.append(dist.new_group(backend="gloo"))
        return self._groups[-1]

    def prepare(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
    ) -> None:
        """Shards the models, and sets their parameters and buffers to the first rank's values.

        If the first rank's models are on the meta device, the values are loaded from a checkpoint later.
        """
        from torch.distributed.fsdp import fully_shard

        if self._models:
            raise UsageProblem(
                "distribute() was called a second time with strategy.shard.",
                "Give all models and optimizers to one call, as lists.",
            )
        plain = [unwrap(each) for each in models]
        for each in optimizers:
            if isinstance(each, torch.optim.LBFGS):
                raise UsageProblem(
                    "LBFGS computes with all parameters in one vector, so they cannot be sharded.",
                    "Use another optimizer, or set strategy.shard to none.",
                )
        blocks = [blocks_of(each, self._options.shard_modules) for each in plain]
        for model, inner in zip(plain, blocks):
            check_shardable(model, inner)
        on_meta = sharded_model.is_on_meta(plain)
        names = {id(each): name for name, each in sharded_model.named_parameters(plain).items()}
        places = [sharded_model.ParameterPlaces(each, names) for each in optimizers]
        values = sharded_model.full_values(plain) if self._rank == 0 and not on_meta else None
        settings = self._fsdp_settings()
        for model, inner in zip(plain, blocks):
            for block in reversed(inner):  # Inner blocks are sharded before the blocks that contain them.
                fully_shard(block, **settings)
            fully_shard(model, **settings)
        if on_meta:
            for model in plain:
                model.to_empty(device=torch.device("cpu") if self._options.shard_offload else device)
        self._spread(plain, values)
        parameters: dict[str, Any] = dict(sharded_model.named_parameters(plain))
        for each in places:
            each.fill(parameters)
        for model in plain:
            self._handles.append(model.register_forward_hook(ModuleHook(self._watch_backward)))
        self._models = plain
        self._flags = StepFlags(device, plain)

    def _fsdp_settings(self) -> dict[str, Any]:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

        options = self._options
        dtype = {"model": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[options.shard_dtype]
        settings: dict[str, Any] = {"mesh": self._mesh}
        if dtype is not None:
            settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        if options.shard_offload:
            settings["offload_policy"] = CPUOffloadPolicy(pin_memory=self._device.type == "cuda")
        return settings

    def _spread(self, models: Sequence[torch.nn.Module], values: dict[str, torch.Tensor] | None) -> None:
        """Sets parameters and buffers on all ranks to the first rank's values, if the first rank has values."""
        has_values = torch.tensor([values is not None], dtype=torch.int32, device=self._device)
        dist.broadcast(has_values, src=0)
        assert self.sharded_saving is not None
        self.sharded_saving.needs_values = not has_values.item()
        if has_values.item():
            sharded_model.spread_values(models, values, self._device)
            spread_buffers(models, self._device)
            return
        for model in models:
            saved = model.state_dict().keys()
            lost = [name for name, _ in model.named_buffers() if name not in saved]
            if lost:
                raise UsageProblem(
                    f"The chief's model is on the meta device, and its buffer `{lost[0]}` is in no checkpoint.",
                    _BUILD_ON_CHIEF,
                )

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Installs hooks on the optimizer of a sharded model."""
        assert self.sharded_saving is not None
        if self.sharded_saving.needs_values:
            raise UsageProblem(
                "The chief's model is on the meta device, and there is no checkpoint to load it from.",
                _BUILD_ON_CHIEF,
            )
        self._handles.append(before_step(optimizer, self._before_step))
        self.watch_gradients(model, optimizer)
        return model, optimizer

    def watch_gradients(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert self._flags is not None
        self.finite.append(FiniteGradients(model, optimizer, self._on_nan, self._flags.exchange))

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        assert self.sharded_saving is not None
        self.sharded_saving.settle()
        self.sharded_saving.begin()  # Usually a forward pass in training mode has already begun the save.
        if len(arguments) > 1 or named.get("closure") is not None:
            raise UsageProblem(
                f"{type(optimizer).__name__}.step() got a closure, which sharded models do not support.",
                "Call backward() before step(), or set strategy.shard to none.",
            )
        if self._accumulated:
            raise UsageProblem(
                "The optimizer stepped after a backward pass that only accumulated gradients.",
                "Run the last backward pass before step() outside no_sync() and accumulate(): it exchanges the sum.",
            )

    def _watch_backward(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        """Registers a hook that records whether the next backward pass averages gradients. Begins a postponed save."""
        if not torch.is_grad_enabled():
            return
        if module.training:
            assert self.sharded_saving is not None
            self.sharded_saving.begin()
        for output in _pytree.tree_leaves(outputs):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(self._backward_begins)
                return

    def _backward_begins(self, gradient: torch.Tensor) -> None:
        self._accumulated = not self._synchronizes
        assert self.sharded_saving is not None
        if self.sharded_saving.is_copying:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.sharded_saving.settle)  # autograd calls settle() at the end of this pass.

    def accumulating(self) -> AbstractContextManager[None]:
        return self._accumulate()

    @contextmanager
    def _accumulate(self) -> Iterator[None]:
        self._set_synchronizes(False)
        try:
            yield
        finally:
            self._set_synchronizes(True)

    def _set_synchronizes(self, on: bool) -> None:
        self._synchronizes = on
        for model in self._models:
            model.set_requires_gradient_sync(on)

    def clip_gradients(self, parameters: Any, max_norm: float) -> torch.Tensor:
        norm: Any = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole

    def clip_values(self, parameters: Any, value: float) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.to_local().clamp_(-value, value)

    def want_save(self) -> None:
        assert self._flags is not None
        self._flags.want_save()

    def is_save_due(self, step: int) -> bool:
        return self._flags is not None and self._flags.is_save_due(step)


def check_torch() -> None:
    """Raises EnvironmentProblem if the installed torch does not have the functions for sharding."""
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    if tuple(int(number) for number in numbers if number.isdecimal()) < OLDEST_TORCH:
        raise EnvironmentProblem(
            f"torch {torch.__version__} is too old for strategy.shard, which needs 2.6 or newer.",
            "Install a newer torch for this Python, or set strategy.shard to none.",
        )


def hosts_of(environment: Environment) -> list[list[int]]:
    """Returns the ranks of a worker group by host.

    Ranks whose trainers have the same address are on one host. Under torchrun the hosts are derived from
    LOCAL_WORLD_SIZE.

    Raises:
        EnvironmentProblem: The hosts have different numbers of ranks, or only one rank each.
    """
    hosts: dict[object, list[int]] = {}
    for rank in range(environment.world_size):
        process = environment.peers.trainer_process(rank, environment.group)
        host = process[1] if process is not None else rank // max(1, environment.local_world_size)
        hosts.setdefault(host, []).append(rank)
    sizes = sorted({len(ranks) for ranks in hosts.values()})
    if len(sizes) > 1:
        raise EnvironmentProblem(
            f"strategy.shard is host, but the hosts have between {sizes[0]} and {sizes[-1]} ranks.",
            "Give each host as many trainers as the others, or set strategy.shard to all.",
        )
    if sizes == [1]:
        raise EnvironmentProblem(
            "strategy.shard is host, but each host has a single rank, so that nothing would be sharded.",
            "Give each host several trainers or GPUs, or set strategy.shard to all.",
        )
    return list(hosts.values())


def mesh_of(device: torch.device, hosts: Sequence[Sequence[int]]) -> Any:
    """Returns the device mesh over which models are sharded.

    If there are several `hosts`, models are sharded within each host and replicated between hosts (HSDP). Otherwise
    models are sharded over all ranks.
    """
    from torch.distributed.device_mesh import DeviceMesh

    if len(hosts) < 2:
        return DeviceMesh(device.type, list(range(dist.get_world_size())), mesh_dim_names=("shard",))
    return DeviceMesh(device.type, [list(ranks) for ranks in hosts], mesh_dim_names=("replicate", "shard"))
