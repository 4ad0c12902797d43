"""TensorFlow's TF_CONFIG: the addresses by task type, and the task of the replica that receives it.

`cluster` never contains an evaluator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchyard_core.interop.cluster_addresses import as_pools, pins_with_remarks, read_jobs, refuse_two_chiefs
from torchyard_core.interop.document_reader import DocumentReader, Imported, built
from torchyard_core.interop.document_writer import DEFAULT_OPTIONS, Exported, ExportOptions
from torchyard_core.interop.format_detection import expect
from torchyard_core.interop.formats.cluster_variables import FORMS as FORMS
from torchyard_core.interop.formats.cluster_variables import check_task, own_topology, value_of, written
from torchyard_core.interop.program_conversion import missing_program, of_module
from torchyard_core.topology.model import Role, Topology

ALLOWED = "`cluster` with addresses by type (chief or master, worker, ps), and `task`"
TYPES = {"chief": Role.CHIEF, "master": Role.CHIEF, "worker": Role.WORKER, "ps": Role.PS}
TASKS = (*TYPES, "evaluator")


def read(text: str, source: str = "TF_CONFIG") -> Imported:
    """Reads a TF_CONFIG. Raises FileProblem for other text, and for an invalid value."""
    expect("tf-config", text, source, ALLOWED)
    reader = value_of("TF_CONFIG", text, source)
    cluster = ("cluster",)
    if "evaluator" in reader.block(cluster):
        reader.stop(
            "the evaluator is a key of `cluster`.",
            (*cluster, "evaluator"),
            f"Allowed are {', '.join(TYPES)}: an evaluator is outside the cluster, in `task.type` alone.",
        )
    refuse_two_chiefs(reader, cluster)
    jobs = read_jobs(reader, cluster, TYPES)
    for name, job in jobs.items():
        if job.role is Role.CHIEF and job.count != 1:
            reader.stop(f"there are {job.count} of `{name}`.", job.place, "Allowed is one address.")
    reader.leave((), ("cluster", "task", "job", "environment"), {"rpc_layer": "TensorFlow's own is grpc"})
    task = check_task(reader, jobs, TASKS)
    own = own_topology(reader, jobs)
    if own is not None:
        return Imported(own, tuple(reader.remarks))
    pools = as_pools(jobs.values())
    if task is not None and task[0] == "evaluator":
        pools.append({"name": "eval", "role": "evaluator", "replicas": task[1] + 1})
    else:
        reader.remark("whether there is an evaluator only its own TF_CONFIG tells: add a pool if there was one.")
    data: dict[str, Any] = {"name": "tf-config", "pools": pools, **pins_with_remarks(reader, jobs.values())}
    data["program"] = _program(reader, "master" in jobs)
    return Imported(built(data, source, reader.line(cluster)), tuple(reader.remarks))


def _program(reader: DocumentReader, says_master: bool) -> dict[str, Any]:
    """Returns the program, which is the module in CloudML's `job` if there is one, otherwise a placeholder."""
    job = ("job",)
    module = reader.text((*job, "python_module")) if isinstance(reader.at(job), dict) else None
    program = (
        missing_program(reader.remarks, command=True)
        if module is None
        else of_module(module, reader.words((*job, "args")), torch=False)
    )
    return program | ({"tf_master_name": "master"} if says_master else {})


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes the TF_CONFIG of the chief, or of the chosen replica.

    Raises UsageError for an unknown replica, or one that gets no TF_CONFIG.
    """
    exported = written("TF_CONFIG", topology, options)
    if any(pool.role is Role.REDUCER for pool in topology.pools):
        note = replace(exported.remarks[0], message="reducers are not in it: TensorFlow has no equivalent for them.")
        exported = replace(exported, remarks=(*exported.remarks, note))
    return exported
