"""How trainers share a model: one file each, and the choice among them.

A strategy is added by a file with a class of `strategy.Strategy` and a line in `choose`.
"""

from __future__ import annotations

from torchyard_roles.environment import Environment
from torchyard_roles.errors import NotInThisVersion
from torchyard_roles.strategies.all_reduce import AllReduce
from torchyard_roles.strategies.alone import Alone
from torchyard_roles.strategies.hogwild import Hogwild
from torchyard_roles.strategies.reduction_server import ReductionServer
from torchyard_roles.strategies.served import Served
from torchyard_roles.strategies.strategy import Strategy


def choose(environment: Environment) -> Strategy:
    """What this process takes part in. Raises NotInThisVersion for a kind that there is no file for."""
    if environment.strategy == "none" or not environment.trains:
        return Alone()
    if environment.strategy in ("sandblaster", "downpour"):
        return Served(environment)  # with one worker too: the servers have the optimizer
    if environment.world_size == 1:
        return Alone()
    if environment.strategy == "all_reduce" or (environment.strategy == "hogwild" and environment.groups == 1):
        return AllReduce(environment)  # one group of Hogwild has nobody to exchange with
    if environment.strategy == "hogwild":
        return Hogwild(environment)
    if environment.strategy == "reduction_server":
        return ReductionServer(environment)
    raise NotInThisVersion(
        f"The strategy {environment.strategy!r} is not in this version of torchyard_roles.",
        "Set strategy.kind to all_reduce or none in the topology.",
    )
