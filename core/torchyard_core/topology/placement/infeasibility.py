"""Messages about replicas that fit on no host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchyard_core.formatting import counted, memory
from torchyard_core.topology.machine_types import machine
from torchyard_core.topology.model import Pool
from torchyard_core.topology.placement.capacity import GB_IN_GIB, HostCapacity, suits


def explain_infeasible(
    names: Sequence[str], pool: Pool, capacities: Sequence[HostCapacity], allowed: Sequence[HostCapacity]
) -> str:
    """Formats the reason why no host fits: `worker-3 needs 2 GPUs of ≥ 40 GB; the most any host has free is 1`.

    `capacities` contains all hosts, `allowed` the hosts that match the pool's `hosts` and `labels`.
    """
    who = names[0]
    if len(names) > 1:
        who += f" {'and' if len(names) == 2 else 'to'} {names[-1]}"
    needs = "needs" if len(names) == 1 else "each need"
    if not capacities:
        return f"{who} cannot be placed: the fleet has no hosts"
    if all(capacity.host.cluster for capacity in capacities):
        return f"{who} {needs} {_explain_nodes(pool, capacities, allowed)}"
    if not allowed:
        return f"{who} {needs} {_wanted_host(pool)}; the fleet has none"
    booked = ", ".join(f"{one.host.name} is booked by {one.host.booked_by}" for one in allowed if one.host.booked_by)
    allowed = [capacity for capacity in allowed if not capacity.host.booked_by]
    if not allowed:
        return f"{who} cannot be placed: {booked}"
    also = f" ({booked})" if booked else ""
    most_free = ""
    if pool.gpus > (most := max(capacity.free_gpus(pool) for capacity in allowed)):
        wanted = gpu_wish(pool) + _as_machine(pool, "gpu_model")
        return f"{who} {needs} {wanted}; {_most_gpus(pool, allowed, most)}"
    if pool.cpus is not None and pool.cpus > max(capacity.cpus for capacity in allowed):
        what, best = f"{counted(pool.cpus, 'CPU')}{_as_machine(pool, 'cpus')}", max(allowed, key=lambda one: one.cpus)
        most_free = f"{max(0, best.cpus):.4g} (on {best.host.name})"
    elif pool.memory_gb is not None and pool.memory_gb * GB_IN_GIB > max(capacity.memory_gb for capacity in allowed):
        what = f"{pool.memory_gb:g} GB of memory{_as_machine(pool, 'memory_gb')}"
        best = max(allowed, key=lambda one: one.memory_gb)
        most_free = f"{memory(max(0.0, best.memory_gb) * 1024)} (on {best.host.name})"
    if most_free:
        return f"{who} {needs} {what}; the most any host has free is {most_free}{also}"
    return f"{who} {needs} {_everything(pool)}; no host has all of it free at once{also}"


def _explain_nodes(pool: Pool, capacities: Sequence[HostCapacity], allowed: Sequence[HostCapacity]) -> str:
    """Formats the requirements of a replica and why no node of a cluster meets them: `9 GPUs; no node of hpc has …`."""
    cluster = capacities[0].host.cluster
    if pool.labels and not allowed:
        labels = ", ".join(f"{key}={value}" for key, value in pool.labels.items())
        return f"a node labelled {labels}, but nodes of {cluster} have no labels"
    what = _everything(pool) or "a node"
    fitting = sum(HostCapacity(capacity.host, 0).fits(pool) for capacity in capacities)
    if fitting:
        every = f"{counted(fitting, 'such node')}, which the run's other replicas use"
        return f"{what}; {cluster} has {every}"
    shapes = "; ".join(dict.fromkeys(_shape(capacity) for capacity in capacities))
    unknown = pool.gpu_memory_gb is not None and any(capacity.host.gpus for capacity in capacities)
    hint = "; Slurm does not tell the memory of GPUs, so choose them by `gpu_model`" if unknown else ""
    return f"{what}; no node of {cluster} has it ({shapes}){hint}"


def _shape(capacity: HostCapacity) -> str:
    """Formats the resources of a node: `32 CPUs, 250 GB, 4 × a100`."""
    host = capacity.host
    kinds = Counter(gpu.name or "GPU" for gpu in host.gpus)
    parts = [counted(host.cpus, "CPU")] if host.cpus is not None else []
    parts += [memory(host.memory_gb * 1024)] if host.memory_gb is not None else []
    return ", ".join([*parts, *(f"{count} × {kind}" for kind, count in kinds.items())])


def _as_machine(pool: Pool, key: str) -> str:
    """Returns ` (machine large_model)` if a requirement comes from the machine type, otherwise ""."""
    wish = getattr(pool, key)
    is_its = pool.machine is not None and wish is not None and getattr(machine(pool.machine), key) == wish
    return f" (machine {pool.machine})" if is_its else ""


def gpu_wish(pool: Pool) -> str:
    """Formats the GPUs that a pool requires: `2 A100 GPUs of ≥ 40 GB`."""
    model = f"{pool.gpu_model} " if pool.gpu_model else ""
    noun = f"{model}GPU"
    size = f" of ≥ {pool.gpu_memory_gb:g} GB" if pool.gpu_memory_gb is not None else ""
    return counted(pool.gpus, noun) + size


def _wanted_host(pool: Pool) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in pool.labels.items())
    if pool.hosts:
        named = f"one of the hosts {', '.join(pool.hosts)}"
        return f"{named} labelled {labels}" if labels else named
    return f"a host labelled {labels}"


def _most_gpus(pool: Pool, allowed: Sequence[HostCapacity], most: float) -> str:
    best = max(allowed, key=lambda capacity: capacity.free_gpus(pool))
    most_suitable = max(sum(suits(gpu, pool) for gpu in capacity.host.gpus) for capacity in allowed)
    if not most_suitable:
        return "no host has any"
    if not most:
        return "all of them are taken" + _by_others(allowed)
    return f"the most any host has free is {most:g} (on {best.host.name})"


def _by_others(capacities: Sequence[HostCapacity]) -> str:
    """Formats the GPUs that are not available: ` (4 used by kim, 2 booked by lee until 18:00)`."""
    ways = Counter(
        why.replace("another user", "others")
        for capacity in capacities
        for gpu in capacity.host.gpus
        if (why := capacity.host.why_taken(gpu)) is not None
    )
    return f" ({', '.join(f'{count} {why}' for why, count in ways.most_common())})" if ways else ""


def _everything(pool: Pool) -> str:
    parts = [gpu_wish(pool)] if pool.gpus else []
    parts += [counted(pool.cpus, "CPU")] if pool.cpus is not None else []
    parts += [f"{pool.memory_gb:g} GB of memory"] if pool.memory_gb is not None else []
    return " and ".join(parts)
