"""Machine types of Vertex AI and CloudML, as what a pool asks of hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchyard_core.interop.document_reader import Reading
from torchyard_core.problems import Place
from torchyard_core.topology.machine_types import Machine
from torchyard_core.topology.model import Role


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
