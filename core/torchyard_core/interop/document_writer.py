"""Functions for all writers of other systems' documents: options, and remarks about settings that are not exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchyard_agent.protocol.placeholders import NAMES
from torchyard_core.errors import UsageError
from torchyard_core.interop.remarks import Remark
from torchyard_core.topology.model import Pool, Program, Role, StrategyKind, Topology
from torchyard_core.topology.replicas import replicas_of


@dataclass(frozen=True)
class Exported:
    """An exported topology as text, with remarks."""

    text: str
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export."""

    form: str | None = None
    """The form of the document, for formats with several forms. None means the default form."""
    image: str | None = None
    """Container image, for systems that only run containers."""
    replica: str | None = None
    """The replica whose environment variable is written, for formats that describe a single replica."""


DEFAULT_OPTIONS = ExportOptions()
IMAGE = "IMAGE"
"""Placeholder for a required container image."""
PLACEHOLDER_REMARK = Remark(
    f"`{IMAGE}` stands for an image with the program and its packages; set Image, or `--image`."
)


def count_of(topology: Topology, *roles: Role) -> int:
    """Returns the number of replicas with the given roles."""
    return sum(pool.replicas for pool in topology.pools if pool.role in roles)


def file_name(name: str) -> str:
    """Converts a topology's name to at most 40 lower-case letters, digits and dashes that begin with a letter."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower()).strip("-")
    plain = "-".join(part for part in plain.split("-") if part) or "job"
    return (plain if plain[0].isalpha() else f"job-{plain}")[:40].rstrip("-")


_POOL_REMARKS = {
    "min_replicas": ": the number of replicas is fixed there",
    "hosts": ": there the system chooses them",
    "placement": ": there the system chooses it",
    "labels": ": they are those of your hosts",
    **dict.fromkeys(("env", "args", "cpus", "memory_gb", "gpus", "gpu_model", "gpu_memory_gb", "machine"), ""),
}
"""Keys of a pool that may be missing in the exported document, each with the reason."""
_PROGRAM_REMARKS = {
    **dict.fromkeys(("script", "module", "command", "args"), ""),
    "setup": ": put it into the image, or before the command",
    **dict.fromkeys(("python", "env"), ""),
    "secrets": ": give them to that system by its own means",
    **dict.fromkeys(("notify", "max_restarts", "checkpoint_dir", "ends_with", "tf_master_name"), ""),
}


def omission_remarks(
    topology: Topology,
    *,
    pool: Iterable[str] = (),
    program: Iterable[str] = (),
    filled: Iterable[str] = NAMES,
    names_hosts: bool = False,
) -> list[Remark]:
    """Returns remarks about the settings of a topology that are not exported.

    Args:
        topology: The topology.
        pool: Keys of pools that are exported.
        program: Keys of the program that are exported.
        filled: Placeholders that the other system replaces.
        names_hosts: Whether the document contains the hosts to which replicas are pinned.
    """
    remarks = []
    texts = [*topology.program.command, *topology.program.args, *(word for one in topology.pools for word in one.args)]
    unfilled = [f"{{{name}}}" for name in NAMES if name not in filled and any(f"{{{name}}}" in word for word in texts)]
    if unfilled:
        names = ", ".join(unfilled)
        remarks.append(Remark(f"not filled in there: {names}. The program gets the braces as they are."))
    kind = topology.strategy.kind
    if kind is not StrategyKind.NONE:
        remarks.append(
            Remark(
                f"strategy {kind} is not carried over: it is Torchyard's. Elsewhere `torchyard_roles` trains alone; "
                "the program must keep its parameters in step itself."
            )
        )
    pinned = [name for name, place in topology.pins.items() if ":" in place or not names_hosts]
    if pinned and names_hosts:
        remarks.append(Remark(f"of pins the hosts are carried over, not their GPUs ({', '.join(pinned)})."))
    elif pinned:
        remarks.append(Remark(f"pins are not carried over ({', '.join(pinned)}): they name your hosts."))
    for one in topology.pools:
        remarks += _omitted_keys(one, pool, _POOL_REMARKS, f"pool `{one.name}`: ")
    return remarks + _omitted_keys(topology.program, program, _PROGRAM_REMARKS, "program: ")


def _omitted_keys(
    block: Pool | Program, carried: Iterable[str], reasons: Mapping[str, str], where: str
) -> list[Remark]:
    carried = set(carried)
    remarks = []
    for key, reason in reasons.items():
        default = type(block).model_fields[key].get_default(call_default_factory=True)
        if key not in carried and getattr(block, key) != default:
            remarks.append(Remark(f"{where}{key}{reason} (not carried over)."))
    return remarks


def chief_replica(topology: Topology) -> str:
    """Returns the name of the replica of rank 0, which is worker-0 if there is no chief pool.

    Raises UsageError for a topology without trainers.
    """
    trainers = [replica.name for replica in replicas_of(topology) if replica.role.trains]
    if not trainers:
        raise UsageError("nothing trains in this topology.", code="no-trainers", hint="Add a chief or workers.")
    return trainers[0]
