"""The topology file as frozen values: every key that a file may hold, with its default.

The docstring below each key is also its description in `resources/topology.schema.json`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema

MAX_REPLICAS = 10_000
"""Limit of a pool and of a topology, as protection against typing errors."""
MAX_GPUS = 1024
"""Limit of a replica, above the number of GPUs of any host."""


class FrozenModel(BaseModel):
    """A block of a file: immutable, without unknown keys, with strict types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _whole_where_possible(number: float) -> float | int:
    return int(number) if number.is_integer() else number


Text = Annotated[str, WithJsonSchema({"type": ["string", "number", "boolean"]})]
"""Text that a file may also write as a bare number, whose digits are kept as written."""

Amount = Annotated[float, PlainSerializer(_whole_where_possible, return_type=float | int)]
"""A number that is written back without a needless `.0`."""


class Role(StrEnum):
    """What a replica does in the run."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    REDUCER = "reducer"
    EVALUATOR = "evaluator"

    @property
    def trains(self) -> bool:
        return self in (Role.CHIEF, Role.WORKER)


class StrategyKind(StrEnum):
    """How the trainers keep their parameters in step (roles.md has the arithmetic)."""

    NONE = "none"
    ALL_REDUCE = "all_reduce"
    SANDBLASTER = "sandblaster"
    REDUCTION_SERVER = "reduction_server"
    DOWNPOUR = "downpour"
    HOGWILD = "hogwild"


class ReductionOrder(StrEnum):
    """In which order gradients are summed."""

    RANK = "rank"
    ARRIVAL = "arrival"


class OnNan(StrEnum):
    """What happens to a step whose gradients are not finite."""

    FAIL = "fail"
    SKIP = "skip"


class PlacementRule(StrEnum):
    """How a pool's replicas are laid over its hosts."""

    PACK = "pack"
    SPREAD = "spread"


class Launcher(StrEnum):
    """How a replica's processes are started."""

    TORCH = "torch"
    COMMAND = "command"


class EndsWith(StrEnum):
    """Whose end is the end of the run."""

    TRAINERS = "trainers"
    CHIEF = "chief"
    ALL = "all"


class TfMasterName(StrEnum):
    """What TF_CONFIG calls the chief."""

    CHIEF = "chief"
    MASTER = "master"


class GpuIds(StrEnum):
    """How CUDA_VISIBLE_DEVICES names GPUs."""

    UUID = "uuid"
    INDEX = "index"


class Strategy(FrozenModel):
    """How the trainers keep their parameters in step."""

    kind: StrategyKind = StrategyKind.NONE
    """Which strategy. `none` leaves it to the script."""
    worker_groups: int | None = Field(default=None, ge=1)
    """Asynchronous kinds: contiguous blocks of workers, larger first; the chief trains in group 0.
    Without it every worker is a group."""
    server_groups: int = Field(default=1, ge=1)
    """Into how many groups the parameter servers are cut."""
    push_every: int = Field(default=1, ge=1)
    """Downpour: steps between two pushes of gradients."""
    pull_every: int = Field(default=1, ge=1)
    """Downpour: steps between two pulls of parameters."""
    sync_every: int = Field(default=8, ge=1)
    """Hogwild: updates between two exchanges with the neighbours."""
    max_staleness: int = Field(default=16, ge=0)
    """Versions a push may be behind; older ones are dropped and counted."""
    backup_workers: int = Field(default=0, ge=0)
    """Sandblaster: the slowest so many gradients of a step are dropped."""
    warm_start_steps: int = Field(default=0, ge=0)
    """Downpour: steps that group 0 trains alone first."""
    reduction_order: ReductionOrder = ReductionOrder.RANK
    """`rank` is reproducible bit by bit, `arrival` is faster."""
    on_nan: OnNan = OnNan.FAIL
    """What to do with a step whose gradients are not finite."""
    bucket_mb: int = Field(default=64, ge=1)
    """Size of the gradient buckets, in MiB."""


class Pool(FrozenModel):
    """Replicas of one role with one configuration."""

    name: str = Field(min_length=1)
    """Its name in this file."""
    role: Role
    """What its replicas do."""
    replicas: int = Field(ge=1, le=MAX_REPLICAS)
    """How many there are."""
    min_replicas: int | None = Field(default=None, ge=0)
    """How few the run may go on with when hosts are lost; without it, not fewer than `replicas`."""
    gpus: int = Field(default=0, ge=0, le=MAX_GPUS)
    """GPUs of each replica."""
    hosts: tuple[str, ...] = ()
    """Hosts of the fleet that may be used; without it, all of them."""
    placement: PlacementRule | None = None
    """`pack` fills host by host, `spread` goes round them. Without it: pack with GPUs, spread without."""
    machine: str | None = None
    """A machine type: it stands for its CPUs, memory and GPU model where the pool does not say its own, and hosts with
    the label `machine` of that type come first."""
    cpus: Amount | None = Field(default=None, gt=0)
    """CPUs to set aside for each replica; without it none are."""
    memory_gb: Amount | None = Field(default=None, gt=0)
    """Memory to set aside for each replica, in GB."""
    gpu_model: str | None = None
    """Only GPUs with this in their name (capitals don't matter), as `A100`."""
    gpu_memory_gb: Amount | None = Field(default=None, gt=0)
    """Only GPUs with at least this much memory, in GB."""
    labels: dict[str, Text] = Field(default_factory=dict)
    """Only hosts with these labels."""
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment of these replicas, over the program's."""
    args: tuple[Text, ...] = ()
    """Arguments of these replicas, after the program's."""


class Program(FrozenModel):
    """What every replica runs, and how the run ends."""

    launcher: Launcher = Launcher.TORCH
    """`torch`: processes under torchrun's environment contract, one a GPU, else one.
    `command`: any framework, one process a replica."""
    script: str | None = None
    """Launcher torch: the Python file, relative to `workdir`."""
    module: str | None = None
    """Launcher torch: the Python module, instead of a script."""
    command: tuple[Text, ...] = ()
    """Launcher command: the program and its arguments."""
    args: tuple[Text, ...] = ()
    """Arguments of every replica."""
    workdir: str | None = "."
    """The folder sent to every host, relative to this file; null sends nothing."""
    exclude: tuple[str, ...] = ()
    """Patterns of what is not sent, beside .gitignore's."""
    setup: tuple[str, ...] = ()
    """Shell lines to run before each replica."""
    python: str | None = None
    """The programs' Python interpreter; without it, the host's."""
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment of every replica."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values come from the desktop's environment."""
    checkpoint_dir: str | None = None
    """A folder that all hosts share."""
    checkpoint_every_s: Amount = Field(default=600.0, gt=0)
    """Seconds between two checkpoints."""
    max_restarts: int = Field(default=2, ge=0)
    """How often a gang may be restarted."""
    warm_spares: bool = True
    """Whether a spare interpreter of each rank, with torch imported, waits for a restart."""
    ends_with: EndsWith | None = None
    """Whose end is the run's; what is left then is stopped. Without it the trainers', but the chief's where
    launcher is `command` and there are parameter servers."""
    notify: str | None = None
    """A program that the primary host runs when the run ends or needs attention."""
    tf_master_name: TfMasterName = TfMasterName.CHIEF
    """What TF_CONFIG calls the chief."""
    gpu_ids: GpuIds = GpuIds.UUID
    """How CUDA_VISIBLE_DEVICES names GPUs."""
    stop_grace_s: Amount = Field(default=30.0, ge=0)
    """Seconds between SIGTERM and SIGKILL."""
    failure_grace_s: Amount = Field(default=2.0, ge=0)
    """Seconds the others have to leave after one has failed."""
    host_wait_s: Amount = Field(default=600.0, ge=0)
    """Seconds a lost host is waited for."""


class Topology(FrozenModel):
    """A training cluster: its pools, the strategy between them, and the program they run."""

    version: Literal[1]
    """Of this format."""
    name: str = Field(min_length=1, max_length=100)
    """The run's name."""
    strategy: Strategy = Strategy()
    """How the trainers keep their parameters in step."""
    pools: tuple[Pool, ...] = Field(min_length=1)
    """Replicas by role; several pools may share a role and are numbered through in order."""
    pins: dict[str, str] = Field(default_factory=dict)
    """Replicas fixed to a host (`gpu-b`), or to GPUs of one (`gpu-b:2`, `gpu-b:0-3`)."""
    program: Program
    """What every replica runs."""
    layout: dict[str, Any] | None = None
    """The editor's: positions, notes, frames. Nothing else reads it."""

    def as_data(self) -> dict[str, Any]:
        """Itself as plain data, only what was set."""
        data = self.model_dump(mode="json", exclude_unset=True)
        if self.layout is not None:
            data["layout"] = self.layout  # The editor's own, number for number.
        return data

    @property
    def ends_with(self) -> EndsWith:
        """Whose end is the run's, the default resolved.

        TensorFlow's workers and parameter servers serve for ever, so there the chief's end is the run's.
        """
        if self.program.ends_with is not None:
            return self.program.ends_with
        serves = self.program.launcher is Launcher.COMMAND and any(p.role is Role.PS for p in self.pools)
        return EndsWith.CHIEF if serves else EndsWith.TRAINERS
