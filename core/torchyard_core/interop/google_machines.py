"""GPUs as Vertex AI and CloudML name them (`NVIDIA_TESLA_V100`), and as our pools do (`gpu_model: V100`)."""

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
"""What is written for a pool that takes any GPU."""


def read_gpus(reading: Reading, kind: Place, count: Place) -> dict[str, Any]:
    """What a pool says of the accelerators at these places; nothing where there are none."""
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
    """(their name, how many) for a pool that takes GPUs; None for one that takes none."""
    if not pool.gpus or (not pool.role.trains and pool.role != "evaluator"):
        return None
    name = accelerator_for(pool.gpu_model, pool.gpu_memory_gb)
    if name is None:
        name = USUAL
        why = f"they have no {pool.gpu_model}" if pool.gpu_model else "the pool takes any GPU"
        remarks.append(Remark(f"pool `{pool.name}`: {USUAL} was chosen, for {why}."))
    return name, pool.gpus


def read_sizes(reading: Reading, known: Machine, place: Place) -> dict[str, Any]:
    """What a pool on this machine says, with a remark where nobody knows its size."""
    if known.cpus is None:
        reading.remark(
            f"the size of {known.name} is not known here: its name is kept, and no size is asked for.", place
        )
    return known.as_pool()


def leave_gpus_of_servers(reading: Reading, said: dict[str, Any], role: Role, place: Place) -> None:
    """Takes the GPUs out of what a pool of servers or reducers says, with a remark: they use none."""
    if role in (Role.PS, Role.REDUCER) and said.pop("gpus", None):
        for key in ("gpu_model", "gpu_memory_gb"):
            said.pop(key, None)
        reading.remark(f"{role} replicas use no GPU: theirs are left out.", place)


def remark_on_sizes(reading: Reading, pools: Iterable[Mapping[str, Any]]) -> None:
    """Says what machine types mean on one's own hosts, where there are any."""
    if any("cpus" in pool for pool in pools):
        reading.remark("the machines' sizes are asked of your hosts: lower `cpus` and `memory_gb` for smaller ones.")
