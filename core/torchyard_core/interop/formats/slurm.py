"""Export to Slurm: an `sbatch` script in which each pool is a component of a heterogeneous job.

Source: Slurm's "Heterogeneous Job Support". The script computes the addresses, which are unknown until it runs.
"""

from __future__ import annotations

from torchyard_core.interop.cluster_addresses import PORT
from torchyard_core.interop.document_writer import DEFAULT_OPTIONS, Exported, ExportOptions, file_name, omission_remarks
from torchyard_core.interop.remarks import Remark
from torchyard_core.interop.start_scripts import (
    LIST_FUNCTIONS,
    Component,
    cluster_lists,
    cluster_variables,
    components_of,
    start_command,
)
from torchyard_core.topology.model import EndsWith, Pool, Role, Topology

_HOSTS = """\
hosts_of() {  # the nodes of a component as host:port,host:port
  local of_group="SLURM_JOB_NODELIST_HET_GROUP_$1"
  local list="" node
  for node in $(scontrol show hostnames "${!of_group:-$SLURM_JOB_NODELIST}"); do
    list+="${list:+,}$node:$2"
  done
  printf '%s' "$list"
}"""

_WAIT = """\
status=0 awaited="AWAITED"
while [[ -n $awaited && $status == 0 ]]; do
  sleep 1
  left=
  for one in $awaited; do
    if kill -0 "$one" 2>/dev/null; then left+=" $one"; else wait "$one" || status=$?; fi
  done
  awaited=$left
done"""


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes an `sbatch` script that starts the topology, with one node per replica."""
    remarks: list[Remark] = []
    components = components_of(topology, remarks)
    lines = ["#!/bin/bash", f"#SBATCH --job-name={file_name(topology.name)}"]
    for number, one in enumerate(components):
        if number:
            lines.append("#SBATCH hetjob")
        lines.append(f"#SBATCH {' '.join(_resources(one.pool))}")
    lines += ["", "set -u", "", _HOSTS, LIST_FUNCTIONS, ""]
    lines += [f"pool_{number}=$(hosts_of {number} {PORT + number})" for number in range(len(components))]
    lines += cluster_lists(components)
    lines += ["export MASTER_ADDR=${pool_0%%:*} PS_HOSTS WORKER_HOSTS POOLS TYPES", ""]
    several = sum(one.pool.replicas for one in components) > 1
    for number, one in enumerate(components):
        lines += _start(topology, number, one, components, several)
    lines += _end(topology, components)
    remarks += _remarks_on(topology)
    return Exported("\n".join(lines) + "\n", tuple(remarks))


def _remarks_on(topology: Topology) -> list[Remark]:
    remarks = [Remark("submit it with `sbatch` in the folder that `program.workdir` names; all nodes must see it.")]
    remarks.append(Remark("partition, account and time limit are your site's: give them to `sbatch`."))
    if any(pool.gpu_model for pool in topology.pools):
        remarks.append(Remark("GPU types are their models in small letters; your site may name them otherwise."))
    if topology.program.secrets:
        names = ", ".join(topology.program.secrets)
        remarks.append(Remark(f"{names}: `sbatch` hands on the environment it is called in."))
    program = (
        "script",
        "module",
        "command",
        "args",
        "setup",
        "python",
        "env",
        "secrets",
        "ends_with",
        "tf_master_name",
    )
    pool = ("env", "args", "cpus", "memory_gb", "gpus", "gpu_model")
    return remarks + omission_remarks(topology, pool=pool, program=program)


def _resources(pool: Pool) -> list[str]:
    options = [f"--nodes={pool.replicas}", "--ntasks-per-node=1"]
    if pool.cpus is not None:
        options.append(f"--cpus-per-task={-(-pool.cpus // 1):.0f}")
    if pool.memory_gb is not None:
        options.append(f"--mem={pool.memory_gb * 1000:.0f}M")
    if pool.gpus:
        model = f"{pool.gpu_model.lower().replace(' ', '_')}:" if pool.gpu_model else ""
        options.append(f"--gpus-per-node={model}{pool.gpus}")
    return options


def _start(topology: Topology, number: int, one: Component, components: list[Component], several: bool) -> list[str]:
    env = topology.program.env | one.pool.env
    script = ["set -e", "REPLICA=$SLURM_PROCID", *cluster_variables(one, several)]
    script += [f"export {name}={_single_quoted(value)}" for name, value in env.items()]
    script += topology.program.setup
    script.append(f"exec {start_command(topology, one, components)}")
    mark = f"POOL_{number}"
    group = f"--het-group={number} " if len(components) > 1 else ""
    # srun inherits neither --cpus-per-task nor the options of a component, so its command line repeats these options.
    asked = " ".join(option for option in _resources(one.pool) if not option.startswith("--mem="))
    return [
        f"run_{number}=$(cat <<'{mark}'",
        *script,
        mark,
        ")",
        f'srun {group}{asked} --kill-on-bad-exit=1 bash -c "$run_{number}" &  # {one.pool.name}',
        f"started_{number}=$!",
        "",
    ]


def _single_quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


def _end(topology: Topology, components: list[Component]) -> list[str]:
    """Returns the lines that wait for the end of the run and then stop the remaining components.

    The run ends when the components that `ends_with` selects have finished, or when one of them fails.
    """
    roles = {EndsWith.TRAINERS: (Role.CHIEF, Role.WORKER), EndsWith.CHIEF: (Role.CHIEF,), EndsWith.ALL: tuple(Role)}
    ends = roles[topology.ends_with]
    awaited = [f"$started_{number}" for number, one in enumerate(components) if one.role in ends]
    return [_WAIT.replace("AWAITED", " ".join(awaited)), "kill $(jobs -p) 2>/dev/null", "wait", 'exit "$status"']
