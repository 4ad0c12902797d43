"""Export to Kubernetes: a JobSet with one indexed Job per pool, or indexed Jobs with a headless Service.

Sources: Kubernetes' "Job with Pod-to-Pod Communication" (the name of a pod of an indexed Job is `JOB-INDEX.SERVICE`),
and JobSet v1alpha2 (`JOBSET-REPLICATEDJOB-0-INDEX.SUBDOMAIN`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torchyard_core.interop.cluster_addresses import PORT
from torchyard_core.interop.document_writer import (
    DEFAULT_OPTIONS,
    IMAGE,
    PLACEHOLDER_REMARK,
    Exported,
    ExportOptions,
    file_name,
    omission_remarks,
)
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
from torchyard_core.yaml_io.writer import dump_yaml

FORMS = ("jobset", "job")
MAX_NAME = 49
"""Maximum total length of the topology's name and a component's name. A pod's name has at most 63 characters."""
_HOSTS = """\
hosts_of() {  # so many pods as host:port,host:port, and what is before and after their numbers
  number=0 list=
  while [ "$number" -lt "$1" ]; do
    list=$list,$2$number$3
    number=$((number + 1))
  done
  printf '%s' "${list#,}"
}"""
_EXPANDED = re.compile(r"\$(?=\$|\([-._a-zA-Z])")
"""Matches a dollar sign that the kubelet would interpret as the beginning of a variable reference or an escape."""


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes a JobSet or, with the form `job`, a Service and a Job for each pool."""
    form = options.form or FORMS[0]
    remarks: list[Remark] = []
    components = components_of(topology, remarks)
    room = MAX_NAME - max(len(one.name) for one in components)
    name = file_name(topology.name)[:room].rstrip("-")
    pods = _Pods(topology, name, components, form, options.image or IMAGE)
    jobs = [(one, pods.job(one)) for one in components]
    if form == "job":
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}},
        }
        documents: list[Any] = [service]
        for one, spec in jobs:
            metadata = {"name": f"{name}-{one.name}", "labels": {"app": name}}
            documents.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
        if any(not one.role.trains for one in components):
            remarks.append(Remark("Jobs end one by one: delete those that serve when the trainers' are complete."))
        if topology.program.max_restarts:
            remarks.append(Remark("max_restarts: a plain Job does not start its peers anew; a JobSet does."))
    else:
        documents = [_jobset(topology, name, jobs)]
    remarks += _remarks_on(topology, name, options)
    return Exported("---\n".join(dump_yaml(document, lines=True) for document in documents), tuple(remarks))


def _remarks_on(topology: Topology, name: str, options: ExportOptions) -> list[Remark]:
    remarks = [] if options.image else [PLACEHOLDER_REMARK]
    if topology.program.secrets:
        keys = " ".join(f"--from-literal={key}=…" for key in topology.program.secrets)
        remarks.append(Remark(f"secrets come from the Secret {name}: `kubectl create secret generic {name} {keys}`."))
    for pool in topology.pools:
        if pool.gpus and (pool.gpu_model or pool.gpu_memory_gb):
            remarks.append(Remark(f"pool `{pool.name}`: choose nodes with its GPUs by your cluster's node labels."))
    program = (
        "script",
        "module",
        "command",
        "args",
        "setup",
        "python",
        "env",
        "secrets",
        "max_restarts",
        "ends_with",
        "tf_master_name",
    )
    pool_keys = ("env", "args", "cpus", "memory_gb", "gpus", "gpu_model", "gpu_memory_gb")
    return remarks + omission_remarks(topology, pool=pool_keys, program=program)


def _jobset(topology: Topology, name: str, jobs: list[tuple[Component, dict[str, Any]]]) -> dict[str, Any]:
    spec: dict[str, Any] = {"network": {"enableDNSHostnames": True, "subdomain": name}}
    wanted = {
        EndsWith.TRAINERS: [one.name for one, _ in jobs if one.role.trains],
        EndsWith.CHIEF: [one.name for one, _ in jobs if one.role is Role.CHIEF],
        EndsWith.ALL: [],
    }[topology.ends_with]
    if wanted:
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": wanted}
    spec["failurePolicy"] = {"maxRestarts": topology.program.max_restarts}
    spec["replicatedJobs"] = [{"name": one.name, "replicas": 1, "template": {"spec": job}} for one, job in jobs]
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True)
class _Pods:
    """The pods of all components, with their DNS names in the cluster."""

    _topology: Topology
    _name: str
    _components: list[Component]
    _form: str
    _image: str

    def _host(self, one: Component, index: int | str) -> str:
        between = "-0-" if self._form == "jobset" else "-"
        return f"{self._name}-{one.name}{between}{index}.{self._name}"

    def job(self, one: Component) -> dict[str, Any]:
        """Returns the spec of a component's indexed Job."""
        container: dict[str, Any] = {
            "name": "replica",
            "image": self._image,
            "command": ["/bin/sh", "-c", _EXPANDED.sub("$$", self._script(one))],
            "ports": [{"containerPort": PORT}],
        }
        env = self._environment(one.pool)
        if env:
            container["env"] = env
        resources = _resources(one.pool)
        if resources:
            container["resources"] = resources
        pod: dict[str, Any] = {"subdomain": self._name, "restartPolicy": "Never", "containers": [container]}
        template: dict[str, Any] = {"spec": pod}
        if self._form == "job":
            template = {"metadata": {"labels": {"app": self._name}}, "spec": pod}
        else:
            del pod["subdomain"]  # JobSet sets the subdomain of its pods itself.
        count = one.pool.replicas
        return {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimit": 0,
            "template": template,
        }

    def _environment(self, pool: Pool) -> list[dict[str, Any]]:
        plain = self._topology.program.env | pool.env
        listed: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in plain.items()]
        for secret in self._topology.program.secrets:
            listed.append({"name": secret, "valueFrom": {"secretKeyRef": {"name": self._name, "key": secret}}})
        return listed

    def _script(self, one: Component) -> str:
        components = self._components
        lines = ["set -e", "REPLICA=$JOB_COMPLETION_INDEX", f"MASTER_ADDR={self._host(components[0], 0)}"]
        # The script computes the addresses, because a list of a thousand addresses may exceed the maximum length of a
        # command.
        lines += [_HOSTS, LIST_FUNCTIONS]
        for number, other in enumerate(components):
            before, after = self._host(other, "/").split("/")
            lines.append(f"pool_{number}=$(hosts_of {other.pool.replicas} {before} {after}:{PORT})")
        lines += cluster_lists(components)
        lines += cluster_variables(one, several=sum(other.pool.replicas for other in components) > 1)
        lines += self._topology.program.setup
        lines.append(f"exec {start_command(self._topology, one, components)}")
        return "\n".join(lines) + "\n"


def _resources(pool: Pool) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if pool.cpus is not None:
        asked["cpu"] = f"{pool.cpus:g}"
    if pool.memory_gb is not None:
        asked["memory"] = f"{pool.memory_gb * 1000:.0f}M"
    limits = {"nvidia.com/gpu": pool.gpus} if pool.gpus else {}
    return ({"requests": asked} if asked else {}) | ({"limits": limits} if limits else {})
