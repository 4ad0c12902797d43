"""How much of a host is still free while replicas are laid on it."""

from __future__ import annotations

from collections import Counter
from math import inf

from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Pool, Role

TRAINERS, SERVERS, EVALUATORS = "trainers", "servers", "evaluators"
GB_IN_GIB = 1e9 / 2**30
"""A GB that a pool asks for is 10⁹ bytes: a host or a GPU that is sold as 64 GB shows some less than 64 GiB."""


def kin(role: Role) -> str:
    """Which replicas count as alike when they are spread: all trainers, all servers and reducers."""
    if role.trains:
        return TRAINERS
    return EVALUATORS if role is Role.EVALUATOR else SERVERS


class Room:
    """A host's free GPUs, CPUs and memory. Of a host that was never checked there is no end."""

    def __init__(self, host: HostFacts, order: int):
        self.host = host
        self.order = order
        self.free = [gpu for gpu in sorted(host.gpus, key=lambda gpu: gpu.index) if gpu.uuid not in host.busy_gpus]
        self.cpus = inf if host.cpus is None or not host.checked else float(host.cpus)
        self.memory_gb = inf if host.memory_gb is None or not host.checked else host.memory_gb
        """In GiB, as hosts tell it."""
        self.replicas = 0
        self.kin: Counter[str] = Counter()
        self._named: set[int] = set()

    def matching(self, pool: Pool) -> list[Gpu]:
        """Free GPUs that the pool may use."""
        if pool.gpu_model is None and pool.gpu_memory_gb is None:
            return self.free
        return [gpu for gpu in self.free if suits(gpu, pool)]

    def free_gpus(self, pool: Pool) -> float:
        """How many GPUs the pool could still get here."""
        return len(self.matching(pool)) if self.host.checked else inf

    def fits(self, pool: Pool) -> bool:
        return (
            not self.host.booked_by
            and (not pool.gpus or pool.gpus <= self.free_gpus(pool))
            and (pool.cpus is None or pool.cpus <= self.cpus)
            and (pool.memory_gb is None or pool.memory_gb * GB_IN_GIB <= self.memory_gb)
        )

    def take(self, pool: Pool) -> tuple[Gpu, ...]:
        """Lays one replica of a pool that fits here: its GPUs, lowest index first."""
        if self.host.checked:
            gpus = tuple(self.matching(pool)[: pool.gpus])
        else:
            gpus = tuple(self._imagined(index) for index in self._unnamed(pool.gpus))
        return self.take_these(pool, gpus)

    def take_these(self, pool: Pool, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Lays one replica onto GPUs that are free."""
        taken = {gpu.uuid for gpu in gpus}
        if taken:
            self.free = [gpu for gpu in self.free if gpu.uuid not in taken]
            self._named.update(gpu.index for gpu in gpus)
        self.cpus -= pool.cpus or 0
        self.memory_gb -= (pool.memory_gb or 0) * GB_IN_GIB
        self.replicas += 1
        self.kin[kin(pool.role)] += 1
        return gpus

    def named(self, index: int) -> Gpu | None:
        """The free GPU of that index. On a host that was never checked there is one until it is taken."""
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
    """Whether a GPU is of the model and size that the pool asks for."""
    if pool.gpu_model is not None and pool.gpu_model.lower() not in gpu.name.lower():
        return False
    return pool.gpu_memory_gb is None or gpu.memory_mb >= pool.gpu_memory_gb * GB_IN_GIB * 2**10
