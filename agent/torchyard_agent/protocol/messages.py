"""The parameters and results of the methods that prepare and start runs, as typed dictionaries."""

from __future__ import annotations

from typing import Any, TypedDict


class RankAssignment(TypedDict):
    """The data from which a keeper starts one rank."""

    rank: int | None
    """The rank in its gang, or None if the replica is not a trainer."""
    local_rank: int
    argv: list[str]
    env: dict[str, str]
    """Environment variables in addition to those of the login and the host (see `keeper.processes.rank_process`)."""


class ReplicaAssignment(TypedDict):
    """The data from which a keeper starts the ranks of one replica."""

    name: str
    role: str
    index: int
    gang: str
    host: str
    trainer: bool
    gpus: list[str]
    generation: int
    """The number of times that the replica's gang has been restarted."""
    ranks: list[RankAssignment]


class ReplicaPlan(TypedDict):
    """One planned replica, without the values that depend on which replicas take part (see `rank_environment`)."""

    name: str
    role: str
    index: int
    pool: str
    gang: str
    host: str
    trainer: bool
    gpus: list[str]
    processes: int
    """The replica's number of ranks."""
    address: str
    """`host:port` on the data network."""
    run_dir: str
    """The run's folder on its host."""
    argv: list[str]
    """The command line. The placeholders of `program.args` and `program.command` have not yet been replaced."""
    env: dict[str, str]


class Master(TypedDict):
    """The planned address of a gang's torch.distributed store. The first rank of the gang serves the store."""

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
    """The number of the trial, beginning with "1", or None if the run is not a trial of a sweep."""
    params: dict[str, str]
    """The parameters of the trial as text, for `{params.NAME}`. Older desktops do not send this field."""
    several: bool
    """Whether the run was planned with several replicas. TF_CONFIG is set only if it was."""
    job: dict[str, Any]
    """The topology, which CLUSTER_SPEC and TF_CONFIG contain as `job`."""
    masters: dict[str, Master]
    """The planned address of each gang's torch.distributed store."""
    options: dict[str, Any]
    """The value of TORCHYARD_OPTIONS: the strategy block with its defaults, and other options of `torchyard_roles`."""


class Policy(TypedDict):
    """The rules for the end of a run, for restarts and for lost hosts. Times are in seconds."""

    ends_with: str
    stop_grace_s: float
    failure_grace_s: float
    host_wait_s: float
    max_restarts: int
    """Maximum number of restarts of a gang."""
    min_replicas: dict[str, int]
    """By pool, the minimum number of replicas with which the run continues after the loss of a host."""
    on_worker_loss: str
    """`restart`, or `continue` if a gang of trainers continues without lost replicas. May be missing."""


class Prepare(TypedDict):
    """The parameters of `run.prepare`. They are sent before the ports of other hosts are known."""

    run_id: str
    name: str
    host: str
    secret: str
    """The gang link's key in 64 hex digits. The keeper stores it only in memory, and ranks get a derived key."""
    snapshot: str | None
    """The root hash of the working folder's snapshot, or None if the run has none."""
    gpus: list[str]
    """The UUIDs of the GPUs to lock."""
    ports: int
    """The number of ports to reserve, excluding the gang link's port."""
    port_range: list[int] | None
    """The first and the last port that the firewall permits, or None if it permits all ports."""
    data_address: str | None
    """The host's address on the data network, or None if the host must determine it."""
    interface: str | None
    towards: str | None
    """The primary's address. Set only if `data_address` is None.

    The host then uses its own address on the route to the primary.
    """
    resume_from: str | None
    """The ID of an ended run, or None. The new run resumes from this run's newest checkpoint on this host."""
    later: bool
    """Whether the run is scheduled for later. Its GPUs are then locked only when it starts."""
    record: dict[str, Any]
    """Data that is stored in `run.json` for other desktops: topology text, planned replicas, and the launching user."""


class Warm(TypedDict):
    """The parameters of `run.warm`: the interpreters to start while a launch is checked (docs/architecture.md)."""

    run_id: str
    host: str
    replicas: list[ReplicaAssignment]
    """The replicas of the host, with placeholders for values that are known only when the run starts."""
    run_dir: str
    """The placeholder for the path of the run's folder."""
    imports: list[str]
    """The modules that the interpreters import in advance."""


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
    """The folder name of the checkpoint of `resume_from`, or "" if there is none."""


class Member(TypedDict):
    host: str
    address: str
    gang_port: int


class Start(TypedDict):
    """The parameters of `run.start`, sent to the primary. They describe the whole run."""

    members: list[Member]
    """The members of the run. The primary comes first."""
    cluster: Cluster
    replicas: list[ReplicaPlan]
    """The replicas in plan order."""
    policy: Policy
    setup: list[str]
    """Shell lines that are run before each rank."""
    secrets: dict[str, str]
    """The secrets by name. They are kept only in memory and in the environment of ranks."""
    notify: str | None
    carry: bool
    """Whether the keepers replicate checkpoints, because the hosts have no shared folder for checkpoints."""
    spare_imports: list[str]
    """The modules that spare interpreters of ranks import while the run trains. Empty if there are no spares."""
    start_at: Any
    """The start time in RFC 3339 with an offset or in seconds since 1970, or None to start immediately."""
    booking: Any
    """{`id`, `owner`, `end`, `stop_at_end`} of the run's booking, or None."""
    sweep: Any
    """The sweep that this run coordinates (`sweep_messages.Sweep`), or None."""
    own_jobs: OwnJobs
    """The replicas whose hosts belong to group jobs. Older desktops do not send this field."""


class OwnJobs(TypedDict):
    """The replicas of a run whose hosts belong to group jobs.

    These hosts are known only when the jobs start, so the plans contain placeholders (`slurm.run_plan`).
    """

    replicas: list[ReplicaPlan]
    masters: dict[str, Master]


class Place(TypedDict):
    """The resources of a group job's host, as its keeper reports them to the primary. See `Prepared` for the fields."""

    address: str
    interface: str
    ports: list[int]
    run_dir: str
    gpus: list[str]


class Join(TypedDict):
    """The parameters of `run.join`, sent to the keepers of all members except the primary."""

    primary: Member


class JoinFromOwnJob(Join):
    """The parameters of `run.join` for the keeper of a group job's host."""

    own_job: bool
    """Always true."""
