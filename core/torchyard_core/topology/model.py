"""The topology file as immutable values: all keys that a file may contain, with their defaults.

The docstring below each key is also its description in `resources/topology.schema.json`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema

MAX_REPLICAS = 10_000
"""Maximum number of replicas of a pool and of a topology, as protection against typing errors."""
MAX_GPUS = 1024
"""Maximum number of GPUs of a replica, as protection against typing errors."""


class FrozenModel(BaseModel):
    """Base of the models of a file's sections, which are immutable, have strict types, and refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _whole_where_possible(number: float) -> float | int:
    return int(number) if number.is_integer() else number


Text = Annotated[str, WithJsonSchema({"type": ["string", "number", "boolean"]})]
"""A string. A file may contain it without quotes as a number or boolean, which is then kept as written."""

Amount = Annotated[float, PlainSerializer(_whole_where_possible, return_type=float | int)]
"""A number that is written to a file without `.0` if it is whole."""


class Role(StrEnum):
    """The task of a replica in the run."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    REDUCER = "reducer"
    EVALUATOR = "evaluator"

    @property
    def trains(self) -> bool:
        return self in (Role.CHIEF, Role.WORKER)


class StrategyKind(StrEnum):
    """The method by which the trainers exchange gradients or parameters. `docs/roles.md` contains the formulas."""

    NONE = "none"
    ALL_REDUCE = "all_reduce"
    SANDBLASTER = "sandblaster"
    REDUCTION_SERVER = "reduction_server"
    DOWNPOUR = "downpour"
    HOGWILD = "hogwild"
    DILOCO = "diloco"


class ReductionOrder(StrEnum):
    """The order in which gradients are summed."""

    RANK = "rank"
    ARRIVAL = "arrival"


class Wire(StrEnum):
    """The encoding of parameters that groups exchange."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"


class OnNan(StrEnum):
    """The treatment of a step whose gradients are not finite."""

    FAIL = "fail"
    SKIP = "skip"


class OnWorkerLoss(StrEnum):
    """The treatment of the loss of a worker."""

    RESTART = "restart"
    CONTINUE = "continue"


class Shard(StrEnum):
    """The ranks over which parameters, gradients and optimizer state are divided."""

    NONE = "none"
    HOST = "host"
    ALL = "all"


class ShardDtype(StrEnum):
    """The type in which sharded models compute."""

    MODEL = "model"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class PlacementRule(StrEnum):
    """The rule for the distribution of a pool's replicas over its hosts."""

    PACK = "pack"
    SPREAD = "spread"


class Launcher(StrEnum):
    """The method to start a replica's processes."""

    TORCH = "torch"
    COMMAND = "command"


class EndsWith(StrEnum):
    """The replicas whose end determines the end of the run."""

    TRAINERS = "trainers"
    CHIEF = "chief"
    ALL = "all"


class TfMasterName(StrEnum):
    """The name of the chief in TF_CONFIG."""

    CHIEF = "chief"
    MASTER = "master"


class GpuIds(StrEnum):
    """The form of GPU names in CUDA_VISIBLE_DEVICES."""

    UUID = "uuid"
    INDEX = "index"


class Strategy(FrozenModel):
    """The method by which the trainers exchange gradients or parameters, with its settings."""

    kind: StrategyKind = StrategyKind.NONE
    """The strategy; `none` leaves the exchange to the script."""
    worker_groups: int | None = Field(default=None, ge=1)
    """Asynchronous strategies: number of groups. They are contiguous blocks of workers, larger ones first; the chief
    trains in group 0. By default every worker is a group."""
    server_groups: int = Field(default=1, ge=1)
    """Number of groups of parameter servers."""
    push_every: int = Field(default=1, ge=1)
    """Downpour: steps between two pushes of gradients."""
    pull_every: int = Field(default=1, ge=1)
    """Downpour: steps between two pulls of parameters."""
    sync_every: int = Field(default=8, ge=1)
    """Hogwild: updates between two exchanges with the neighbours."""
    inner_steps: int = Field(default=50, ge=1)
    """DiLoCo: steps of each group between two steps of the outer optimizer."""
    warmup_steps: int = Field(default=0, ge=0)
    """DiLoCo: number of first steps, after each of which the groups are averaged without the outer optimizer."""
    outer_lr: Amount = Field(default=0.7, gt=0)
    """DiLoCo: learning rate of the outer optimizer."""
    outer_momentum: Amount = Field(default=0.9, ge=0, lt=1)
    """DiLoCo: Nesterov momentum of the outer optimizer."""
    quorum: int | None = Field(default=None, ge=1)
    """DiLoCo with parameter servers: number of groups whose contributions close a round; by default all."""
    grace_s: Amount = Field(default=0.0, ge=0)
    """DiLoCo with parameter servers: seconds that a round stays open for more groups after its quorum."""
    fragments: int = Field(default=1, ge=1)
    """DiLoCo: number of parts of the model that are averaged in turn, each every `inner_steps` steps."""
    overlap_steps: int = Field(default=0, ge=0)
    """DiLoCo: steps of training during which an average is exchanged."""
    mixing: Amount | None = Field(default=None, ge=0, lt=1)
    """DiLoCo: fraction of its own parameters that a group keeps when an average arrives.

    By default 0.5 with `overlap_steps`, otherwise 0.
    """
    wire: Wire = Wire.FLOAT32
    """DiLoCo: encoding of the values that groups send; `int8` and `int4` have one scale per 256 values."""
    error_feedback: bool = True
    """DiLoCo: whether the error of an encoding is added to the values of the next round."""
    shard: Shard = Shard.NONE
    """All-reduce, and worker groups of DiLoCo and downpour: `host` divides the model over the ranks of each host, `all`
    over all ranks; `none` copies it."""
    shard_modules: tuple[Text, ...] = ()
    """Classes of the modules whose parameters are gathered together.

    By default the class with most parameters that occurs at least twice.
    """
    shard_dtype: ShardDtype = ShardDtype.MODEL
    """Sharded models: type of parameters in computations. The optimizer keeps the type of the model."""
    shard_offload: bool = False
    """Sharded models: whether parameters and optimizer state are kept in the host's memory."""
    max_staleness: int = Field(default=16, ge=0)
    """Maximum staleness of a push, in versions. Older pushes are dropped and counted."""
    backup_workers: int = Field(default=0, ge=0)
    """Sandblaster: number of the slowest gradients of a step that are dropped."""
    warm_start_steps: int = Field(default=0, ge=0)
    """Downpour: number of steps that group 0 trains alone at the beginning."""
    reduction_order: ReductionOrder = ReductionOrder.RANK
    """Order in which gradients are summed: `rank` is reproducible bit for bit, `arrival` is faster."""
    on_nan: OnNan = OnNan.FAIL
    """What to do with a step whose gradients are not finite."""
    on_worker_loss: OnWorkerLoss = OnWorkerLoss.RESTART
    """All-reduce and reduction server: after the loss of a worker, `restart` all, or `continue` with `min_replicas`."""
    bucket_mb: int = Field(default=64, ge=1)
    """Size of the gradient buckets, in MiB."""


class Pool(FrozenModel):
    """Replicas of one role with one configuration."""

    name: str = Field(min_length=1)
    """Name of the pool in this file."""
    role: Role
    """Task of its replicas."""
    replicas: int = Field(ge=1, le=MAX_REPLICAS)
    """Number of its replicas."""
    min_replicas: int | None = Field(default=None, ge=0)
    """Fewest replicas with which the run continues after hosts are lost; by default `replicas`."""
    gpus: int = Field(default=0, ge=0, le=MAX_GPUS)
    """GPUs of each replica."""
    hosts: tuple[str, ...] = ()
    """Hosts of the fleet that may be used; by default all."""
    placement: PlacementRule | None = None
    """`pack` fills host by host, `spread` alternates between hosts. By default pack with GPUs, else spread."""
    machine: str | None = None
    """A machine type, which provides CPUs, memory and GPU model where the pool does not set them. Hosts with the label
    `machine` of that type come first."""
    cpus: Amount | None = Field(default=None, gt=0)
    """CPUs reserved for each replica; by default none."""
    memory_gb: Amount | None = Field(default=None, gt=0)
    """Memory reserved for each replica, in GB; by default none."""
    gpu_model: str | None = None
    """Only GPUs with this text in their name, such as `A100`; case is ignored."""
    gpu_memory_gb: Amount | None = Field(default=None, gt=0)
    """Only GPUs with at least this much memory, in GB."""
    labels: dict[str, Text] = Field(default_factory=dict)
    """Only hosts with these labels."""
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment variables of these replicas, which override the program's."""
    args: tuple[Text, ...] = ()
    """Arguments of these replicas, after the program's."""


class Program(FrozenModel):
    """The program that every replica runs, and the condition for the end of the run."""

    launcher: Launcher = Launcher.TORCH
    """`torch`: processes with torchrun's environment variables, one for each GPU, else one.
    `command`: any framework, one process for each replica."""
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
    """Patterns of files that are not sent, in addition to .gitignore."""
    setup: tuple[str, ...] = ()
    """Shell lines to run before each replica."""
    python: str | None = None
    """The Python interpreter of the program; by default the host's."""
    env: dict[str, Text] = Field(default_factory=dict)
    """Environment of every replica."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values come from the desktop's environment or keyring."""
    checkpoint_dir: str | None = None
    """A folder for checkpoints that all hosts share. By default each host has a folder of its own."""
    checkpoint_every_s: Amount = Field(default=600.0, gt=0)
    """Seconds between two checkpoints."""
    max_restarts: int = Field(default=2, ge=0)
    """Maximum number of restarts of a gang."""
    warm_spares: bool = True
    """Whether a spare interpreter of each rank, with torch imported, waits for a restart."""
    ends_with: EndsWith | None = None
    """The replicas whose end ends the run; the others are then stopped.

    By default the trainers, or the chief if launcher is `command` and there are parameter servers.
    """
    notify: str | None = None
    """A program that the primary host runs when the run ends or needs attention."""
    tf_master_name: TfMasterName = TfMasterName.CHIEF
    """The name of the chief in TF_CONFIG."""
    gpu_ids: GpuIds = GpuIds.UUID
    """How CUDA_VISIBLE_DEVICES names GPUs."""
    stop_grace_s: Amount = Field(default=30.0, ge=0)
    """Seconds between SIGTERM and SIGKILL."""
    failure_grace_s: Amount = Field(default=2.0, ge=0)
    """Seconds for the other replicas to exit after one has failed."""
    host_wait_s: Amount = Field(default=600.0, ge=0)
    """Seconds to wait for a lost host."""


class Topology(FrozenModel):
    """A training cluster: its pools, the strategy between them, and their program."""

    version: Literal[1]
    """Version of the format."""
    name: str = Field(min_length=1, max_length=100)
    """The run's name."""
    strategy: Strategy = Strategy()
    """How the trainers exchange gradients or parameters."""
    pools: tuple[Pool, ...] = Field(min_length=1)
    """Replicas by role; the replicas of several pools of a role are numbered consecutively."""
    pins: dict[str, str] = Field(default_factory=dict)
    """Replicas fixed to a host (`gpu-b`), or to GPUs of one (`gpu-b:2`, `gpu-b:0-3`)."""
    program: Program
    """The program that the replicas run."""
    layout: dict[str, Any] | None = None
    """Positions, notes and frames of the editor. They do not affect a run."""

    def as_data(self) -> dict[str, Any]:
        """Returns the topology as plain data with the keys that were set."""
        data = self.model_dump(mode="json", exclude_unset=True)
        if self.layout is not None:
            data["layout"] = self.layout  # The layout is kept as read, so that its numbers are not converted.
        return data

    @property
    def ends_with(self) -> EndsWith:
        """`program.ends_with` or its default.

        With launcher `command` and parameter servers, the chief determines the end, since the servers of other
        frameworks, such as TensorFlow, may not end.
        """
        if self.program.ends_with is not None:
            return self.program.ends_with
        serves = self.program.launcher is Launcher.COMMAND and any(p.role is Role.PS for p in self.pools)
        return EndsWith.CHIEF if serves else EndsWith.TRAINERS
