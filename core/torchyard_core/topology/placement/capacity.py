"""Free capacity of hosts during placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import inf

from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Pool, Role

TRAINERS, SERVERS, EVALUATORS = "trainers", "servers", "evaluators"
GB_IN_GIB = 1e9 / 2**30
"""Number of GiB in a GB. A pool states its memory requirement in GB of 10⁹ bytes.

A host or GPU that is sold as 64 GB may report slightly less than 64 GiB. It still satisfies a requirement of 64 GB.
"""


def spread_class(role: Role) -> str:
    """Returns the class of a role. The replicas of a class are counted together when they are spread evenly.

    The classes are trainers, evaluators, and parameter servers with reducers.
    """
    if role.trains:
        return TRAINERS
    return EVALUATORS if role is Role.EVALUATOR else SERVERS


class HostCapacity:
    """Free GPUs, CPUs and memory of a host. A host that was never checked has no limits.

    An unknown number of CPUs or amount of memory is no limit either.
    """

    def __init__(self, host: HostFacts, order: int):
        self.host = host
        self.order = order
        self.free = [gpu for gpu in sorted(host.gpus, key=lambda gpu: gpu.index) if gpu.uuid not in host.busy_gpus]
        self.cpus = inf if host.cpus is None or not host.checked else float(host.cpus)
        self.memory_gb = inf if host.memory_gb is None or not host.checked else host.memory_gb
        """The memory in GiB, the unit of host facts."""
        self.replicas = 0
        self.class_counts: Counter[str] = Counter()
        self._named: set[int] = set()

    def matching(self, pool: Pool) -> list[Gpu]:
        """Returns the free GPUs that satisfy the pool's requirements."""
        if pool.gpu_model is None and pool.gpu_memory_gb is None:
            return self.free
        return [gpu for gpu in self.free if suits(gpu, pool)]

    def free_gpus(self, pool: Pool) -> float:
        """Returns the number of free GPUs that the pool can use."""
        return len(self.matching(pool)) if self.host.checked else inf

    def fits(self, pool: Pool) -> bool:
        return (
            not self.host.booked_by
            and (not pool.gpus or pool.gpus <= self.free_gpus(pool))
            and (pool.cpus is None or pool.cpus <= self.cpus)
            and (pool.memory_gb is None or pool.memory_gb * GB_IN_GIB <= self.memory_gb)
        )

    def take(self, pool: Pool, leaving: Collection[str] = ()) -> tuple[Gpu, ...]:
        """Reserves capacity for a replica of a pool that fits on the host, and returns the replica's GPUs.

        GPUs with the lowest indices are used first. GPUs in `leaving` (by UUID) are used only if the others do not
        suffice, the highest index first.
        """
        if self.host.checked:
            matching = self.matching(pool)
            if leaving:
                left = [gpu for gpu in matching if gpu.uuid in leaving]
                matching = [gpu for gpu in matching if gpu.uuid not in leaving] + left[::-1]
            gpus = tuple(sorted(matching[: pool.gpus], key=lambda gpu: gpu.index))
        else:
            gpus = tuple(self._imagined(index) for index in self._unnamed(pool.gpus))
        return self.take_these(pool, gpus)

    def take_these(self, pool: Pool, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Reserves capacity for a replica on the given free GPUs."""
        taken = {gpu.uuid for gpu in gpus}
        if taken:
            self.free = [gpu for gpu in self.free if gpu.uuid not in taken]
            self._named.update(gpu.index for gpu in gpus)
        self.cpus -= pool.cpus or 0
        self.memory_gb -= (pool.memory_gb or 0) * GB_IN_GIB
        self.replicas += 1
        self.class_counts[spread_class(pool.role)] += 1
        return gpus

    def named(self, index: int) -> Gpu | None:
        """Returns the free GPU with an index, or None if there is none.

        A host that was never checked is assumed to have all indices.
        """
        if self.host.checked:
            return next((gpu for gpu in self.free if gpu.index == index), None)
        return None if index in self._named else self._imagined(index)

    def _imagined(self, index: int) -> Gpu:
        return self.host.gpu_at(index) or Gpu(index, f"{self.host.name}:{index}", "", 0)

    def _unnamed(self, count: int) -> list[int]:
        found: list[int] = []
        index = 0
        while len(found) < count:
            if index not in self._named:
                found.append(index)
            index += 1
        return found


def suits(gpu: Gpu, pool: Pool) -> bool:
    """Returns whether a GPU has the model and memory that the pool requires."""
    if pool.gpu_model is not None and pool.gpu_model.lower() not in gpu.name.lower():
        return False
    return pool.gpu_memory_gb is None or gpu.memory_mb >= pool.gpu_memory_gb * GB_IN_GIB * 2**10
