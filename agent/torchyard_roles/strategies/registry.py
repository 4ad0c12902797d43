"""The choice of a process's strategy."""

from __future__ import annotations

from typing import Callable

from torchyard_roles.environment import Environment
from torchyard_roles.errors import NotInThisVersion, UsageProblem
from torchyard_roles.strategies.all_reduce import AllReduce
from torchyard_roles.strategies.base import Strategy
from torchyard_roles.strategies.diloco.strategy import Diloco
from torchyard_roles.strategies.hogwild.strategy import Hogwild
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy
from torchyard_roles.strategies.reduction_server.strategy import ReductionServer
from torchyard_roles.strategies.single_process import SingleProcess


def choose(environment: Environment, own: Callable[[Environment], Strategy] | None = None) -> Strategy:
    """Return the strategy of this process.

    Args:
        own: Creates the script's custom strategy, which replaces all_reduce.

    Raises:
        NotInThisVersion: The kind of strategy is unknown.
        UsageProblem: The script has a custom strategy, but the topology names a kind whose servers or groups would wait
            for the trainers.
    """
    if environment.strategy == "none" or not environment.trains:
        return SingleProcess()
    if own is not None:
        if environment.strategy != "all_reduce":
            raise UsageProblem(
                f"join(strategy=…) takes the place of all_reduce, but the topology says {environment.strategy}.",
                "Set strategy.kind to all_reduce in the topology, or leave out the argument.",
            )
        return own(environment) if environment.world_size > 1 else SingleProcess()
    if environment.strategy in ("sandblaster", "downpour"):
        # A single worker uses the servers too, since the servers run the optimizer.
        return ParameterServerStrategy(environment)
    if environment.strategy == "diloco":
        # A single group takes the steps of the outer optimizer too.
        return Diloco(environment)
    if environment.world_size == 1:
        return SingleProcess()
    if environment.strategy == "all_reduce" or (environment.strategy == "hogwild" and environment.groups == 1):
        return AllReduce(environment)  # A single Hogwild group has no other groups to exchange with.
    if environment.strategy == "hogwild":
        return Hogwild(environment)
    if environment.strategy == "reduction_server":
        return ReductionServer(environment)
    raise NotInThisVersion(
        f"The strategy {environment.strategy!r} is not in this version of torchyard_roles.",
        "Set strategy.kind to all_reduce or none in the topology.",
    )
