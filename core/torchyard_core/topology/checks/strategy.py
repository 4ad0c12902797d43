"""Whether the pools are what the strategy works with."""

from __future__ import annotations

from torchyard_core.formatting import counted
from torchyard_core.problems import Findings, error, warning
from torchyard_core.topology.model import Launcher, Role, StrategyKind, Topology

_NEEDS = {
    StrategyKind.SANDBLASTER: Role.PS,
    StrategyKind.DOWNPOUR: Role.PS,
    StrategyKind.REDUCTION_SERVER: Role.REDUCER,
}
_CALLED = {Role.PS: "parameter servers (a pool with role ps)", Role.REDUCER: "reducers (a pool with role reducer)"}


USED_BY = {
    "push_every": (StrategyKind.DOWNPOUR,),
    "pull_every": (StrategyKind.DOWNPOUR,),
    "warm_start_steps": (StrategyKind.DOWNPOUR,),
    "max_staleness": (StrategyKind.DOWNPOUR,),
    "sync_every": (StrategyKind.HOGWILD,),
}
"""Settings that do nothing under other kinds."""


def check_strategy(topology: Topology) -> Findings:
    kind = topology.strategy.kind
    counts = {role: sum(pool.replicas for pool in topology.pools if pool.role is role) for role in Role}
    needed = _NEEDS.get(kind)
    if needed is not None and not counts[needed]:
        yield error("strategy-needs", f"{kind} needs {_CALLED[needed]}, and there are none", "strategy", "kind")
    yield from _unused_pools(topology, needed)
    yield from _groups(topology, counts)
    yield from _server_groups(topology, counts)
    yield from _backups(topology, counts)
    yield from _staleness(topology, counts)
    yield from _reducing_alone(topology, counts)
    yield from _unused_settings(topology)


def _unused_pools(topology: Topology, needed: Role | None) -> Findings:
    """Servers that nobody would talk to. What a script does with its roles under `none` is its own affair."""
    if topology.program.launcher is Launcher.COMMAND:
        return  # The framework, not the strategy, decides what its servers do.
    kind = topology.strategy.kind
    finding = warning if kind is StrategyKind.NONE else error
    for position, pool in enumerate(topology.pools):
        if pool.role in (Role.PS, Role.REDUCER) and pool.role is not needed:
            users = " or ".join(user for user, role in _NEEDS.items() if role is pool.role)
            message = (
                f"pool `{pool.name}` has nothing to do: {kind} uses no {pool.role}. "
                f"Remove it, or set strategy.kind to {users}"
            )
            yield finding("strategy-ignores", message, "pools", position, "role")


def _unused_settings(topology: Topology) -> Findings:
    strategy = topology.strategy
    for name, users in USED_BY.items():
        default = type(strategy).model_fields[name].default
        if strategy.kind not in users and getattr(strategy, name) != default:
            message = f"`{name}` is for {' and '.join(users)}; {strategy.kind} does not use it"
            yield warning("strategy-ignores", message, "strategy", name)


def _reducing_alone(topology: Topology, counts: dict[Role, int]) -> Findings:
    trainers = counts[Role.CHIEF] + counts[Role.WORKER]
    processes = sum(pool.replicas * max(1, pool.gpus) for pool in topology.pools if pool.role.trains)
    if topology.strategy.kind is StrategyKind.REDUCTION_SERVER and trainers and processes < 2:
        message = "reduction_server sums the gradients of 2 workers or more, and there is 1: add one, or choose none"
        yield error("strategy-counts", message, "strategy", "kind")


def _groups(topology: Topology, counts: dict[Role, int]) -> Findings:
    strategy = topology.strategy
    groups = strategy.worker_groups
    if groups is not None and groups > 1 and not strategy.kind.is_asynchronous:
        message = f"{strategy.kind} trains in one group; `worker_groups` is for downpour and hogwild"
        yield warning("strategy-ignores", message, "strategy", "worker_groups")
    elif groups is not None and groups > max(1, counts[Role.WORKER]):
        message = f"{groups} worker groups cannot be made of {counted(counts[Role.WORKER], 'worker')}"
        yield error("strategy-counts", message, "strategy", "worker_groups")
    elif groups is None and strategy.kind.is_asynchronous and counts[Role.CHIEF] and counts[Role.WORKER] == 1:
        message = (
            f"{strategy.kind} has one group here, in which chief and worker train in step, since the chief trains in "
            "group 0 with the first workers. Add a worker, or make the chief a worker: worker-0 is the chief then"
        )
        yield warning("strategy-counts", message, "strategy", "kind")


def _server_groups(topology: Topology, counts: dict[Role, int]) -> Findings:
    """The strategy's kind fixes them: one group of parameter servers, or under hogwild one a worker group."""
    strategy = topology.strategy
    kind, groups = strategy.kind, strategy.server_groups
    if groups == 1:
        return
    if _NEEDS.get(kind) is Role.PS:
        # The file may say it already; a run with it would end when its trainers begin.
        message = (
            f"the parameter servers of {kind} are one group, which share the parameters among themselves, and not "
            f"{groups}: drop `server_groups`"
        )
        yield error("strategy-counts", message, "strategy", "server_groups")
    elif kind is not StrategyKind.HOGWILD:
        message = f"`server_groups` does nothing: {kind} has no parameter servers"
        yield warning("strategy-ignores", message, "strategy", "server_groups")
    elif groups != (strategy.worker_groups or max(1, counts[Role.WORKER])):
        message = "in hogwild every worker group serves its own share of the parameters: drop `server_groups`"
        yield warning("strategy-ignores", message, "strategy", "server_groups")


def _backups(topology: Topology, counts: dict[Role, int]) -> Findings:
    strategy = topology.strategy
    if not strategy.backup_workers:
        return
    trainers = counts[Role.CHIEF] + counts[Role.WORKER]
    if strategy.kind is not StrategyKind.SANDBLASTER:
        message = f"`backup_workers` is for sandblaster; {strategy.kind} does not use it"
        yield warning("strategy-ignores", message, "strategy", "backup_workers")
    elif strategy.backup_workers >= trainers:
        message = f"{strategy.backup_workers} backup workers leave none of the {counted(trainers, 'trainer')} to count"
        yield error("strategy-counts", message, "strategy", "backup_workers")


def _staleness(topology: Topology, counts: dict[Role, int]) -> Findings:
    """The exchange of a group overlaps its next step, so that a gradient is two of its exchanges old."""
    strategy = topology.strategy
    groups = strategy.worker_groups or counts[Role.WORKER]
    if strategy.kind is StrategyKind.DOWNPOUR and groups > 1 and strategy.max_staleness < 2 * groups - 1:
        message = (
            f"the pushes of {groups} groups that take turns are {2 * groups - 1} versions old, and would be dropped "
            f"with `max_staleness` {strategy.max_staleness}: set it to {2 * groups - 1} or more"
        )
        yield warning("strategy-counts", message, "strategy", "max_staleness")
