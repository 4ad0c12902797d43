"""Determines the command line and environment of every rank from a plan and the answers of its hosts.

The functions are pure. Variables that depend on which replicas take part (ranks, world sizes, CLUSTER_SPEC) are added
by `torchyard_agent.protocol.rank_environment`: here for a preview, and on the primary before each start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torchyard_agent.protocol.messages import Cluster, Master, ReplicaAssignment, ReplicaPlan
from torchyard_agent.protocol.rank_environment import RankEnvironment
from torchyard_core.launch.port_assignment import Port, Ports, assign_ports
from torchyard_core.launch.rank_assignment import Plan, PlannedReplica
from torchyard_core.topology.model import GpuIds, Launcher, Program
from torchyard_core.topology.strategies.diloco import mixing_of


@dataclass(frozen=True, slots=True)
class PreparedHost:
    """A host that is prepared for a run, with its address on the data network and the ports reserved for the run."""

    address: str
    interface: str
    """Network interface of `address`, for NCCL and Gloo. If it is empty, NCCL and Gloo choose one."""
    run_dir: str
    """The run's folder on the host."""
    python: str
    """The host's interpreter for programs."""
    ports: tuple[Port, ...]
    """The ports reserved on the host for the run, as many as `ports_needed` returns for the host."""

    @property
    def outputs(self) -> str:
        """The folder that `torchyard runs fetch` downloads, with checkpoints and one folder per replica."""
        return f"{self.run_dir}/outputs"


def replica_specs(
    plan: Plan, sites: Mapping[str, PreparedHost], run_id: str, trial: str | None = None, store: str = ""
) -> list[ReplicaAssignment]:
    """Returns the assignments for the first start of all replicas, without the values of secrets.

    `store` is the address of the join store. Raises ValueError if a replica has no host, or if too few ports are
    reserved on a host.
    """
    cluster, replicas = cluster_plan(plan, sites, run_id, trial)
    contract = RankEnvironment(cluster, replicas, store)
    return [contract.share(replica) for replica in replicas]


def cluster_plan(
    plan: Plan, sites: Mapping[str, PreparedHost], run_id: str, trial: str | None = None, lineage: str | None = None
) -> tuple[Cluster, list[ReplicaPlan]]:
    """Returns the values that all replicas of a run have in common, and the plan of each replica.

    The primary's keeper uses both to start and restart the replicas. The plans do not contain the values of secrets.
    `lineage` is the ID of the first run in the chain of runs that this run continues; by default, the ID of this run.
    Raises ValueError if a replica has no host, or if too few ports are reserved on a host.
    """
    unplaced = [planned.name for planned in plan.replicas if planned.host is None]
    if unplaced:
        raise ValueError(f"{unplaced[0]} has no host")
    ports = assign_ports(plan, {host: sites[host].ports for host in plan.hosts})
    replicas = _ReplicaPlans(plan, sites, ports, run_id, lineage or run_id)
    return _cluster(plan, ports, run_id, trial), [replicas.of(planned) for planned in plan.replicas]


def _cluster(plan: Plan, ports: Ports, run_id: str, trial: str | None) -> Cluster:
    program, strategy = plan.topology.program, plan.topology.strategy
    return Cluster(
        run_id=run_id,
        launcher=program.launcher.value,
        max_restarts=program.max_restarts,
        tf_master_name=program.tf_master_name.value,
        trial=trial,
        params={},
        several=len(plan.replicas) > 1,
        job=plan.topology.model_dump(mode="json", exclude_unset=True, exclude={"layout"}),
        masters={world.gang: Master(replica=world.master, port=ports.masters[world.gang]) for world in plan.worlds},
        options={
            **strategy.model_dump(mode="json"),
            "mixing": mixing_of(strategy),
            "checkpoint_every_s": program.checkpoint_every_s,
            "stop_grace_s": program.stop_grace_s,
        },
    )


class _ReplicaPlans:
    """Creates the plans of the replicas of one run."""

    def __init__(self, plan: Plan, sites: Mapping[str, PreparedHost], ports: Ports, run_id: str, lineage: str):
        self._name = plan.name
        self._lineage = lineage
        self._program = plan.topology.program
        self._strategy = plan.topology.strategy.kind.value
        self._sites = sites
        self._ports = ports
        self._run_id = run_id
        self._ranks_on_host = Counter(planned.host for planned in plan.replicas for _ in range(planned.ranks))

    def of(self, planned: PlannedReplica) -> ReplicaPlan:
        site = self._sites[planned.host or ""]
        return ReplicaPlan(
            name=planned.name,
            role=planned.role.value,
            index=planned.index,
            pool=planned.replica.pool.name,
            gang=planned.gang,
            host=planned.host or "",
            trainer=planned.trains,
            gpus=[gpu.uuid for gpu in planned.gpus],
            processes=planned.ranks,
            address=_host_and_port(site.address, self._ports.replicas[planned.name]),
            run_dir=site.run_dir,
            argv=self._argv(planned, site),
            env=self._environment(planned, site),
        )

    def _argv(self, planned: PlannedReplica, site: PreparedHost) -> list[str]:
        program = self._program
        args = [*program.args, *planned.replica.pool.args]
        if program.launcher is Launcher.COMMAND:
            return [*program.command, *args]
        target = ["-m", program.module] if program.module else [program.script or ""]
        return [program.python or site.python, *target, *args]

    def _environment(self, planned: PlannedReplica, site: PreparedHost) -> dict[str, str]:
        """Returns the variables of a replica.

        Variables of the user override defaults, but not the variables that Torchyard reserves.
        """
        defaults = {"PYTHONUNBUFFERED": "1"}
        if site.interface:
            defaults |= {"NCCL_SOCKET_IFNAME": site.interface, "GLOO_SOCKET_IFNAME": site.interface}
        if self._program.launcher is Launcher.TORCH:
            defaults |= self._torch_defaults(planned)
        contract = {
            "TORCHYARD_RUN_ID": self._run_id,
            "TORCHYARD_REPLICA": planned.name,
            "TORCHYARD_ROLE": planned.role.value,
            "TORCHYARD_INDEX": str(planned.index),
            "TORCHYARD_RUN_DIR": f"{site.outputs}/{planned.name}",
            "TORCHYARD_STRATEGY": self._strategy,
            "TORCHYARD_CHECKPOINTS": self._checkpoints(site),
            **_visible_gpus(planned, self._program.gpu_ids),
        }
        return defaults | self._program.env | planned.replica.pool.env | contract

    def _checkpoints(self, site: PreparedHost) -> str:
        """Returns the path of the checkpoint folder.

        In a folder that the hosts share, each lineage has its own checkpoint folder. Without a shared folder, the
        checkpoints are in the run's folder on each host.
        """
        return checkpoint_folder(self._program, self._name, self._lineage) or f"{site.outputs}/checkpoints"

    def _torch_defaults(self, planned: PlannedReplica) -> dict[str, str]:
        defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} if planned.trains else {}
        # As with torchrun, each process gets one OpenMP thread if several processes share a host.
        if self._ranks_on_host[planned.host] > 1:
            defaults["OMP_NUM_THREADS"] = "1"
        return defaults


def checkpoint_folder(program: Program, name: str, lineage: str) -> str | None:
    """Returns the checkpoint folder that the hosts of a run share, or None if there is none."""
    if program.checkpoint_dir is None:
        return None
    return f"{program.checkpoint_dir.rstrip('/')}/{_folder_name(name)}-{lineage}"


def _visible_gpus(planned: PlannedReplica, ids: GpuIds) -> dict[str, str]:
    """Returns CUDA_VISIBLE_DEVICES with all GPUs of the replica. Each rank selects its GPU by LOCAL_RANK."""
    if ids is GpuIds.INDEX:
        devices = ",".join(str(gpu.index) for gpu in planned.gpus)
        return {"CUDA_VISIBLE_DEVICES": devices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in planned.gpus)}


def _folder_name(name: str) -> str:
    """Converts a topology's name to a single path component that is neither `.` nor `..`."""
    plain = name.replace("/", "_").replace("\0", "_")
    return plain.replace(".", "_") if set(plain) == {"."} else plain


def _host_and_port(address: str, port: Port) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
