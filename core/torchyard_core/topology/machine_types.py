"""Machine types of the source systems with their sizes, as data in `resources/machines.yaml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from torchyard_core.topology.document.edits import set_pools
from torchyard_core.topology.model import Pool, Role, Topology
from torchyard_core.yaml_io.parser import compose

_SIZED = re.compile(r"(?P<series>[a-z][a-z0-9-]*)-(?P<cpus>[0-9]{1,4})")


@dataclass(frozen=True)
class Machine:
    """What a machine type has. `cpus` and `memory_gb` are None for one whose name does not tell."""

    name: str
    machine: str
    """The rented machine behind it: of `complex_model_m`, `n1-highcpu-16`."""
    cpus: int | None = None
    memory_gb: float | None = None
    gpus: int = 0
    gpu_model: str | None = None

    def as_pool(self) -> dict[str, Any]:
        """What a pool that asks for such machines says."""
        said: dict[str, Any] = {"gpus": self.gpus or None, "machine": self.name, "cpus": self.cpus}
        said |= {"memory_gb": self.memory_gb, "gpu_model": self.gpu_model}
        return {key: value for key, value in said.items() if value is not None}


@cache
def _data() -> Mapping[str, Any]:
    text = files("torchyard_resources").joinpath("machines.yaml").read_text(encoding="utf-8")
    data: Mapping[str, Any] = compose(text, "machines.yaml").data
    return data


@lru_cache(maxsize=1024)
def machine(name: str) -> Machine:
    """A machine by any of its names. One that nobody knows has no sizes."""
    named = _data()["cloudml"].get(name, {})
    behind = named.get("machine", name)
    sized = _SIZED.fullmatch(behind)
    per_cpu = _data()["series"].get(sized["series"]) if sized is not None else None
    cpus = memory = None
    if sized is not None and per_cpu is not None:
        cpus = int(sized["cpus"])
        memory = round(cpus * per_cpu, 2)
    return Machine(name, behind, cpus, memory, int(named.get("gpus", 0)), named.get("gpu_model"))


def same_machine(one: str, other: str) -> bool:
    """Whether two names are of the same rented machine: `complex_model_m` is an `n1-highcpu-16`."""
    return machine(one).machine == machine(other).machine


@cache
def cloudml_machines() -> tuple[Machine, ...]:
    """Those of CloudML Engine, in its order: smaller before larger."""
    return tuple(machine(name) for name in _data()["cloudml"])


def accelerators() -> Mapping[str, Mapping[str, Any]]:
    """Names of GPUs as Vertex AI and CloudML have them, with `gpu_model` and, where it tells, `gpu_memory_gb`."""
    known: Mapping[str, Mapping[str, Any]] = _data()["accelerators"]
    return known


def machine_with(accelerator: str, count: int) -> str | None:
    """The machine that has so many of a GPU built in; None for a GPU that goes into any, or for another count."""
    found: str | None = _data()["machines_with"].get(accelerator, {}).get(str(count))
    return found


def accelerator_for(gpu_model: str | None, gpu_memory_gb: float | None) -> str | None:
    """Their name for a GPU with this in its name and at least so much memory; None where they have none."""
    if gpu_model is None:
        return None
    for name, has in accelerators().items():
        # What does not tell its memory has the smallest of its model.
        enough = gpu_memory_gb is None or has.get("gpu_memory_gb", 40) >= gpu_memory_gb
        if has["gpu_model"].lower() == gpu_model.lower() and enough:
            return name
    return None


def with_machine_sizes(topology: Topology) -> Topology:
    """With what machine types stand for, where pools do not say it themselves."""
    pools = [_with_machine_size(pool) if pool.machine is not None else pool for pool in topology.pools]
    return topology.model_copy(update={"pools": tuple(pools)}) if pools != list(topology.pools) else topology


def _with_machine_size(pool: Pool) -> Pool:
    assert pool.machine is not None
    has = machine(pool.machine)
    sizes: dict[str, Any] = {"cpus": has.cpus, "memory_gb": has.memory_gb}
    if pool.gpus:
        sizes["gpu_model"] = has.gpu_model
    missing = {key: size for key, size in sizes.items() if size is not None and getattr(pool, key) is None}
    return pool.model_copy(update=missing) if missing else pool


def with_machine(topology: Topology, positions: Collection[int], name: str) -> Topology:
    """The topology with some pools on a machine type, which brings its sizes. Its GPUs go to those who use any; one
    without GPUs takes away those that came with the type before it, and no others."""
    after = topology
    for position in positions:
        pool = topology.pools[position]
        said = machine(name).as_pool()
        before = machine(pool.machine) if pool.machine is not None else None
        if pool.role in (Role.PS, Role.REDUCER):
            said = {key: value for key, value in said.items() if not key.startswith("gpu")}
        elif "gpus" in said:
            said["gpu_memory_gb"] = None
        elif before is not None and before.gpus and (pool.gpus, pool.gpu_model) == (before.gpus, before.gpu_model):
            said |= {"gpus": 0, "gpu_model": None}
        after = set_pools(after, [position], **said)
    return after
