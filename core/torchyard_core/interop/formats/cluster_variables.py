"""CLUSTER_SPEC and TF_CONFIG as text: the value alone, `TF_CONFIG='{…}'`, or a script that sets the variable.

The variables are built by `torchyard_agent.protocol.rank_environment`, which also sets them for the replicas of runs.
"""

from __future__ import annotations

import ast
import json

from torchyard_agent.protocol.messages import Cluster, ReplicaPlan
from torchyard_agent.protocol.rank_environment import RankEnvironment
from torchyard_core.errors import UsageError
from torchyard_core.formatting import counted
from torchyard_core.interop.cluster_addresses import Job, addresses_for
from torchyard_core.interop.document_reader import DocumentReader
from torchyard_core.interop.document_writer import Exported, ExportOptions, chief_replica
from torchyard_core.interop.format_detection import strip_assignment
from torchyard_core.interop.python_literals import script_in
from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import nearest, no_lines
from torchyard_core.topology.model import Role, Topology
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.yaml_io.model_validation import validate

FORMS = ("json", "export")


def value_of(variable: str, text: str, source: str) -> DocumentReader:
    """Returns the document that `text` assigns to the variable. Without an assignment, the whole text is the document.

    Raises FileProblem if the document does not parse.
    """
    script = script_in(text, source)
    node = script.find([variable, variable.lower()]) if script is not None else None
    if script is None or node is None:
        return DocumentReader.of(strip_assignment(text), source)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return DocumentReader.of("\n" * (node.lineno - 1) + node.value, source)
    return DocumentReader(script.document(node))


def own_topology(reader: DocumentReader, jobs: dict[str, Job]) -> Topology | None:
    """Returns the topology that Torchyard has stored in the document's `job`.

    Returns None if there is no such topology, or if its number of replicas differs from the cluster's.
    """
    job = reader.at(("job",))
    if not isinstance(job, dict) or not {"version", "pools", "program"} <= job.keys():
        return None
    topology, _ = validate(Topology, job, {}, no_lines)
    if topology is None:
        return None
    replicas = sum(one.count for one in jobs.values() if one.role is not Role.EVALUATOR)
    planned = sum(pool.replicas for pool in topology.pools if pool.role not in (Role.EVALUATOR, Role.REDUCER))
    with_reducers = planned + sum(pool.replicas for pool in topology.pools if pool.role is Role.REDUCER)
    if replicas not in (planned, with_reducers):
        reader.remark(
            f"`job` has {counted(planned, 'replica')}, and the cluster {replicas}: the cluster was taken.", ("job",)
        )
        return None
    return topology


def check_task(reader: DocumentReader, jobs: dict[str, Job], allowed: tuple[str, ...]) -> tuple[str, int] | None:
    """Returns the type and index of the document's `task`, or None if the document has no `task`.

    Raises FileProblem if the cluster has no such task.
    """
    task = reader.block(("task",))
    if not task:
        return None
    kind = reader.text(("task", "type")) or ""
    if kind not in allowed:
        meant = nearest(kind, allowed)
        reader.stop(f"there is no task type `{kind}`.", ("task", "type"), meant or f"Allowed: {', '.join(allowed)}.")
    index = reader.whole(("task", "index"), 0)
    trial = reader.text(("task", "trial"))
    if trial is not None:
        why = "each trial is a run of its own, with `args` of its own"
        reader.remark(f"this is of trial {trial}: {why}.", ("task", "trial"))
    if kind == "evaluator":
        return kind, index
    job = jobs.get(kind)
    if job is None:
        reader.stop(f"the task is a {kind}, and the cluster has none.", ("task", "type"))
    if index >= job.count:
        reader.stop(
            f"the task's index is {index}, beyond the list of `{kind}`.",
            ("task", "index"),
            f"Allowed are 0 to {job.count - 1}.",
        )
    return kind, index


def written(variable: str, topology: Topology, options: ExportOptions) -> Exported:
    """Writes the environment variable of the chief, or of the chosen replica.

    Raises UsageError for an unknown replica, or one that does not get the variable.
    """
    chosen = options.replica or chief_replica(topology)
    plans = _plans(topology)
    by_name = {plan["name"]: plan for plan in plans}
    if chosen not in by_name:
        known = ", ".join(list(by_name)[:8])
        raise UsageError(f"there is no replica {chosen}.", code="no_replica", hint=f"There are {known}.")
    share = RankEnvironment(_cluster(topology, len(plans)), plans).share(by_name[chosen])
    value = share["ranks"][0]["env"].get(variable)
    if value is None:
        why = "a single replica gets none" if len(plans) == 1 else "TensorFlow has no task type for reducers"
        raise UsageError(f"{chosen} has no {variable}: {why}.", code="no_such_thing")
    remarks = [Remark("addresses are made of names: at launch Torchyard fills in the hosts' own, into every replica.")]
    if options.form == "export":
        quoted = value.replace("'", "'\\''")
        return Exported(f"export {variable}='{quoted}'\n", tuple(remarks))
    return Exported(json.dumps(json.loads(value), indent=2, ensure_ascii=False) + "\n", tuple(remarks))


def _cluster(topology: Topology, replicas: int) -> Cluster:
    return Cluster(
        run_id="",
        launcher=topology.program.launcher.value,
        max_restarts=0,
        tf_master_name=topology.program.tf_master_name.value,
        trial=None,
        params={},
        several=replicas > 1,
        job=topology.model_dump(mode="json", exclude_unset=True, exclude={"layout"}),
        masters={},
        options={},
    )


def _plans(topology: Topology) -> list[ReplicaPlan]:
    """Returns plans of all replicas. Only the fields for names, roles and addresses have meaningful values."""
    addresses = addresses_for(topology)
    return [
        ReplicaPlan(
            name=replica.name,
            role=replica.role.value,
            index=replica.index,
            pool=replica.pool.name,
            gang="trainers" if replica.role.trains else replica.name,
            trainer=replica.role.trains,
            address=addresses[replica.name],
            gpus=[],
            processes=1,
            host="",
            run_dir="",
            argv=[],
            env={},
        )
        for replica in replicas_of(topology)
    ]
