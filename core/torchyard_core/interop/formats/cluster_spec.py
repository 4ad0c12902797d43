"""Vertex AI's CLUSTER_SPEC: the addresses of the worker pools, the task of the replica that receives it, and the job.

In the CLUSTER_SPEC of a Torchyard run, `job` contains the topology, which is imported without loss.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from torchyard_core.errors import FileProblem
from torchyard_core.interop.cluster_addresses import Job, as_pools, pins_with_remarks, read_jobs
from torchyard_core.interop.document_reader import DocumentReader, Imported, built
from torchyard_core.interop.document_writer import DEFAULT_OPTIONS, Exported, ExportOptions
from torchyard_core.interop.format_detection import expect
from torchyard_core.interop.formats import vertex
from torchyard_core.interop.formats.cluster_variables import FORMS as FORMS
from torchyard_core.interop.formats.cluster_variables import check_task, own_topology, value_of, written
from torchyard_core.interop.program_conversion import missing_program
from torchyard_core.topology.model import Role, Topology

ALLOWED = "`cluster` with workerpool0 to workerpool3, and `task`"
POOLS = {"workerpool0": Role.CHIEF, "workerpool1": Role.WORKER, "workerpool2": Role.PS, "workerpool3": Role.EVALUATOR}


def read(text: str, source: str = "CLUSTER_SPEC") -> Imported:
    """Reads a CLUSTER_SPEC. Raises FileProblem for other text, and for an invalid value."""
    expect("cluster-spec", text, source, ALLOWED)
    reader = value_of("CLUSTER_SPEC", text, source)
    jobs = read_jobs(reader, ("cluster",), POOLS)
    first = jobs.get("workerpool0")
    if first is None or first.count != 1:
        hint = "Allowed is one address: the primary's."
        reader.stop("workerpool0 does not have exactly one replica.", ("cluster", "workerpool0"), hint)
    check_task(reader, jobs, tuple(POOLS))
    own = own_topology(reader, jobs)
    if own is not None:
        return Imported(own, tuple(reader.remarks))
    from_job = _from_vertex_job(reader, jobs)
    if from_job is not None:
        return replace(from_job, remarks=(*reader.remarks, *from_job.remarks))
    return Imported(_built(reader, jobs, source), tuple(reader.remarks))


def _from_vertex_job(reader: DocumentReader, jobs: dict[str, Job]) -> Imported | None:
    """Returns the topology of a Vertex AI job in `job`, or None if `job` does not describe this cluster."""
    job: Any = reader.at(("job",))
    if isinstance(job, str):
        job = _parsed(job)
    if not isinstance(job, dict) or not {"workerPoolSpecs", "worker_pool_specs"} & job.keys():
        return None
    try:
        imported = vertex.read(json.dumps(job), "job")
    except FileProblem as problem:
        reader.remark(f"`job` cannot be read and is left out: {problem.message}", ("job",))
        return None
    if sum(pool.replicas for pool in imported.topology.pools) != sum(job.count for job in jobs.values()):
        reader.remark("`job` has other replicas than the cluster: the cluster was taken.", ("job",))
        return None
    # The line numbers of these remarks refer to the text of the job, not to this document.
    return replace(imported, remarks=tuple(replace(remark, line=None) for remark in imported.remarks))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _built(reader: DocumentReader, jobs: dict[str, Job], source: str) -> Topology:
    data: dict[str, Any] = {"name": "cluster-spec", "pools": as_pools(jobs.values())}
    if "workerpool2" in jobs:
        message = "workerpool2 is read as parameter servers; the document does not tell them from reducers."
        reader.remark(message, ("cluster", "workerpool2"))
    data |= pins_with_remarks(reader, jobs.values())
    data["program"] = missing_program(reader.remarks)
    return built(data, source, reader.line(("cluster",)))


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes the CLUSTER_SPEC of the chief, or of the chosen replica.

    Raises UsageError for an unknown replica, or one that gets no CLUSTER_SPEC.
    """
    return written("CLUSTER_SPEC", topology, options)
