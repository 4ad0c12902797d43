"""Traffic of a topology: the edges and groups of its strategy, and the edges of evaluators."""

from __future__ import annotations

from dataclasses import replace

from torchyard_core.topology.model import Launcher, Role, Topology
from torchyard_core.topology.replicas import Replica, replicas_of
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_core.topology.strategies.spec import Participants
from torchyard_core.topology.strategies.traffic import Bundle, Pattern, Traffic, by_pool
from torchyard_core.topology.strategies.worker_groups import worker_groups


def traffic_of(topology: Topology) -> Traffic:
    """Returns the edges and groups of a topology. There are no edges if the strategy's servers are missing."""
    replicas = replicas_of(topology)
    evaluation = _evaluation(replicas)
    if topology.program.launcher is Launcher.COMMAND:
        return Traffic(evaluation)  # With launcher `command`, the framework determines which replicas communicate.
    strategy = topology.strategy
    spec = spec_of(strategy.kind)
    traffic = spec.traffic(
        Participants(
            strategy,
            trainers=tuple(replica for replica in replicas if replica.role.trains),
            groups=tuple(group for group in worker_groups(topology, replicas) if group),
            servers=tuple(replica for replica in replicas if replica.role in spec.server_roles),
        )
    )
    return replace(traffic, bundles=(*traffic.bundles, *evaluation))


def _evaluation(replicas: tuple[Replica, ...]) -> tuple[Bundle, ...]:
    # The first trainer is the chief, or worker-0 if there is no chief pool.
    chief = next((replica for replica in replicas if replica.role.trains), None)
    if chief is None:
        return ()
    evaluators = [replica for replica in replicas if replica.role is Role.EVALUATOR]
    return tuple(Bundle(Pattern.CHECKPOINTS, (chief.name,), names, in_step=False) for names in by_pool(evaluators))
