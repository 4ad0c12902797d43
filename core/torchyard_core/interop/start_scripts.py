"""Shell scripts that start the replicas of each pool under another system, such as Kubernetes or Slurm.

Trainers with the launcher `torch` are started by torchrun; all other replicas run the program itself. The scripts
compute CLUSTER_SPEC, TF_CONFIG and the values of placeholders from the number of the replica in its pool.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torchyard_agent.protocol.placeholders import NAMES
from torchyard_core.interop.document_writer import file_name
from torchyard_core.interop.program_conversion import role_pools, words
from torchyard_core.interop.remarks import Remark
from torchyard_core.topology.machine_types import with_machine_sizes
from torchyard_core.topology.model import Launcher, Pool, Role, Topology

MASTER_PORT = 29400
_PLACEHOLDER = re.compile(r"\{(" + "|".join(NAMES) + r")\}")


@dataclass(frozen=True)
class Component:
    """A pool in a cluster manager: replicas of one kind, numbered from 0."""

    pool: Pool
    name: str
    """The pool's name in a form that job schedulers accept."""
    node: int | None
    """Node rank of the first replica among the trainers; None for other roles."""
    first: Mapping[str, int] = field(default_factory=dict)
    """Index of the component's first replica in each list of replicas that contains it.

    The keys are worker pools of CLUSTER_SPEC, task types of TF_CONFIG, and `job NAME` for the values of `job`.
    """
    tf_type: str | None = None
    worker_pool: str = ""
    job: str = ""
    """Value of `{job_name}`: the name of the job whose list of hosts contains the replicas.

    If there is no chief pool, worker 0 is the chief and is listed as a worker.
    """

    @property
    def role(self) -> Role:
        return self.pool.role


def components_of(topology: Topology, remarks: list[Remark]) -> list[Component]:
    """Returns the pools as components, the chief's first. Sizes that follow from machine types are filled in.

    If there is no chief pool, worker 0 is the chief.
    """
    topology = with_machine_sizes(topology)
    counts: dict[str, int] = {}
    found: list[Component] = []
    node, names = 0, set[str]()
    has_chief = any(pool.role is Role.CHIEF for pool in topology.pools)
    for pool in role_pools(topology, remarks, *Role, one_machine=False):
        tf_type = {Role.CHIEF: topology.program.tf_master_name.value, Role.REDUCER: None}.get(
            pool.role, pool.role.value
        )
        position = {Role.CHIEF: 0, Role.WORKER: 1, Role.EVALUATOR: 3}.get(pool.role, 2)
        chief = topology.program.tf_master_name.value if has_chief else Role.WORKER.value
        job = chief if pool.role is Role.CHIEF else pool.role.value
        counted = [f"workerpool{position}", f"job {job}", *([tf_type] if tf_type is not None else [])]
        name = plain = file_name(pool.name)
        number = 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.add(name)
        first = {job: counts.get(job, 0) for job in counted}
        found.append(Component(pool, name, node if pool.role.trains else None, first, tf_type, counted[0], job))
        for job in counted:
            counts[job] = counts.get(job, 0) + pool.replicas
        node += pool.replicas if pool.role.trains else 0
    return found


def nodes_of(components: Iterable[Component]) -> int:
    return sum(one.pool.replicas for one in components if one.role.trains)


def world_size_of(topology: Topology, components: Iterable[Component]) -> int:
    """Returns the number of ranks of all trainers."""
    per_gpu = topology.program.launcher is Launcher.TORCH
    return sum(one.pool.replicas * (max(1, one.pool.gpus) if per_gpu else 1) for one in components if one.role.trains)


def start_command(topology: Topology, one: Component, components: list[Component]) -> str:
    """Returns the shell command that starts a replica of a component.

    The command may use the script's variables REPLICA, MASTER_ADDR, PS_HOSTS and WORKER_HOSTS.
    """
    line = words(topology.program, one.pool)
    if topology.program.launcher is Launcher.TORCH and one.role.trains:
        line = _under_torchrun(topology, one, components)
    values = placeholder_values(topology, one, components)
    return " ".join(_quoted(word, values) for word in line)


def _under_torchrun(topology: Topology, one: Component, components: list[Component]) -> list[str]:
    program = topology.program
    what = ["-m", program.module] if program.module else [program.script or ""]
    python = [program.python, "-m", "torch.distributed.run"] if program.python else ["torchrun"]
    return [
        *python,
        f"--nnodes={nodes_of(components)}",
        "--node-rank={node_rank}",
        f"--nproc-per-node={max(1, one.pool.gpus)}",
        "--master-addr={master_addr}",
        "--master-port={master_port}",
        *what,
        *program.args,
        *one.pool.args,
    ]


def placeholder_values(topology: Topology, one: Component, components: list[Component]) -> dict[str, str]:
    """Returns the shell expression for the value of each placeholder `{…}` in `args` and `command`."""
    node = f"$((REPLICA + {one.node}))" if one.node is not None else "0"
    trains = one.role.trains
    return {
        "job_name": one.job,
        "task_index": f"$((REPLICA + {one.first[f'job {one.job}']}))",
        "ps_hosts": "$PS_HOSTS",
        "worker_hosts": "$WORKER_HOSTS",
        "rank": node,
        "world_size": str(world_size_of(topology, components)) if trains else "1",
        "nnodes": str(nodes_of(components)) if trains else "1",
        "node_rank": node,
        "nproc": str(max(1, one.pool.gpus)),
        "master_addr": "$MASTER_ADDR",
        "master_port": str(MASTER_PORT),
        "trial": "",
        "run_dir": "${TORCHYARD_RUN_DIR:-.}",
    }


def _quoted(word: str, values: Mapping[str, str]) -> str:
    """Quotes a word for the shell, so that only its placeholders are expanded."""
    parts = _PLACEHOLDER.split(word)  # In the result, plain text alternates with names of placeholders.
    if len(parts) == 1:
        return shlex.quote(word)
    shown = []
    for position, part in enumerate(parts):
        if position % 2:
            shown.append(f'"{values[part]}"' if "$" in values[part] else shlex.quote(values[part]))
        elif part:
            shown.append(shlex.quote(part))
    return "".join(shown)


def cluster_variables(one: Component, several: bool) -> list[str]:
    """Returns the shell lines that export CLUSTER_SPEC and TF_CONFIG, using the variables of `cluster_lists`.

    TF_CONFIG is omitted for reducers, and if the run has only one replica.
    """
    lines = [_exported("CLUSTER_SPEC", "$POOLS", one.worker_pool, one.first[one.worker_pool])]
    if several and one.tf_type is not None:
        lines.append(_exported("TF_CONFIG", "$TYPES", one.tf_type, one.first[one.tf_type]))
    return lines


def _exported(variable: str, cluster: str, kind: str, first: int) -> str:
    task = f'\\"task\\":{{\\"type\\":\\"{kind}\\",\\"index\\":$((REPLICA + {first}))}}'
    return f'export {variable}="{{\\"cluster\\":{cluster},{task}}}"'


LIST_FUNCTIONS = """\
as_json() {  # host:port,host:port as a JSON list
  printf '["%s"]' "$(printf '%s' "$1" | sed 's/,/","/g')"
}
joined() {  # lists as one
  (IFS=,; printf '%s' "$*")
}"""
"""Shell functions that the lines of `cluster_lists` call."""


def cluster_lists(components: list[Component]) -> list[str]:
    """Returns the shell lines that set PS_HOSTS, WORKER_HOSTS, POOLS and TYPES.

    POOLS and TYPES are the values of `cluster` in CLUSTER_SPEC and in TF_CONFIG. The lines read the addresses of
    component number N, separated by commas, from the variable `pool_N`.
    """
    pools: dict[str, list[str]] = {}
    types: dict[str, list[str]] = {}
    for number, one in enumerate(components):
        pools.setdefault(one.worker_pool, []).append(f'"$pool_{number}"')
        if one.tf_type not in (None, "evaluator"):
            types.setdefault(str(one.tf_type), []).append(f'"$pool_{number}"')
    lines = []
    for variable, job in (("PS_HOSTS", "ps"), ("WORKER_HOSTS", "worker")):
        members = [f'"$pool_{number}"' for number, one in enumerate(components) if one.job == job]
        lines.append(f"{variable}=$(joined {' '.join(members)})" if members else f"{variable}=")
    for variable, lists in (("POOLS", pools), ("TYPES", types)):
        parts = [f'\\"{name}\\":$(as_json "$(joined {" ".join(members)})")' for name, members in lists.items()]
        lines.append(f'{variable}="{{{",".join(parts)}}}"')
    return lines
