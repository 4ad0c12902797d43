"""Machine types of Vertex AI and CloudML with their sizes, from `resources/machines.yaml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from torchyard_core.topology.document.edits import set_pools
from torchyard_core.topology.model import Pool, Role, Topology
from torchyard_core.yaml_io.parser import parse_yaml

_SIZED = re.compile(r"(?P<series>[a-z][a-z0-9-]*)-(?P<cpus>[0-9]{1,4})")


@dataclass(frozen=True)
class Machine:
    """A machine type. `cpus` and `memory_gb` are None if the name does not determine them."""

    name: str
    machine: str
    """The cloud's machine type that `name` stands for, such as `n1-highcpu-16` for `complex_model_m`."""
    cpus: int | None = None
    memory_gb: float | None = None
    gpus: int = 0
    gpu_model: str | None = None

    def as_pool(self) -> dict[str, Any]:
        """Returns the settings of a pool on machines of this type, by key. Unknown sizes are omitted."""
        keys: dict[str, Any] = {"gpus": self.gpus or None, "machine": self.name, "cpus": self.cpus}
        keys |= {"memory_gb": self.memory_gb, "gpu_model": self.gpu_model}
        return {key: value for key, value in keys.items() if value is not None}


@cache
def _data() -> Mapping[str, Any]:
    text = files("torchyard_resources").joinpath("machines.yaml").read_text(encoding="utf-8")
    data: Mapping[str, Any] = parse_yaml(text, "machines.yaml").data
    return data


@lru_cache(maxsize=1024)
def machine(name: str) -> Machine:
    """Returns the machine type with the given name. The sizes of an unknown machine type are None."""
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
    """Returns whether two names mean the same machine type, such as `complex_model_m` and `n1-highcpu-16`."""
    return machine(one).machine == machine(other).machine


@cache
def cloudml_machines() -> tuple[Machine, ...]:
    """Returns the machine types of CloudML Engine in the order of `machines.yaml`."""
    return tuple(machine(name) for name in _data()["cloudml"])


def accelerators() -> Mapping[str, Mapping[str, Any]]:
    """Returns the GPU names of Vertex AI and CloudML, each with its `gpu_model`, and `gpu_memory_gb` if known."""
    known: Mapping[str, Mapping[str, Any]] = _data()["accelerators"]
    return known


def machine_with(accelerator: str, count: int) -> str | None:
    """Returns the machine type with `count` built-in GPUs of the kind `accelerator`, or None if there is none."""
    found: str | None = _data()["machines_with"].get(accelerator, {}).get(str(count))
    return found


def accelerator_for(gpu_model: str | None, gpu_memory_gb: float | None) -> str | None:
    """Returns Vertex AI's name for a GPU of this model with at least this memory, or None if there is none."""
    if gpu_model is None:
        return None
    for name, has in accelerators().items():
        # A name without a memory size means the smallest GPU of that model, which has 40 GB.
        enough = gpu_memory_gb is None or has.get("gpu_memory_gb", 40) >= gpu_memory_gb
        if has["gpu_model"].lower() == gpu_model.lower() and enough:
            return name
    return None


def with_machine_sizes(topology: Topology) -> Topology:
    """Returns the topology with the sizes of machine types filled in where pools do not set them."""
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
    """Returns the topology with the given pools changed to a machine type and its sizes.

    Only pools whose roles use GPUs get the GPUs of the machine type. If the type has no GPUs, the GPUs of a pool's
    previous machine type are removed. GPUs that do not match the previous type are kept.
    """
    after = topology
    for position in positions:
        pool = topology.pools[position]
        keys = machine(name).as_pool()
        before = machine(pool.machine) if pool.machine is not None else None
        if pool.role in (Role.PS, Role.REDUCER):
            keys = {key: value for key, value in keys.items() if not key.startswith("gpu")}
        elif "gpus" in keys:
            keys["gpu_memory_gb"] = None
        elif before is not None and before.gpus and (pool.gpus, pool.gpu_model) == (before.gpus, before.gpu_model):
            keys |= {"gpus": 0, "gpu_model": None}
        after = set_pools(after, [position], **keys)
    return after
