"""Accelerators and machine types of Vertex AI and CloudML (`NVIDIA_TESLA_V100`), and keys of pools for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchyard_core.interop.document_reader import Reading
from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import Place, did_you_mean
from torchyard_core.topology.machine_types import Machine, accelerator_for, accelerators
from torchyard_core.topology.model import Pool, Role

UNSPECIFIED = "ACCELERATOR_TYPE_UNSPECIFIED"
USUAL = "NVIDIA_TESLA_T4"
"""Exported for a pool that takes any GPU."""


def read_gpus(reading: Reading, kind: Place, count: Place) -> dict[str, Any]:
    """Keys of a pool for the accelerators at two places; empty without accelerators."""
    name = reading.text(kind)
    if name is None or name.upper() == UNSPECIFIED:
        if reading.whole(count, 0, most=1024):
            reading.stop("accelerators are counted and not named.", count, f"Allowed are {', '.join(accelerators())}.")
        return {}
    name = name.upper().replace("-", "_")
    if name.startswith("TPU"):
        reading.stop(
            f"{name} is a TPU; Torchyard runs on GPUs and CPUs.", kind, f"Allowed are {', '.join(accelerators())}."
        )
    number = reading.whole(count, 1, least=0, most=1024)
    if not number:
        return {}
    if name not in accelerators():
        meant = did_you_mean(name, accelerators(), 0.8)
        reading.remark(f"{name} is not known here, so that any GPU will do{meant or '.'}", kind)
        return {"gpus": number}
    return {"gpus": number, **accelerators()[name]}


def written_gpus(pool: Pool, remarks: list[Remark]) -> tuple[str, int] | None:
    """(accelerator, number) for a pool with GPUs; None for one without."""
    if not pool.gpus or (not pool.role.trains and pool.role != "evaluator"):
        return None
    name = accelerator_for(pool.gpu_model, pool.gpu_memory_gb)
    if name is None:
        name = USUAL
        why = f"they have no {pool.gpu_model}" if pool.gpu_model else "the pool takes any GPU"
        remarks.append(Remark(f"pool `{pool.name}`: {USUAL} was chosen, for {why}."))
    return name, pool.gpus


def read_sizes(reading: Reading, known: Machine, place: Place) -> dict[str, Any]:
    """Keys of a pool on a machine type, with a remark on an unknown size."""
    if known.cpus is None:
        reading.remark(
            f"the size of {known.name} is not known here: its name is kept, and no size is asked for.", place
        )
    return known.as_pool()


def leave_gpus_of_servers(reading: Reading, said: dict[str, Any], role: Role, place: Place) -> None:
    """Removes the GPUs of a pool of servers or reducers, which use none, with a remark."""
    if role in (Role.PS, Role.REDUCER) and said.pop("gpus", None):
        for key in ("gpu_model", "gpu_memory_gb"):
            said.pop(key, None)
        reading.remark(f"{role} replicas use no GPU: theirs are left out.", place)


def remark_on_sizes(reading: Reading, pools: Iterable[Mapping[str, Any]]) -> None:
    """Adds a remark on the meaning of machine types on the user's own hosts, if a pool has one."""
    if any("cpus" in pool for pool in pools):
        reading.remark("the machines' sizes are asked of your hosts: lower `cpus` and `memory_gb` for smaller ones.")
