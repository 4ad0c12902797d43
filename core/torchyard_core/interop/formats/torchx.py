"""Export to TorchX: a Python file that defines a component.

The component is a function that returns the AppDef (`torchx run FILE:NAME`). Source: `torchx.specs.AppDef`, and
`torchx.components.dist.ddp` for the address of rank 0.
"""

from __future__ import annotations

import keyword
import shlex
from typing import Any

from torchyard_core.interop.document_writer import (
    DEFAULT_OPTIONS,
    IMAGE,
    PLACEHOLDER_REMARK,
    Exported,
    ExportOptions,
    file_name,
    omission_remarks,
)
from torchyard_core.interop.program_conversion import words
from torchyard_core.interop.remarks import Remark
from torchyard_core.interop.start_scripts import Component, components_of
from torchyard_core.topology.model import Launcher, Program, Topology

RENDEZVOUS = "$${${rank0_env}:=localhost}:29500"
"""The address of the rendezvous.

TorchX replaces the placeholder with the name of an environment variable, whose value the shell then inserts.
"""


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes the Python file with the component. With launcher `torch`, all trainers form one role."""
    remarks: list[Remark] = []
    components = components_of(topology, remarks)
    torch = topology.program.launcher is Launcher.TORCH
    trainers = [one for one in components if one.role.trains] if torch else []
    roles = [_trainers(topology, trainers, remarks)] if trainers else []
    roles += [_role(topology, one) for one in components if one not in trainers]
    name = file_name(topology.name)
    function = name.replace("-", "_") + ("_" if keyword.iskeyword(name) else "")
    image = options.image or IMAGE
    text = [
        f'"""{name}, as a TorchX component: torchx run FILE:{function}"""',
        "",
        "import torchx.specs as specs",
        "",
        "",
        f"def {function}(image: str = {image!r}) -> specs.AppDef:",
        f'    """{name}',
        "",
        "    Args:",
        "        image: the image with the program and its packages",
        '    """',
        "    return specs.AppDef(",
        f"        name={name!r},",
        "        roles=[",
        *[line for role in roles for line in _shown(role)],
        "        ],",
        "    )",
    ]
    remarks += _remarks_on(topology, options)
    return Exported("\n".join(text) + "\n", tuple(remarks))


def _remarks_on(topology: Topology, options: ExportOptions) -> list[Remark]:
    remarks = [] if options.image else [PLACEHOLDER_REMARK]
    if topology.program.launcher is Launcher.COMMAND:
        remarks.append(Remark("TorchX sets neither TF_CONFIG nor CLUSTER_SPEC: the program must find its peers."))
    program = ("script", "module", "command", "args", "python", "env", "max_restarts")
    pool = ("env", "args", "cpus", "memory_gb", "gpus")
    filled = ("task_index",) if topology.program.launcher is Launcher.COMMAND else ()
    return remarks + omission_remarks(topology, pool=pool, program=program, filled=filled)


def _trainers(topology: Topology, components: list[Component], remarks: list[Remark]) -> dict[str, Any]:
    """Returns one role with all trainers. Its rank 0 is the chief."""
    pools = [one.pool for one in components]
    largest = max(pools, key=lambda pool: (pool.gpus, pool.cpus or 0, pool.memory_gb or 0))
    asked = {(pool.gpus, pool.cpus, pool.memory_gb) for pool in pools}
    if len(asked) > 1:
        remarks.append(Remark(f"all trainers are one role there, so each gets what pool `{largest.name}` asks for."))
    if len({(pool.args, tuple(pool.env.items())) for pool in pools}) > 1:
        remarks.append(Remark("`args` and `env` of single trainers' pools are left out: they are one role there."))
    program = topology.program
    what = ["-m", program.module] if program.module else [program.script or ""]
    same = pools[0].args if len({pool.args for pool in pools}) == 1 else ()
    count = sum(pool.replicas for pool in pools)
    line = [
        *([program.python, "-m", "torch.distributed.run"] if program.python else ["torchrun"]),
        "--rdzv_backend=c10d",
        "--rdzv_id=${app_id}",
        f"--nnodes={count}",
        f"--nproc_per_node={max(1, largest.gpus)}",
    ]
    # The dollar signs of the program's own arguments are escaped, so that neither TorchX nor the shell expands them.
    own = shlex.join([*what, *program.args, *same]).replace("$", "$$")
    quoted = " ".join([*line, f"--rdzv_endpoint={RENDEZVOUS}", own])
    env = program.env | (pools[0].env if len({tuple(pool.env.items()) for pool in pools}) == 1 else {})
    return _role_source("trainers", "bash", ["-c", quoted], env, count, program, largest)


def _role(topology: Topology, one: Component) -> dict[str, Any]:
    line = words(topology.program, one.pool)
    index = "${replica_id}"
    args = [word.replace("$", "$$").replace("{task_index}", index) for word in line[1:]]
    env = topology.program.env | one.pool.env
    return _role_source(one.name, line[0], args, env, one.pool.replicas, topology.program, one.pool)


def _role_source(
    name: str, entrypoint: str, args: list[str], env: dict[str, str], count: int, program: Program, pool: Any
) -> dict[str, Any]:
    memory = -1 if pool.memory_gb is None else round(pool.memory_gb * 1e9 / 2**20)
    cpu = -1 if pool.cpus is None else max(1, round(pool.cpus))
    return {
        "name": name,
        "entrypoint": entrypoint,
        "args": args,
        "env": {key: value.replace("$", "$$") for key, value in env.items()},
        "num_replicas": count,
        "max_retries": program.max_restarts,
        "resource": (cpu, pool.gpus, memory),
    }


def _shown(role: dict[str, Any]) -> list[str]:
    cpu, gpu, memory = role.pop("resource")
    lines = ["            specs.Role(", "                image=image,"]
    lines += [f"                {key}={value!r}," for key, value in role.items() if value not in ({}, [])]
    lines.append(f"                resource=specs.Resource(cpu={cpu}, gpu={gpu}, memMB={memory}),")
    return [*lines, "            ),"]
