"""The setting `on_worker_loss` and its checks."""

from __future__ import annotations

from torchyard_core.problems import Findings, error_finding, warning_finding
from torchyard_core.topology.model import OnWorkerLoss, Role, Shard, StrategyKind, Topology
from torchyard_core.topology.strategies.spec import StrategySetting

WORKER_LOSS_SETTING = StrategySetting(
    "on_worker_loss",
    "On a lost worker",
    "Restart all workers at the newest checkpoint, or continue without the lost one while its pool has "
    "min_replicas or more.",
    choices=((OnWorkerLoss.RESTART, "restart all"), (OnWorkerLoss.CONTINUE, "continue")),
)


def check_worker_loss(topology: Topology) -> Findings:
    """Yields problems of `on_worker_loss: continue`."""
    if topology.strategy.on_worker_loss is not OnWorkerLoss.CONTINUE:
        return
    if topology.strategy.shard is not Shard.NONE:
        message = (
            "with `shard`, a lost worker takes its part of the parameters with it, so training cannot continue without "
            "it. Set on_worker_loss to restart, or shard to none"
        )
        yield error_finding("worker-loss", message, "strategy", "on_worker_loss")
    for position, pool in enumerate(topology.pools):
        if not pool.role.trains:
            continue
        if pool.gpus > 1 and topology.strategy.kind is StrategyKind.REDUCTION_SERVER:
            message = (
                f"pool `{pool.name}` has {pool.gpus} GPUs for each replica, and reduction_server continues without a "
                "lost worker only if each worker has one. Set gpus to 1, or on_worker_loss to restart"
            )
            yield error_finding("worker-loss", message, "pools", position, "gpus")
        if pool.role is Role.WORKER and (pool.min_replicas is None or pool.min_replicas >= pool.replicas):
            message = (
                f"pool `{pool.name}` cannot lose a worker without a restart: set its `min_replicas` to less than "
                f"{pool.replicas}, the fewest workers with which the run continues"
            )
            yield warning_finding("worker-loss", message, "pools", position, "min_replicas")
