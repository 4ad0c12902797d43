"""The identity of a process in its run, which is read from environment variables.

A process is started by Torchyard (`TORCHYARD_REPLICA` is set), by plain torchrun (only `RANK` is set), or by hand
(neither is set). If it is started by hand, the run has one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torchyard_agent.protocol.metrics_report import REPORT_VARIABLE
from torchyard_agent.protocol.rank_environment import STOP_PATIENCE_VARIABLE, STOP_VARIABLE
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.peers import PeerAddress, Peers, TrainerAddress, read_peers
from torchyard_roles.strategy_options import Options, read_options

__all__ = ["ROLES", "TRAINERS", "Environment", "Options", "PeerAddress", "Peers", "TrainerAddress", "read"]

TRAINERS = ("chief", "worker")
ROLES = (*TRAINERS, "ps", "reducer", "evaluator")
ASYNCHRONOUS = ("downpour", "hogwild", "diloco")
"""Strategies in which each worker group is a gang."""
KEY_BYTES = 32
LONGEST_NUMBER = 18
"""Maximum number of digits in a numeric environment variable."""


@dataclass(frozen=True)
class Environment:
    """The identity of a process in its run. `rank` and `world_size` refer to trainers only."""

    role: str = "worker"
    replica: str = ""
    """The name of the replica, such as `worker-3`, or empty if Torchyard did not start the process."""
    index: int = 0
    """The number of the replica within its role."""
    rank: int | None = 0
    """The rank of the process among the trainers, or None for processes that do not train."""
    world_size: int = 1
    local_rank: int = 0
    """The number of the process in its replica.

    LOCAL_RANK may differ, because it numbers the processes of all replicas without GPUs on a host consecutively.
    """
    local_world_size: int = 1
    """The replica's number of processes."""
    strategy: str = "all_reduce"
    master: str = ""
    """`address:port` of the trainers' rendezvous, or empty."""
    visible_gpus: str = ""
    report_address: str = ""
    run_id: str = ""
    run_dir: str = ""
    """The folder for the outputs of the run, or empty if Torchyard did not start the process."""
    options: Options = field(default_factory=Options)
    """The settings of the strategy."""
    group: int = 0
    """The number of the worker group, or 0 in synchronous strategies and for processes that do not train."""
    groups: int = 1
    """The number of worker groups."""
    group_rank: int = 0
    """The rank of the process within its worker group."""
    group_size: int = 1
    """The number of processes of the worker group, or 1 for processes that do not train."""
    generation: int = 0
    """The number of times that the process's gang has been restarted."""
    attempt: int = 0
    """The number of times that the replica has returned to a gang that continued without it.

    It is 0 if the replica started with its gang.
    """
    started_with: int = 0
    """The number of ranks with which the current generation began if this replica was added later, otherwise 0."""
    peers: Peers = field(default_factory=Peers)
    """The addresses of the run's servers, reducers and trainers, including this replica."""
    store: str = ""
    """`address:port` of the run's join store, or empty."""
    key: bytes = field(default=b"", repr=False)
    """The key for connections to the join store and between ranks (32 bytes), or empty."""
    checkpoints: str = ""
    """The folder of the run's checkpoints, or empty."""
    stop_file: str = ""
    """The path of a file that exists while the run is being stopped, or empty if every SIGTERM stops the run.

    The file contains the time in seconds between SIGTERM and SIGKILL.
    """
    stop_patience_s: float = 0.0
    """Time in seconds after SIGTERM within which the stop file may still appear.

    If a scheduler signals all processes at once, ranks may receive SIGTERM before the keeper has created the file.
    """
    profile: str = ""
    """The file for measurements of the steps (`profiling.step_recorder`), or empty."""

    @property
    def trains(self) -> bool:
        return self.role in TRAINERS

    @property
    def gang(self) -> str:
        """The name of the process's gang, as in the keeper's journal."""
        if not self.trains:
            return self.replica or self.role
        return f"group-{self.group}" if self.strategy in ASYNCHRONOUS else "trainers"

    @property
    def name(self) -> str:
        """The name of the process in messages: `worker-3`, or `worker-3.1` if its replica has several processes."""
        name = self.replica or f"{self.role}-{self.index}"
        return f"{name}.{self.local_rank}" if self.replica and self.local_world_size > 1 else name

    @property
    def is_torchyard(self) -> bool:
        return bool(self.replica)

    @property
    def stop_grace_s(self) -> float:
        """The time in seconds between SIGTERM and SIGKILL: `program.stop_grace_s`, or a scheduler's shorter time.

        The scheduler's time is known once the keeper has requested the stop.
        """
        grace_s = self.options.stop_grace_s
        if self.stop_file:
            with suppress(OSError, ValueError):
                grace_s = min(grace_s, float(Path(self.stop_file).read_text(encoding="ascii")))
        return grace_s


def read(environ: Mapping[str, str]) -> Environment:
    """Reads the environment variables. Raises EnvironmentProblem if they are invalid or inconsistent."""
    role = environ.get("TORCHYARD_ROLE", "worker")
    if role not in ROLES:
        raise EnvironmentProblem(f"TORCHYARD_ROLE is {role!r}, but the roles are {', '.join(ROLES)}.")
    rank, world_size = _place_among_trainers(environ, trains=role in TRAINERS)
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    replica = environ.get("TORCHYARD_REPLICA", "")
    strategy = environ.get("TORCHYARD_STRATEGY", "all_reduce")
    group_rank, group_size = _place_in_group(environ, rank, world_size)
    local_rank, local_world_size = _place_in_replica(environ)
    run_dir = environ.get("TORCHYARD_RUN_DIR", "")
    return Environment(
        role=role,
        replica=replica,
        index=_index(replica) if replica else rank or 0,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        strategy=strategy,
        master=f"{address}:{port}" if address and port else "",
        visible_gpus=environ.get("CUDA_VISIBLE_DEVICES", ""),
        report_address=environ.get(REPORT_VARIABLE, ""),
        run_id=environ.get("TORCHYARD_RUN_ID", ""),
        run_dir=run_dir,
        options=read_options(environ.get("TORCHYARD_OPTIONS", ""), strategy),
        group=_number(environ, "TORCHYARD_GROUP") or 0,
        groups=_number(environ, "TORCHYARD_GROUPS") or 1,
        group_rank=group_rank,
        group_size=group_size,
        generation=_number(environ, "TORCHYARD_GENERATION") or 0,
        attempt=_number(environ, "TORCHYARD_RETURN") or 0,
        started_with=_number(environ, "TORCHYARD_STARTED_WITH") or 0,
        peers=read_peers(environ.get("TORCHYARD_PEERS", "")),
        store=environ.get("TORCHYARD_STORE", ""),
        key=_key(environ),
        checkpoints=environ.get("TORCHYARD_CHECKPOINTS") or (f"{run_dir}/checkpoints" if run_dir else ""),
        stop_file=environ.get(STOP_VARIABLE, ""),
        stop_patience_s=float(_number(environ, STOP_PATIENCE_VARIABLE) or 0),
        profile=environ.get("TORCHYARD_PROFILE", ""),
    )


def _place_in_group(environ: Mapping[str, str], rank: int | None, world_size: int) -> tuple[int, int]:
    """Returns the rank in the worker group and the group's size. By default all trainers form one group.

    If the replica's command starts torchrun itself, the group consists of torchrun's processes.
    """
    if rank is None:
        return 0, 1
    group_rank, size = _number(environ, "TORCHYARD_GROUP_RANK"), _number(environ, "TORCHYARD_GROUP_SIZE")
    if group_rank is None or not size or _has_own_launcher(environ):
        return rank, world_size
    if group_rank >= size:
        raise EnvironmentProblem(
            f"TORCHYARD_GROUP_RANK is {group_rank}, but there are only {size} ranks (TORCHYARD_GROUP_SIZE)."
        )
    return group_rank, size


def _place_in_replica(environ: Mapping[str, str]) -> tuple[int, int]:
    """Returns the number of the process in its replica, and the number of processes in the replica."""
    number = _number(environ, "TORCHYARD_PROCESS")
    if number is None or _has_own_launcher(environ):
        return _number(environ, "LOCAL_RANK") or 0, _number(environ, "LOCAL_WORLD_SIZE") or 1
    return number, _number(environ, "TORCHYARD_PROCESSES") or 1


def _key(environ: Mapping[str, str]) -> bytes:
    try:
        key = bytes.fromhex(environ.get("TORCHYARD_KEY", ""))
    except ValueError:
        key = b"?"
    if key and len(key) != KEY_BYTES:
        # The message does not contain the key, which is secret.
        raise EnvironmentProblem(f"TORCHYARD_KEY must have {2 * KEY_BYTES} hex digits.")
    return key


def _place_among_trainers(environ: Mapping[str, str], *, trains: bool) -> tuple[int | None, int]:
    """Returns (rank, world size). The rank is None for a process that does not train.

    Torchyard's variables take precedence over torchrun's, because in asynchronous strategies RANK is the rank within
    one worker group and not the rank in the run. The exception is a replica whose command itself starts torchrun.
    """
    pairs = [("TORCHYARD_RANK", "TORCHYARD_WORLD_SIZE"), ("RANK", "WORLD_SIZE")]
    if _has_own_launcher(environ):
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


def _has_own_launcher(environ: Mapping[str, str]) -> bool:
    """Returns whether RANK was set by a torchrun that Torchyard did not start."""
    launched_for = environ.get("TORCHELASTIC_RUN_ID")
    return launched_for is not None and launched_for != environ.get("TORCHYARD_RUN_ID")


def _index(replica: str) -> int:
    _, _, number = replica.rpartition("-")
    if not number.isdecimal() or len(number) > LONGEST_NUMBER:
        raise EnvironmentProblem(f"TORCHYARD_REPLICA is {replica[:60]!r}, but a replica's name is like worker-3.")
    return int(number)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    if not value:
        return None
    if not value.isdecimal() or len(value) > LONGEST_NUMBER:
        raise EnvironmentProblem(f"{name} is {value[:60]!r}, but it must be a whole number that is not negative.")
    return int(value)
