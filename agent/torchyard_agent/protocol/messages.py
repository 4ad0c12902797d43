"""The parameters and results of the methods that prepare and start runs, as typed dictionaries."""

from __future__ import annotations

from typing import Any, TypedDict


class RankAssignment(TypedDict):
    """The assignment of one rank, from which its keeper starts it."""

    rank: int | None
    """The rank in its gang of trainers; None if the replica is no trainer."""
    local_rank: int
    argv: list[str]
    env: dict[str, str]
    """Variables in addition to the login's and those of the host (see `keeper.processes.rank_process`)."""


class ReplicaAssignment(TypedDict):
    """The assignment of one replica, from which its keeper starts the ranks."""

    name: str
    role: str
    index: int
    gang: str
    host: str
    trainer: bool
    gpus: list[str]
    generation: int
    """The number of restarts of the replica's gang."""
    ranks: list[RankAssignment]


class ReplicaPlan(TypedDict):
    """One planned replica, without values that depend on which replicas take part (see `rank_environment`)."""

    name: str
    role: str
    index: int
    pool: str
    gang: str
    host: str
    trainer: bool
    gpus: list[str]
    processes: int
    """The number of ranks of the replica."""
    address: str
    """`host:port` on the data network."""
    run_dir: str
    """The run's folder on its host."""
    argv: list[str]
    """The command line, in which the placeholders of `program.args` and `program.command` are not replaced yet."""
    env: dict[str, str]


class Master(TypedDict):
    """The planned address of the torch.distributed store of a gang, which the gang's first rank serves."""

    replica: str
    port: Any


class Cluster(TypedDict):
    """The settings that all replicas of a run share."""

    run_id: str
    launcher: str
    """The launcher of the program: `torch` or `command`."""
    max_restarts: int
    tf_master_name: str
    trial: str | None
    """Number of the trial, from "1"; None outside sweeps."""
    params: dict[str, str]
    """The parameters of the trial as text, for `{params.NAME}`. Older desktops do not send it."""
    several: bool
    """Whether the run was planned with several replicas, so that TF_CONFIG is set."""
    job: dict[str, Any]
    """The topology, for `job` in CLUSTER_SPEC and TF_CONFIG."""
    masters: dict[str, Master]
    """The planned addresses by gang."""
    options: dict[str, Any]
    """TORCHYARD_OPTIONS: the strategy block with its defaults, and other options of `torchyard_roles`."""


class Policy(TypedDict):
    """The rules for a run's end, its restarts and the loss of hosts. Times are in seconds."""

    ends_with: str
    stop_grace_s: float
    failure_grace_s: float
    host_wait_s: float
    max_restarts: int
    """Maximum number of restarts of a gang."""
    min_replicas: dict[str, int]
    """For each pool, the smallest number of replicas with which the run continues without a lost host."""
    on_worker_loss: str
    """`restart`, or `continue`: a gang of trainers continues without lost replicas. Older desktops do not send it."""


class Prepare(TypedDict):
    """The parameters of `run.prepare`, which are sent before the ports of other hosts are known."""

    run_id: str
    name: str
    host: str
    secret: str
    """64 hex digits: the gang link's key. Kept in the keeper's memory only; ranks get a derived key."""
    snapshot: str | None
    """Root hash of the working folder's snapshot; None if the run has none."""
    gpus: list[str]
    """The UUIDs of the GPUs to lock."""
    ports: int
    """The number of ports to hold, without the gang link's."""
    port_range: list[int] | None
    """The first and the last port that the firewall admits; None if it admits all ports."""
    data_address: str | None
    """The host's address on the data network; None if the host must determine it."""
    interface: str | None
    towards: str | None
    """Set only if `data_address` is None: the primary's address. The host then uses its own address on the route to the
    primary.
    """
    resume_from: str | None
    """An ended run, from whose newest checkpoint on this host the new run resumes; or None."""
    later: bool
    """Whether the run is scheduled, so that its GPUs are locked only at its start."""
    record: dict[str, Any]
    """Kept in `run.json` for other desktops: topology text, planned replicas, and the launching user."""


class Warm(TypedDict):
    """The parameters of `run.warm`: interpreters that start during the checks of a launch (docs/architecture.md)."""

    run_id: str
    host: str
    replicas: list[ReplicaAssignment]
    """The replicas of the host; values that are known only at the start are placeholders."""
    run_dir: str
    """The placeholder of the run's folder."""
    imports: list[str]
    """The modules that the interpreters import before the ranks start."""


class Prepared(TypedDict):
    """The result of `run.prepare`."""

    pid: int
    """The PID of the keeper."""
    address: str
    interface: str
    ports: list[int]
    gang_port: int
    run_dir: str
    checkpoint: str
    """The folder name of the checkpoint from `resume_from`; empty if there is none."""


class Member(TypedDict):
    host: str
    address: str
    gang_port: int


class Start(TypedDict):
    """The parameters of `run.start`, sent to the primary's keeper: the whole run."""

    members: list[Member]
    """The members of the run, beginning with the primary."""
    cluster: Cluster
    replicas: list[ReplicaPlan]
    """The replicas in plan order."""
    policy: Policy
    setup: list[str]
    """Shell lines to run before each rank."""
    secrets: dict[str, str]
    """The secrets by name, which are kept only in memory and in the ranks' environment."""
    notify: str | None
    carry: bool
    """Whether the keepers replicate checkpoints: the hosts share no folder for them."""
    spare_imports: list[str]
    """Modules that a spare interpreter of each rank imports while the run trains; empty if there are no spares."""
    start_at: Any
    """Start time: RFC 3339 with an offset, or seconds since 1970; None for now."""
    booking: Any
    """{`id`, `owner`, `end`, `stop_at_end`} of the run's booking, or None."""
    sweep: Any
    """The sweep whose coordinator the run is (`sweep_messages.Sweep`), or None."""


class Join(TypedDict):
    """The parameters of `run.join`, sent to the keepers of all other members."""

    primary: Member
