"""join() in a parameter server: it serves, and the script goes no further."""

from __future__ import annotations

import gc
import signal
from pathlib import Path
from types import FrameType

import torch

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.keeper_reports import ServingReports
from torchyard_roles.strategies.parameter_server.push_rounds import Rules
from torchyard_roles.strategies.parameter_server.server_process import ParameterServer

PART_S = 1.0
"""What is left of the grace after SIGTERM once nobody is waited for any longer: to save, and to end."""


def serve(environment: Environment) -> None:
    """Returns when all trainers of all groups have said goodbye, or after SIGTERM: then as soon as no trainer is
    connected, since trainers that are stopped as well still finish their step and save. Raises EnvironmentProblem.
    """
    server = made(environment)
    place = next(place for place in environment.peers.ps if place.name == environment.replica)
    if environment.generation > 0 and environment.strategy == "downpour":
        server.resume()

    def stop(signum: int, frame: FrameType | None) -> None:
        server.finish_soon(environment.options.stop_grace_s - PART_S)

    signal.signal(signal.SIGTERM, stop)
    # Connections' threads add up chunks side by side: torch's own threads on top of them would only take turns.
    torch.set_num_threads(1)
    gc.freeze()  # no collection looks through torch's own objects again and again
    listener = tensor_connection.listen_at(place)
    try:
        with ServingReports(environment, server.figures, server.traffic):
            server.serve(listener)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is nothing left but to end, with 0
    server.save_for_itself()


def made(environment: Environment) -> ParameterServer:
    """The server that an environment describes."""
    options = environment.options
    servers = [place.name for place in environment.peers.ps]
    if environment.replica not in servers or environment.strategy not in ("sandblaster", "downpour"):
        raise EnvironmentProblem(
            f"{environment.replica or 'This process'} has nothing to serve: TORCHYARD_PEERS names the parameter "
            f"servers {', '.join(servers) or 'of none'}, in the strategy {environment.strategy}.",
            "Set strategy.kind to sandblaster or downpour, or remove the pool of parameter servers.",
        )
    asynchronous = environment.strategy == "downpour"
    return ParameterServer(
        environment.replica,
        servers.index(environment.replica),
        len(servers),
        environment.key,
        Rules(
            groups=environment.groups if asynchronous else 1,
            max_staleness=options.max_staleness,
            backup_workers=0 if asynchronous else options.backup_workers,
            warm_start_steps=options.warm_start_steps if asynchronous else 0,
            in_rank_order=options.reduction_order == "rank",
        ),
        keeps=asynchronous,
        folder=Path(environment.checkpoints) if environment.checkpoints else None,
        run=environment.run_id,
        save_every_s=options.checkpoint_every_s if asynchronous else 0.0,
    )
