"""Texts about the status of a cluster, for its card, its details, and the summary of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from PySide6.QtCore import QCoreApplication

from torchyard_core import formatting
from torchyard_core.fleet.host_fields import Transport
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.fleet.labels import cpu_count, doing_word, full_time, place, sentence, short_time, since, state_word

translate = QCoreApplication.translate
Pairs = list[tuple[str, str]]


def node_count(count: int) -> str:
    one, several = translate("Fleet", "1 node"), translate("Fleet", "{count} nodes")
    return (one if count == 1 else several).format(count=count)


def nodes_text(status: ClusterStatus) -> str:
    """Returns the number of nodes of the partition as text, or "" if the number is unknown."""
    return "" if status.description is None else node_count(sum(shape["count"] for shape in status.description.shapes))


def nodes_as_of(status: ClusterStatus) -> str:
    """Returns the number of nodes with the time at which Slurm reported it, such as `14 nodes at 14:21`."""
    nodes = nodes_text(status)
    if not nodes or status.described is None:
        return nodes
    return translate("Fleet", "{nodes} at {time}").format(nodes=nodes, time=short_time(status.described))


def states_text(status: ClusterStatus) -> str:
    """Returns how many nodes are in each state, such as `43 idle, 21 allocated`, the most frequent state first."""
    states = Counter[str]()
    for shape in status.description.shapes if status.description is not None else ():
        states.update(shape["states"])
    return counts_text(dict(states.most_common()))


def counts_text(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())


def gpus_text(status: ClusterStatus) -> str:
    """Returns the number of GPUs of each type on all nodes of the partition, such as `192 × a100`."""
    if status.description is None:
        return ""
    kinds = Counter[str]()
    for shape in status.description.shapes:
        for kind, count in shape["gpus"].items():
            kinds[kind] += count * shape["count"]
    found = [f"{count} × {kind or translate('Fleet', 'GPU')}" for kind, count in kinds.items()]
    return ", ".join(found) or translate("Fleet", "no GPU")


def partition_text(status: ClusterStatus) -> str:
    """Returns the partition of the cluster's jobs: the partition in the fleet file or, without one, Slurm's default
    partition.
    """
    name = status.cluster.partition or next((one["name"] for one in _partitions(status) if one["default"]), "")
    if name:
        return translate("Fleet", "partition {partition}").format(partition=name)
    return translate("Fleet", "default partition")


def _partitions(status: ClusterStatus) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = () if status.description is None else status.description.answer["partitions"]
    return found


def slurm_text(status: ClusterStatus) -> str:
    """Returns `Slurm` with its version, or just `Slurm` if the version is unknown."""
    if status.description is None:
        return translate("Fleet", "Slurm")
    return translate("Fleet", "Slurm {version}").format(version=status.description.answer["version"])


def agent_version(status: ClusterStatus) -> str:
    """Returns the version of the agent on the login node, or "" if the version is unknown."""
    return "" if status.description is None else status.description.agent.partition(" ")[0]


def clusters_sentence(clusters: Sequence[ClusterStatus]) -> str:
    """Returns a sentence about how many clusters answer, or "" if there are no clusters or none has been checked."""
    if not any(status.check or status.lost for status in clusters):
        return ""
    answering = sum(status.condition.answers for status in clusters)
    if len(clusters) == 1:
        text = translate("Fleet", "{cluster} answers") if answering else translate("Fleet", "{cluster} does not answer")
        return text.format(cluster=clusters[0].name)
    several = translate("Fleet", "{answering} of {count} clusters answer")
    return several.format(answering=answering, count=len(clusters))


def spoken_cluster(status: ClusterStatus) -> str:
    """Returns a one-line description of a cluster, for screen readers."""
    kind = translate("Fleet", "Slurm cluster")
    state = doing_word(status) or f"{state_word(status)} {since(status)}"
    found = (status.name, kind, state, nodes_as_of(status), states_text(status), gpus_text(status), sentence(status))
    return ", ".join(part for part in found if part)


def cluster_tip(status: ClusterStatus) -> str:
    """Returns the full texts of a cluster's card, one per line, for its tool tip."""
    cluster = status.cluster
    jobs = [partition_text(status), account_text(status), limit_text(status)]
    when = full_time(status.since) if status.since is not None else ""
    nodes = [nodes_as_of(status), states_text(status), gpus_text(status)]
    kind = translate("Fleet", "{slurm} cluster").format(slurm=slurm_text(status))
    lines = [f"{cluster.name}: {kind}", place(status), when, *nodes, ", ".join(filter(None, jobs)), sentence(status)]
    return "\n".join(line for line in lines if line)


def account_text(status: ClusterStatus) -> str:
    """Returns the account and the QOS of the cluster's jobs, or "" if the fleet file names neither."""
    account, qos = status.cluster.account, status.cluster.qos
    found = [
        translate("Fleet", "account {account}").format(account=account) if account else "",
        translate("Fleet", "QOS {qos}").format(qos=qos) if qos else "",
    ]
    return ", ".join(filter(None, found))


def limit_text(status: ClusterStatus) -> str:
    """Returns the time limit of the cluster's jobs, or "" if the fleet file has none."""
    limit = status.cluster.time_limit
    return translate("Fleet", "time limit {time}").format(time=limit) if limit else ""


def cluster_pairs(status: ClusterStatus) -> Pairs:
    """Returns the rows about the login node and Slurm's settings."""
    pairs: Pairs = [(translate("Fleet", "Login"), place(status))]
    if status.description is None:
        return pairs
    about, settings = status.description.answer, status.description.answer["settings"]
    pairs += [
        (translate("Fleet", "Slurm"), str(about["version"])),
        *_agent_pairs(status.description.agent),
        (translate("Fleet", "Home"), about["home"]["file_system"] or translate("Fleet", "unknown file system")),
    ]
    wait = settings.get("KillWait")
    if wait is not None:
        pairs.append(("KillWait", _seconds(wait)))
    graces = [f"{one['name']} {_seconds(one['grace_s'])}" for one in about["partitions"] if one.get("grace_s")]
    pairs += [("GraceTime", ", ".join(graces))] if graces else []
    if settings.get("PreemptMode"):
        pairs.append((translate("Fleet", "Preemption"), str(settings["PreemptMode"])))
    pairs.append((translate("Fleet", "Processes"), str(settings["ProctrackType"]).removeprefix("proctrack/")))
    works = {"scontrol": about["reservations"], "sacct": about["sacct"], "srun --overlap": about["overlap"]}
    lacking = [what for what, able in works.items() if not able]
    if lacking:
        pairs.append((translate("Fleet", "Do not work"), ", ".join(lacking)))
    return pairs


def _agent_pairs(agent: str) -> Pairs:
    """Returns the rows about the agent. `agent` is text such as `1.0 on Python 3.11 at /usr/bin/python3`."""
    version, _, python = agent.partition(" on Python ")
    number, _, path = python.partition(" at ")
    return [(translate("Fleet", "Agent"), version), (translate("Fleet", "Agent's Python"), number), ("", path)]


def partition_pairs(status: ClusterStatus) -> Pairs:
    """Returns a row for each partition, with its nodes. The default partition is marked."""
    mark = translate("Fleet", "{nodes}, default")
    return [
        (str(one["name"]), mark.format(nodes=node_count(one["nodes"])) if one["default"] else node_count(one["nodes"]))
        for one in _partitions(status)
    ]


def node_pairs(status: ClusterStatus) -> Pairs:
    """Returns rows for each hardware configuration of the partition's nodes: the GPUs, the CPUs with the memory, and
    the node states.
    """
    pairs: Pairs = []
    for shape in status.description.shapes if status.description is not None else ():
        gpus = [f"{count} × {kind or translate('Fleet', 'GPU')}" for kind, count in shape["gpus"].items()]
        hardware = f"{cpu_count(shape['cpus'])}, {formatting.memory(shape['memory_mb'])}"
        lines = [*gpus, hardware, counts_text(shape["states"])]
        pairs += [(node_count(shape["count"]) if not number else "", line) for number, line in enumerate(lines)]
    if pairs and status.described is not None:
        pairs.append((translate("Fleet", "As of"), short_time(status.described)))
    return pairs


def limit_pairs(status: ClusterStatus) -> Pairs:
    """Returns the limits of the user's accounts, under the names that `sacctmgr` uses."""
    limits: Iterable[Mapping[str, Any]] = () if status.description is None else status.description.answer["limits"]
    return [(str(name), str(value)) for limit in limits for name, value in limit.items()]


def file_pairs(status: ClusterStatus) -> Pairs:
    """Returns the cluster's values in the fleet file, except for the login address, which `cluster_pairs` returns."""
    cluster, login = status.cluster, status.cluster.login
    wanted = [
        (translate("Fleet", "Partition"), cluster.partition),
        (translate("Fleet", "Account"), cluster.account),
        (translate("Fleet", "QOS"), cluster.qos),
        (translate("Fleet", "Time limit"), cluster.time_limit),
        (translate("Fleet", "Python"), cluster.python),
        *((translate("Fleet", "Setup") if not number else "", line) for number, line in enumerate(cluster.setup)),
        (translate("Fleet", "Private key"), login.identity_file),
        (translate("Fleet", "Jump host"), login.proxy_jump),
        (translate("Fleet", "Transport"), "openssh" if login.transport is Transport.OPENSSH else None),
        (translate("Fleet", "Agent's Python"), login.agent_python),
        (translate("Fleet", "Agent's folder"), login.agent_dir),
    ]
    return [(name, str(value)) for name, value in wanted if value]


def _seconds(value: float) -> str:
    return translate("Fleet", "{count} s").format(count=f"{value:.0f}")
