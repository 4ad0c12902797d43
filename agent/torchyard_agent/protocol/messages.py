"""The JSON that desktop, daemon and keeper hand each other about a run, as typed dictionaries."""

from __future__ import annotations

from typing import Any, TypedDict


class RankShare(TypedDict):
    """One process of a replica."""

    rank: int | None
    """Its RANK in the trainers' world; None outside it (servers, reducers, evaluators)."""
    local_rank: int
    argv: list[str]
    env: dict[str, str]
    """All of its environment beyond the login's, but for what only the host knows (see `keeper.ranks`)."""


class ReplicaShare(TypedDict):
    """One replica as the keeper of its host starts it."""

    name: str
    role: str
    index: int
    gang: str
    host: str
    trainer: bool
    gpus: list[str]
    generation: int
    """How often its gang has been restarted."""
    ranks: list[RankShare]


class ReplicaPlan(TypedDict):
    """One replica as it was planned: what does not depend on who else takes part (see `contract`)."""

    name: str
    role: str
    index: int
    pool: str
    gang: str
    host: str
    trainer: bool
    gpus: list[str]
    processes: int
    """How many ranks it is."""
    address: str
    """`host:port` on the data network."""
    run_dir: str
    """The run's folder on its host."""
    argv: list[str]
    """With the placeholders of `program.args` and `program.command` still in it."""
    env: dict[str, str]


class Master(TypedDict):
    """Where a torch world's first rank serves its store, as planned."""

    replica: str
    port: Any


class Cluster(TypedDict):
    """What all replicas of a run have in common."""

    run_id: str
    launcher: str
    """`torch` or `command`."""
    max_restarts: int
    tf_master_name: str
    trial: str | None
    several: bool
    """Whether the run was planned with more than one replica: then TF_CONFIG is set."""
    job: dict[str, Any]
    """The topology, for CLUSTER_SPEC's `job`."""
    masters: dict[str, Master]
    """By gang."""
    options: dict[str, Any]
    """The whole strategy block, defaults and all, and what else `torchyard_roles` goes by (TORCHYARD_OPTIONS)."""


class Policy(TypedDict):
    """When a run ends, and how patient it is. Seconds."""

    ends_with: str
    stop_grace_s: float
    failure_grace_s: float
    host_wait_s: float
    max_restarts: int
    """A gang."""
    min_replicas: dict[str, int]
    """By pool: how few are enough to go on without a lost host."""


class Prepare(TypedDict):
    """`run.prepare`: what a host needs before anyone knows the others' ports."""

    run_id: str
    name: str
    host: str
    secret: str
    """64 hex digits: the gang link's key. Kept in the keeper's memory only; ranks are given a key made from it."""
    snapshot: str | None
    """Root hash of the working folder in the store; None where the run has none."""
    gpus: list[str]
    """UUIDs to lock."""
    ports: int
    """How many ports to hold, beside the gang link's."""
    port_range: list[int] | None
    """[first, last] that the firewall lets through, or None for any."""
    data_address: str | None
    """The host's address on the data network; None lets the host find it."""
    interface: str | None
    towards: str | None
    """Where `data_address` is None: the address of the primary, to see which own address leads there."""
    resume_from: str | None
    """A run that has ended, whose newest checkpoint on this host the new one begins with."""
    later: bool
    """The run is scheduled: its GPUs are locked at its start, and not now."""
    record: dict[str, Any]
    """Kept in `run.json` for other desktops: the topology's text, the planned replicas, who launched it."""


class Warm(TypedDict):
    """`run.warm`: interpreters that start while a launch still checks and sends. See docs/architecture.md."""

    run_id: str
    host: str
    replicas: list[ReplicaShare]
    """Those of the host, as far as they are planned: what is only known at the start stands in as any text."""
    run_dir: str
    """The text that stands for the run's folder."""
    imports: list[str]
    """Modules to import."""


class Prepared(TypedDict):
    """The answer to `run.prepare`."""

    pid: int
    """The keeper's."""
    address: str
    interface: str
    ports: list[int]
    gang_port: int
    run_dir: str
    checkpoint: str
    """The checkpoint that `resume_from` gave, by its folder's name; empty where there is none."""


class Member(TypedDict):
    host: str
    address: str
    gang_port: int


class Start(TypedDict):
    """`run.start`, to the primary's keeper alone: the whole run. It hands each member its share."""

    members: list[Member]
    """The primary first."""
    cluster: Cluster
    replicas: list[ReplicaPlan]
    """In plan order."""
    policy: Policy
    setup: list[str]
    """Shell lines to run before each rank."""
    secrets: dict[str, str]
    """Values by name; in memory and in the ranks' environment only."""
    notify: str | None
    carry: bool
    """Whether the keepers carry checkpoints: the hosts share no folder for them."""
    spare_imports: list[str]
    """Modules that a spare interpreter of each rank imports while the run trains; empty: there are no spares."""
    start_at: Any
    """When it begins by itself: RFC 3339 with an offset, or seconds since 1970; None for now."""
    booking: Any
    """{`id`, `owner`, `end`, `stop_at_end`} of the booking that it runs in, or None."""


class Join(TypedDict):
    """`run.join`, to every other keeper."""

    primary: Member
