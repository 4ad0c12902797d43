"""The choice of a process's strategy according to its environment."""

from __future__ import annotations

from typing import Callable

from torchyard_roles.environment import Environment
from torchyard_roles.errors import NotInThisVersion, UsageProblem
from torchyard_roles.strategies.all_reduce import AllReduce
from torchyard_roles.strategies.continuing_all_reduce import ContinuingAllReduce
from torchyard_roles.strategies.diloco.strategy import Diloco
from torchyard_roles.strategies.hogwild.strategy import Hogwild
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy
from torchyard_roles.strategies.parameter_server.sharded_downpour import ShardedDownpour
from torchyard_roles.strategies.reduction_server.continuing_reduction_server import ContinuingReductionServer
from torchyard_roles.strategies.reduction_server.strategy import ReductionServer
from torchyard_roles.strategies.sharded.strategy import ShardedAllReduce
from torchyard_roles.strategies.single_process import SingleProcess
from torchyard_roles.strategies.strategy import Strategy


def choose(environment: Environment, own: Callable[[Environment], Strategy] | None = None) -> Strategy:
    """Returns the strategy of this process.

    Args:
        own: A function that creates the script's custom strategy, which replaces `all_reduce`.

    Raises:
        NotInThisVersion: The kind of strategy is unknown.
        UsageProblem: The strategy's settings contradict each other, or do not allow a custom strategy.
    """
    if environment.strategy == "none" or not environment.trains:
        return SingleProcess()
    if own is not None:
        if environment.strategy != "all_reduce":
            raise UsageProblem(
                f"join(strategy=…) takes the place of all_reduce, but the topology says {environment.strategy}.",
                "Set strategy.kind to all_reduce in the topology, or leave out the argument.",
            )
        options = environment.options
        for setting, value, default in (
            ("on_worker_loss", options.on_worker_loss, "restart"),
            ("shard", options.shard, "none"),
        ):
            if value != default:
                raise UsageProblem(
                    f"join(strategy=…) was called, and the topology says strategy.{setting}: {value}, which a custom "
                    "strategy does not support.",
                    f"Set strategy.{setting} to {default}, or leave out the argument.",
                )
        return own(environment) if environment.world_size > 1 else SingleProcess()
    if environment.options.shard != "none" and environment.strategy not in ("all_reduce", "diloco", "downpour"):
        raise UsageProblem(
            f"strategy.shard is {environment.options.shard}, but {environment.strategy} trains whole models.",
            "Set strategy.shard to none, or strategy.kind to all_reduce, diloco or downpour.",
        )
    if environment.options.shard != "none" and environment.options.on_worker_loss == "continue":
        raise UsageProblem(
            "A worker that is lost takes its part of a sharded model with it, so strategy.on_worker_loss cannot be "
            "continue.",
            "Set strategy.on_worker_loss to restart, or strategy.shard to none.",
        )
    if environment.strategy == "downpour" and environment.options.shard != "none" and environment.group_size > 1:
        return ShardedDownpour(environment)
    if environment.strategy in ("sandblaster", "downpour"):
        # Even a single worker uses the servers, because they run the optimizer.
        return ParameterServerStrategy(environment)
    if environment.strategy == "diloco":
        # Even a single group needs the steps of the outer optimizer.
        return Diloco(environment)
    if environment.world_size == 1:
        return SingleProcess()
    if environment.strategy == "all_reduce" and environment.options.on_worker_loss == "continue":
        return ContinuingAllReduce(environment)
    if environment.strategy == "all_reduce" and environment.options.shard != "none":
        return ShardedAllReduce(environment)
    if environment.strategy == "all_reduce" or (environment.strategy == "hogwild" and environment.groups == 1):
        return AllReduce(environment)  # A single Hogwild group has no other group to exchange with.
    if environment.strategy == "hogwild":
        return Hogwild(environment)
    if environment.strategy == "reduction_server" and environment.options.on_worker_loss == "continue":
        return ContinuingReductionServer(environment)
    if environment.strategy == "reduction_server":
        return ReductionServer(environment)
    raise NotInThisVersion(
        f"The strategy {environment.strategy!r} is not in this version of torchyard_roles.",
        "Set strategy.kind to all_reduce or none in the topology.",
    )
