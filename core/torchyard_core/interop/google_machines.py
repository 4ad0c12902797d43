"""Converts accelerators and machine types of Vertex AI and CloudML, such as `NVIDIA_TESLA_V100`, to keys of pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchyard_core.interop.document_reader import DocumentReader
from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import Place, did_you_mean
from torchyard_core.topology.machine_types import Machine, accelerator_for, accelerators
from torchyard_core.topology.model import Pool, Role

UNSPECIFIED = "ACCELERATOR_TYPE_UNSPECIFIED"
USUAL = "NVIDIA_TESLA_T4"
"""The accelerator that is exported for a pool that allows any GPU."""


def read_gpus(reader: DocumentReader, kind: Place, count: Place) -> dict[str, Any]:
    """Returns the keys of a pool for accelerators. `kind` and `count` are the locations of their type and number.

    Returns no keys if there are no accelerators. Raises FileProblem for TPUs, and for a number without a type.
    """
    name = reader.text(kind)
    if name is None or name.upper() == UNSPECIFIED:
        if reader.whole(count, 0, most=1024):
            reader.stop("accelerators are counted and not named.", count, f"Allowed are {', '.join(accelerators())}.")
        return {}
    name = name.upper().replace("-", "_")
    if name.startswith("TPU"):
        reader.stop(
            f"{name} is a TPU; Torchyard runs on GPUs and CPUs.", kind, f"Allowed are {', '.join(accelerators())}."
        )
    number = reader.whole(count, 1, least=0, most=1024)
    if not number:
        return {}
    if name not in accelerators():
        meant = did_you_mean(name, accelerators(), 0.8)
        reader.remark(f"{name} is not known here, so that any GPU will do{meant or '.'}", kind)
        return {"gpus": number}
    return {"gpus": number, **accelerators()[name]}


def written_gpus(pool: Pool, remarks: list[Remark]) -> tuple[str, int] | None:
    """Returns the type and number of accelerators of a pool, or None for a pool that uses no GPUs."""
    if not pool.gpus or (not pool.role.trains and pool.role != "evaluator"):
        return None
    name = accelerator_for(pool.gpu_model, pool.gpu_memory_gb)
    if name is None:
        name = USUAL
        why = f"they have no {pool.gpu_model}" if pool.gpu_model else "the pool takes any GPU"
        remarks.append(Remark(f"pool `{pool.name}`: {USUAL} was chosen, for {why}."))
    return name, pool.gpus


def read_sizes(reader: DocumentReader, known: Machine, place: Place) -> dict[str, Any]:
    """Returns the keys of a pool for a machine type. Adds a remark if CPUs and memory of the type are unknown."""
    if known.cpus is None:
        reader.remark(f"the size of {known.name} is not known here: its name is kept, and no size is asked for.", place)
    return known.as_pool()


def leave_gpus_of_servers(reader: DocumentReader, pool_data: dict[str, Any], role: Role, place: Place) -> None:
    """Removes the GPUs from a pool of servers or reducers, because these roles use none. Adds a remark."""
    if role in (Role.PS, Role.REDUCER) and pool_data.pop("gpus", None):
        for key in ("gpu_model", "gpu_memory_gb"):
            pool_data.pop(key, None)
        reader.remark(f"{role} replicas use no GPU: theirs are left out.", place)


def remark_on_sizes(reader: DocumentReader, pools: Iterable[Mapping[str, Any]]) -> None:
    """If a pool has the size of a machine type, adds a remark that the user's hosts must provide this size."""
    if any("cpus" in pool for pool in pools):
        reader.remark("the machines' sizes are asked of your hosts: lower `cpus` and `memory_gb` for smaller ones.")
