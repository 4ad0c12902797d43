"""Who this process is, read once from its environment.

Three cases, told apart by the variables alone: started by Torchyard (`TORCHYARD_REPLICA`), started by plain
torchrun (`RANK` without it), or started by hand (neither): then it is one process with everything to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchyard_agent.protocol.report import REPORT_VARIABLE
from torchyard_roles.errors import EnvironmentProblem

TRAINERS = ("chief", "worker")
ROLES = (*TRAINERS, "ps", "reducer", "evaluator")


@dataclass(frozen=True)
class Environment:
    """A process's place in the run. `rank` and `world_size` count trainers only."""

    role: str = "worker"
    replica: str = ""
    """Its name, such as `worker-3`; empty where Torchyard did not start it."""
    index: int = 0
    """Among the replicas of its role."""
    rank: int | None = 0
    """None for those that do not train."""
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    strategy: str = "all_reduce"
    master: str = ""
    """`address:port` of the trainers' rendezvous, empty where there is none."""
    visible_gpus: str = ""
    report_address: str = ""

    @property
    def trains(self) -> bool:
        return self.role in TRAINERS

    @property
    def is_torchyard(self) -> bool:
        return bool(self.replica)


def read(environ: Mapping[str, str]) -> Environment:
    """Raises EnvironmentProblem with a sentence where the variables contradict each other."""
    role = environ.get("TORCHYARD_ROLE", "worker")
    if role not in ROLES:
        raise EnvironmentProblem(f"TORCHYARD_ROLE is {role!r}, but the roles are {', '.join(ROLES)}.")
    rank, world_size = _place_among_trainers(environ, trains=role in TRAINERS)
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    replica = environ.get("TORCHYARD_REPLICA", "")
    return Environment(
        role=role,
        replica=replica,
        index=_index(replica) if replica else rank or 0,
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "LOCAL_RANK") or 0,
        local_world_size=_number(environ, "LOCAL_WORLD_SIZE") or 1,
        strategy=environ.get("TORCHYARD_STRATEGY", "all_reduce"),
        master=f"{address}:{port}" if address and port else "",
        visible_gpus=environ.get("CUDA_VISIBLE_DEVICES", ""),
        report_address=environ.get(REPORT_VARIABLE, ""),
    )


def _place_among_trainers(environ: Mapping[str, str], *, trains: bool) -> tuple[int | None, int]:
    """(rank, world size); Torchyard's own variables win over torchrun's.

    In asynchronous kinds each worker group is a torch world of its own, so RANK does not say the rank in the run.
    """
    pairs = [("TORCHYARD_RANK", "TORCHYARD_WORLD_SIZE"), ("RANK", "WORLD_SIZE")]
    if _has_launcher_of_its_own(environ):
        pairs.reverse()
    if not trains:
        world_sizes = (_number(environ, world_name) for _, world_name in pairs)
        return None, next((size for size in world_sizes if size), 1)
    for rank_name, world_name in pairs:
        rank, world_size = _number(environ, rank_name), _number(environ, world_name)
        if rank is None:
            continue
        if world_size is None:
            if rank_name == "TORCHYARD_RANK":
                world_size = _number(environ, "WORLD_SIZE")
            if world_size is None:
                raise EnvironmentProblem(
                    f"{rank_name} is {rank}, but {world_name} is not set.",
                    "Start the script with torchyard or torchrun, which set both, or unset it to train alone.",
                )
        if rank >= world_size:
            raise EnvironmentProblem(f"{rank_name} is {rank}, but there are only {world_size} ranks ({world_name}).")
        return rank, world_size
    return 0, 1


def _has_launcher_of_its_own(environ: Mapping[str, str]) -> bool:
    """Whether the replica's command started torchrun (`launcher: command`), which made the world we are in."""
    launched_for = environ.get("TORCHELASTIC_RUN_ID")
    return launched_for is not None and launched_for != environ.get("TORCHYARD_RUN_ID")


def _index(replica: str) -> int:
    _, _, number = replica.rpartition("-")
    if not number.isdecimal():
        raise EnvironmentProblem(f"TORCHYARD_REPLICA is {replica!r}, but a replica's name is like worker-3.")
    return int(number)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    if not value:
        return None
    if not value.isdecimal():
        raise EnvironmentProblem(f"{name} is {value!r}, but it must be a whole number that is not negative.")
    return int(value)
