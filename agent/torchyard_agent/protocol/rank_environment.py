"""The environment and command of each rank: torchrun's variables, TORCHYARD_*, CLUSTER_SPEC and TF_CONFIG.

This module does no I/O. Ranks, world sizes and addresses depend on which replicas take part, because a gang may
continue without a lost host. The primary computes them from the plan before each generation, and `torchyard plan`
computes them for display. With `launcher: torch`, trainers get torchrun's variables (torch 2.13:
`LocalElasticAgent._start_workers`). A node is the set of replicas that one torchrun would start. A replica with GPUs is
a node by itself: it sees only its own GPUs, so `cuda:LOCAL_RANK` is one of them. All replicas of a gang without GPUs on
one host form one node. Other roles do not get torchrun's variables, because with RANK and MASTER_ADDR a server or
evaluator would try to join the trainers. CLUSTER_SPEC has the format of Vertex AI
(https://cloud.google.com/vertex-ai/docs/training/distributed-training), and TF_CONFIG has TensorFlow's format.
`torchyard_roles` reads the TORCHYARD_ variables. TORCHYARD_KEY, the key for the server at TORCHYARD_STORE, is a secret
that each keeper derives when it spawns a rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from torchyard_agent.protocol.messages import Cluster, RankAssignment, ReplicaAssignment, ReplicaPlan
from torchyard_agent.protocol.placeholders import PARAMETERS, fill

VARIABLES_OF_A_RANK = frozenset(
    (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG", "CLUSTER_SPEC"),
    )
)
"""Variables that describe a process's position in a cluster, in addition to those that begin with TORCHYARD_ or
TORCHELASTIC_.
"""
STOP_VARIABLE = "TORCHYARD_STOP"
"""Name of a variable with the path of a file, which a keeper creates before it sends SIGTERM to stop the run.

A SIGTERM from another source, such as a user, a host that is low on memory, or a keeper that has lost the primary, ends
only the process that receives it.
"""
STOP_PATIENCE_VARIABLE = "TORCHYARD_STOP_PATIENCE"
"""Name of a variable with the time in seconds after SIGTERM within which the stop file may still appear."""
_READ_AT_START = (
    *("PYTHON", "LD_", "PATH", "TZ", "LANG", "LC_", "GLIBC_", "MALLOC_"),
    *("TORCH", "PYTORCH", "CUDA", "NVIDIA_", "NCCL_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_"),
)


class _Task(NamedTuple):
    kind: str
    number: int


class _Seat(NamedTuple):
    """The position of a replica among the trainers that take part."""

    first_rank: int
    """The first rank of the replica among all trainers."""
    first_world_rank: int
    """The first rank of the replica in its gang."""
    node_rank: int
    """The number of the replica in its gang."""
    node: tuple[str, str]
    """The torchrun node of the replica: (host, replica) if the replica is a node by itself, otherwise (host, "")."""
    first_local_rank: int
    """The first rank of the replica on its node."""


class _Node(NamedTuple):
    rank: int
    """The rank of the node among the nodes of its gang."""
    size: int
    """The number of ranks on the node."""


class _World(NamedTuple):
    members: list[ReplicaPlan]
    nodes: dict[tuple[str, str], _Node]
    size: int


def is_read_at_start(name: str) -> bool:
    """Returns whether Python at its start, or torch during its import, may read this environment variable."""
    return name.startswith(_READ_AT_START) and not name.startswith(("TORCHYARD_", "TORCHELASTIC_"))


class RankEnvironment:
    """The ranks and environment variables of the replicas that take part in a run.

    Args:
        replicas: The replicas that take part, in plan order.
        store: The `address:port` of the join store, which the primary serves. Not used if the run has no store.
    """

    def __init__(self, cluster: Cluster, replicas: Sequence[ReplicaPlan], store: str = ""):
        self._cluster = cluster
        self._replicas = list(replicas)
        self._worlds: dict[str, _World] = {}
        self._seats: dict[str, _Seat] = {}
        self._world_size = 0
        for replica in self._replicas:
            if replica["trainer"]:
                self._seat(replica)
        pools, self._pool_tasks = self._tasks(self._worker_pool)
        types, self._tf_tasks = self._tasks(self._tf_type)
        types.pop("evaluator", None)
        self._pools = {pool: pools[pool] for pool in sorted(pools)}
        self._types = types
        self._roles, self._positions = self._tasks(lambda replica: replica["role"])
        self._job = json.dumps(cluster["job"], separators=(",", ":"))
        self._common = self._common_variables(store)

    def _seat(self, replica: ReplicaPlan) -> None:
        world = self._worlds.get(replica["gang"], _World([], {}, 0))
        is_alone = bool(replica["gpus"]) or not replica["host"]
        at = (replica["host"], replica["name"] if is_alone else "")
        node = world.nodes.get(at, _Node(len(world.nodes), 0))
        world.nodes[at] = _Node(node.rank, node.size + replica["processes"])
        self._seats[replica["name"]] = _Seat(self._world_size, world.size, len(world.members), at, node.size)
        self._worlds[replica["gang"]] = world._replace(
            members=[*world.members, replica], size=world.size + replica["processes"]
        )
        self._world_size += replica["processes"]

    def share(
        self, replica: ReplicaPlan, generation: int = 0, attempt: int = 0, started_with: int = 0
    ) -> ReplicaAssignment:
        """Returns the assignment of a replica for a generation of its gang. The first generation is 0.

        Args:
            attempt: The number of times that the replica has returned to a gang that continued without it. It is 0 if
                the replica starts with its gang.
            started_with: The number of ranks with which the generation began, if the replica was added later.
        """
        return ReplicaAssignment(
            name=replica["name"],
            role=replica["role"],
            index=replica["index"],
            gang=replica["gang"],
            host=replica["host"],
            trainer=replica["trainer"],
            gpus=replica["gpus"],
            generation=generation,
            ranks=self._ranks(replica, generation, attempt, started_with),
        )

    def _ranks(self, replica: ReplicaPlan, generation: int, attempt: int, started_with: int) -> list[RankAssignment]:
        common = {
            **replica["env"],
            "TORCHYARD_WORLD_SIZE": str(self._world_size),
            "TORCHYARD_GENERATION": str(generation),
            **self._common,
            **self._cluster_variables(replica),
        }
        if attempt:
            common["TORCHYARD_RETURN"] = str(attempt)
        if started_with:
            common["TORCHYARD_STARTED_WITH"] = str(started_with)
        return [self._rank(replica, common, generation, number) for number in range(replica["processes"])]

    def _rank(
        self, replica: ReplicaPlan, common: Mapping[str, str], generation: int, local_rank: int
    ) -> RankAssignment:
        seat = self._seats.get(replica["name"])
        env = dict(common)
        if seat is not None:
            env["TORCHYARD_RANK"] = str(seat.first_rank + local_rank)
            env["TORCHYARD_GROUP"] = str(group_of(replica["gang"]))
            env["TORCHYARD_GROUP_RANK"] = str(seat.first_world_rank + local_rank)
            env["TORCHYARD_GROUP_SIZE"] = str(self._worlds[replica["gang"]].size)
        if self._cluster["launcher"] == "torch":
            env["TORCHELASTIC_ERROR_FILE"] = f"{replica['run_dir']}/errors/{replica['name']}.{local_rank}.json"
            if seat is not None:
                env.update(self._torchrun_contract(replica, seat, generation, local_rank))
        return RankAssignment(
            rank=None if seat is None else seat.first_world_rank + local_rank,
            local_rank=local_rank,
            argv=fill(replica["argv"], self._placeholders(replica, seat, local_rank)),
            env=env,
        )

    def _common_variables(self, store: str) -> dict[str, str]:
        """Returns the variables that are the same for all replicas."""
        variables = {"TORCHYARD_GROUPS": str(max(1, len(self._worlds)))}
        if self._cluster.get("options"):
            variables["TORCHYARD_OPTIONS"] = json.dumps(self._cluster["options"], separators=(",", ":"))
        if has_store(self._cluster):
            variables["TORCHYARD_PEERS"] = json.dumps(self._peers(), separators=(",", ":"))
            variables["TORCHYARD_STORE"] = store
        return variables

    def _peers(self) -> dict[str, list[list[Any]]]:
        peers: dict[str, list[list[Any]]] = {"ps": [], "reducer": [], "trainers": []}
        for replica in self._replicas:
            address, port = _address_and_port(replica["address"])
            place = [replica["name"], address, int(port) if port.isdecimal() else port]
            if replica["trainer"]:
                peers["trainers"].append([*place, replica["processes"], group_of(replica["gang"])])
            elif replica["role"] in peers:
                peers[replica["role"]].append(place)
        return peers

    def _torchrun_contract(self, replica: ReplicaPlan, seat: _Seat, generation: int, local_rank: int) -> dict[str, str]:
        world = self._worlds[replica["gang"]]
        address, port = self._master(replica["gang"])
        node = world.nodes[seat.node]
        rank, size = str(seat.first_world_rank + local_rank), str(world.size)
        return {
            "RANK": rank,
            "LOCAL_RANK": str(seat.first_local_rank + local_rank),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": str(node.size),
            "GROUP_RANK": str(node.rank),
            "GROUP_WORLD_SIZE": str(len(world.nodes)),
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": size,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": self._cluster["run_id"],
            "TORCHELASTIC_RESTART_COUNT": str(generation),
            "TORCHELASTIC_MAX_RESTARTS": str(self._cluster["max_restarts"]),
            # Rank 0 serves the torch.distributed store, because there is no torchrun agent.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            # These variables count processes within one replica. LOCAL_RANK counts them within a node, which may have
            # several replicas.
            "TORCHYARD_PROCESS": str(local_rank),
            "TORCHYARD_PROCESSES": str(replica["processes"]),
        }

    def _master(self, gang: str) -> tuple[str, str]:
        """Returns the address of a gang's torch.distributed store.

        The port is the planned one if rank 0 belongs to the replica that was planned for it. Otherwise it is the port
        of the replica with rank 0.
        """
        first = self._worlds[gang].members[0]
        address, own_port = _address_and_port(first["address"])
        planned = self._cluster["masters"].get(gang)
        if planned is not None and planned["replica"] == first["name"]:
            return address, str(planned["port"])
        return address, own_port

    def _cluster_variables(self, replica: ReplicaPlan) -> dict[str, str]:
        """Returns CLUSTER_SPEC and, if the run has several replicas and this one is not a reducer, TF_CONFIG."""
        variables = {"CLUSTER_SPEC": self._variable(self._pools, self._pool_tasks[replica["name"]])}
        if self._cluster["several"] and replica["name"] in self._tf_tasks:
            variables["TF_CONFIG"] = self._variable(self._types, self._tf_tasks[replica["name"]])
        return variables

    def _variable(self, cluster: Mapping[str, list[str]], task: _Task) -> str:
        described: dict[str, Any] = {"type": task.kind, "index": task.number}
        if self._cluster["trial"] is not None:
            described["trial"] = self._cluster["trial"]
        value = {"cluster": cluster, "environment": "cloud", "task": described}
        # The job is the same for all replicas, so it is serialized only once.
        return f'{json.dumps(value, separators=(",", ":"))[:-1]},"job":{self._job}}}'

    def _tasks(self, kind_of: Callable[[ReplicaPlan], str | None]) -> tuple[dict[str, list[str]], dict[str, _Task]]:
        """Returns the addresses of each task type, and the task of each replica.

        Tasks are numbered within each type.
        """
        members: dict[str, list[str]] = {}
        tasks: dict[str, _Task] = {}
        for replica in self._replicas:
            kind = kind_of(replica)
            if kind is not None:
                tasks[replica["name"]] = _Task(kind, len(members.setdefault(kind, [])))
                members[kind].append(replica["address"])
        return members, tasks

    def _is_chief(self, replica: ReplicaPlan) -> bool:
        """Returns whether the replica has rank 0 of all trainers.

        The replica with rank 0 is the chief, or the first worker if there is no chief.
        """
        seat = self._seats.get(replica["name"])
        return seat is not None and seat.first_rank == 0

    def _worker_pool(self, replica: ReplicaPlan) -> str:
        """Returns the name of a replica's pool in CLUSTER_SPEC, such as "workerpool0" for the chief."""
        if self._is_chief(replica):
            return "workerpool0"
        return {"worker": "workerpool1", "evaluator": "workerpool3"}.get(replica["role"], "workerpool2")

    def _tf_type(self, replica: ReplicaPlan) -> str | None:
        """Returns the replica's task type in TF_CONFIG, or None for reducers."""
        if self._is_chief(replica):
            return self._cluster["tf_master_name"]
        return None if replica["role"] == "reducer" else replica["role"]

    def _placeholders(self, replica: ReplicaPlan, seat: _Seat | None, local_rank: int) -> dict[str, str]:
        address, port = _address_and_port(replica["address"])
        values = {
            "job_name": self._cluster["tf_master_name"] if replica["role"] == "chief" else replica["role"],
            "task_index": str(self._positions[replica["name"]].number),
            "ps_hosts": ",".join(self._roles.get("ps", [])),
            "worker_hosts": ",".join(self._roles.get("worker", [])),
            "nproc": str(max(1, len(replica["gpus"]))),
            "trial": self._cluster["trial"] or "",
            **{PARAMETERS + name: value for name, value in self._cluster.get("params", {}).items()},
            "run_dir": replica["env"].get("TORCHYARD_RUN_DIR", ""),
            # A replica that is not a trainer counts as a world of one rank, so the same command works for all pools.
            **{"rank": "0", "world_size": "1", "nnodes": "1", "node_rank": "0"},
            "master_addr": address,
            "master_port": port,
        }
        if seat is not None:
            world = self._worlds[replica["gang"]]
            values["rank"] = str(seat.first_world_rank + local_rank)
            values["world_size"] = str(world.size)
            values["nnodes"] = str(len(world.members))
            values["node_rank"] = str(seat.node_rank)
            values["master_addr"], values["master_port"] = self._master(replica["gang"])
        return values


def has_store(cluster: Cluster) -> bool:
    """Returns whether the primary serves a join store, which some strategies need."""
    # Older desktops send no options, and the ranks of their runs do not use a store.
    return bool(cluster.get("options", {}).get("kind", "none") != "none")


def group_of(gang: str) -> int:
    """Returns the number of the worker group of a gang of trainers. It is 0 if the strategy is synchronous."""
    kind, _, number = gang.rpartition("-")
    return int(number) if kind == "group" and number.isdecimal() else 0


def _address_and_port(joined: str) -> tuple[str, str]:
    address, _, port = joined.rpartition(":")
    return address.strip("[]"), port
