"""join() in a parameter server: it serves, and the script goes no further."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from types import FrameType

import torch

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.exchange import wire
from torchyard_roles.serving.rounds import Rules
from torchyard_roles.serving.server import ParameterServer


def serve(environment: Environment) -> None:
    """Returns when all trainers of all groups have said goodbye, or after SIGTERM. Raises EnvironmentProblem."""
    server = made(environment)
    if environment.generation > 0 and environment.strategy == "downpour":
        server.resume()

    def stop(signum: int, frame: FrameType | None) -> None:
        server.stop_soon()

    before = signal.signal(signal.SIGTERM, stop)
    # Connections' threads add up chunks side by side: torch's own threads on top of them would only take turns.
    torch.set_num_threads(1)
    try:
        server.serve(listening(environment))
    finally:
        signal.signal(signal.SIGTERM, before)
    server.save_for_itself()


def made(environment: Environment) -> ParameterServer:
    """The server that an environment describes."""
    options = environment.options
    servers = [place.name for place in environment.peers.ps]
    if environment.replica not in servers:
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
        save_every_s=options.checkpoint_every_s if asynchronous else 0.0,
    )


def listening(environment: Environment) -> socket.socket:
    """On this server's own address and port, which the keeper holds for it."""
    place = next(place for place in environment.peers.ps if place.name == environment.replica)
    try:
        return wire.listen(place.address, place.port)
    except OSError as first:
        try:  # an address that this host is reached by but does not have, as behind a translation
            return wire.listen("::" if ":" in place.address else "0.0.0.0", place.port)
        except OSError:
            raise EnvironmentProblem(
                f"{environment.replica} cannot listen on {place.address}:{place.port}: {first.strerror}."
            ) from None
