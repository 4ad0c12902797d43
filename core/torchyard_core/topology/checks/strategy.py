"""Checks that the pools and settings match the strategy."""

from __future__ import annotations

from torchyard_core.formatting import counted
from torchyard_core.problems import Findings, error_finding, warning_finding
from torchyard_core.topology.model import Launcher, OnWorkerLoss, Role, StrategyKind, Topology
from torchyard_core.topology.strategies.registry import all_specs, spec_of
from torchyard_core.topology.strategies.sharding import SHARD_SETTINGS
from torchyard_core.topology.strategies.spec import RoleCounts, StrategySpec

_CALLED = {Role.PS: "parameter servers (a pool with role ps)", Role.REDUCER: "reducers (a pool with role reducer)"}


def check_strategy(topology: Topology) -> Findings:
    spec = spec_of(topology.strategy.kind)
    counts = {role: sum(pool.replicas for pool in topology.pools if pool.role is role) for role in Role}
    needed = spec.server_role
    if needed is not None and not counts[needed] and not spec.servers_are_optional:
        yield error_finding(
            "strategy-needs", f"{spec.kind} needs {_CALLED[needed]}, and there are none", "strategy", "kind"
        )
    yield from _unused_pools(topology, spec)
    yield from _worker_groups(topology, spec, counts)
    yield from _server_groups(topology, spec, counts)
    yield from spec.check(topology, counts)
    if topology.strategy.on_worker_loss is OnWorkerLoss.CONTINUE and "on_worker_loss" not in spec.settings:
        message = f"{spec.kind} cannot continue without a lost worker in this version. Set `on_worker_loss` to restart"
        yield error_finding("worker-loss", message, "strategy", "on_worker_loss")
    yield from _unused_settings(topology)


def _unused_pools(topology: Topology, spec: StrategySpec) -> Findings:
    """Yields problems for pools of servers that no trainer would use.

    Under the strategy `none` this is only a warning, since the script may use the servers itself.
    """
    if topology.program.launcher is Launcher.COMMAND:
        return  # With launcher `command`, the framework determines what the servers do.
    finding = warning_finding if spec.kind is StrategyKind.NONE else error_finding
    for position, pool in enumerate(topology.pools):
        if pool.role in (Role.PS, Role.REDUCER) and pool.role not in spec.server_roles:
            users = " or ".join(other.kind for other in all_specs() if pool.role in other.server_roles)
            message = (
                f"pool `{pool.name}` has nothing to do: {spec.kind} uses no {pool.role}. "
                f"Remove it, or set strategy.kind to {users}"
            )
            yield finding("strategy-ignores", message, "pools", position, "role")


def _unused_settings(topology: Topology) -> Findings:
    strategy = topology.strategy
    used = {"on_worker_loss", *spec_of(strategy.kind).settings}  # `on_worker_loss` is checked in check_strategy().
    for setting in (*SHARD_SETTINGS, *(setting for spec in all_specs() for setting in spec.own_settings)):
        if setting.key in used or getattr(strategy, setting.key) == type(strategy).model_fields[setting.key].default:
            continue
        *others, last = (spec.kind for spec in all_specs() if setting.key in spec.settings)
        users = f"{', '.join(others)} and {last}" if others else last
        message = f"`{setting.key}` is for {users}; {strategy.kind} does not use it"
        finding = error_finding if setting.is_essential else warning_finding
        yield finding("strategy-ignores", message, "strategy", setting.key)


def _worker_groups(topology: Topology, spec: StrategySpec, counts: RoleCounts) -> Findings:
    kind, groups = spec.kind, topology.strategy.worker_groups
    if groups is not None and groups > 1 and not spec.is_asynchronous:
        users = " and ".join(other.kind for other in all_specs() if other.is_asynchronous)
        message = f"{kind} trains in one group; `worker_groups` is for {users}"
        yield warning_finding("strategy-ignores", message, "strategy", "worker_groups")
    elif groups is not None and groups > max(1, counts[Role.WORKER]):
        message = f"{groups} worker groups cannot be made of {counted(counts[Role.WORKER], 'worker')}"
        yield error_finding("strategy-counts", message, "strategy", "worker_groups")
    elif groups is None and spec.is_asynchronous and counts[Role.CHIEF] and counts[Role.WORKER] == 1:
        message = (
            f"{kind} has one group here, in which chief and worker train in step, since the chief trains in "
            "group 0 with the first workers. Add a worker, or make the chief a worker: worker-0 is the chief then"
        )
        yield warning_finding("strategy-counts", message, "strategy", "kind")


def _server_groups(topology: Topology, spec: StrategySpec, counts: RoleCounts) -> Findings:
    """Yields problems if the number of server groups does not match the strategy.

    A strategy needs one group of parameter servers or, if its trainers can serve parameters, one group for each worker
    group.
    """
    strategy = topology.strategy
    kind, groups = spec.kind, strategy.server_groups
    if groups == 1:
        return
    if spec.server_role is Role.PS and (counts[Role.PS] or not spec.servers_are_optional):
        # This is an error, since the run would fail at the start of its trainers.
        message = (
            f"the parameter servers of {kind} are one group, which share the parameters among themselves, and not "
            f"{groups}: drop `server_groups`"
        )
        yield error_finding("strategy-counts", message, "strategy", "server_groups")
    elif not spec.trainers_serve:
        message = f"`server_groups` does nothing: {kind} has no parameter servers"
        yield warning_finding("strategy-ignores", message, "strategy", "server_groups")
    elif groups != (strategy.worker_groups or max(1, counts[Role.WORKER])):
        message = f"in {kind} every worker group serves its own share of the parameters: drop `server_groups`"
        yield warning_finding("strategy-ignores", message, "strategy", "server_groups")
