"""join() in a reducer: it sums for the trainers, and the script goes no further."""

from __future__ import annotations

import gc
import signal
from types import FrameType

import torch

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.keeper_reports import ServingReports
from torchyard_roles.strategies.reduction_server import reduction_plan
from torchyard_roles.strategies.reduction_server.reducer import Reducer

PART_S = 1.0
"""What is left of the grace after SIGTERM once nobody is waited for any longer."""


def serve(environment: Environment) -> None:
    """Returns when all trainers have said goodbye, or after SIGTERM: then as soon as no trainer is connected, since
    trainers that are stopped as well still finish their step. Raises EnvironmentProblem.

    Where the arithmetic says that the ring of workers is faster nobody will come, and it returns at once.
    """
    places = [place for place in environment.peers.reducer if place.name == environment.replica]
    if not places or environment.strategy != "reduction_server":
        raise EnvironmentProblem(
            f"{environment.replica or 'This process'} has nothing to sum: TORCHYARD_PEERS names the reducers "
            f"{', '.join(place.name for place in environment.peers.reducer) or 'of none'}, in the strategy "
            f"{environment.strategy}.",
            "Set strategy.kind to reduction_server, or remove the pool of reducers.",
        )
    trainers = len(environment.peers.trainers) or environment.world_size
    plan = reduction_plan.choose(trainers, len(environment.peers.reducer))
    if plan.kind == "ring":
        print(f"torchyard: {environment.replica} has nothing to sum. {plan.sentence}", flush=True)
        return
    # The receiving thread adds up chunks as they come: torch's own threads would only take turns with it.
    torch.set_num_threads(1)
    gc.freeze()  # no collection looks through torch's own objects again and again
    reducer = Reducer(tensor_connection.listen_at(places[0]), environment.key, environment.replica)

    def stop(signum: int, frame: FrameType | None) -> None:
        reducer.finish_soon(environment.options.stop_grace_s - PART_S)

    signal.signal(signal.SIGTERM, stop)
    try:
        with ServingReports(environment, reducer.figures, reducer.traffic):
            reducer.serve_until_all_left()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is nothing left but to end, with 0
