"""The description of a cluster: Slurm's version, partitions, nodes, limits, and the settings that affect runs."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
from typing import Any

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import commands, job_folder

OVERLAP_SINCE = (20, 11)
"""The version of Slurm that introduced `srun --overlap`."""
SHARED_FILE_SYSTEMS = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "afs"),
    *("panfs", "smb", "9p", "v9fs", "gfs", "ocfs2"),
)
"""The names that `stat -f` prints for network file systems, on which several hosts share a home folder."""


async def describe(partition: str | None, runs_dir: str) -> dict[str, Any]:
    """Returns the cluster's description.

    `nodes` has an entry for each group of nodes of the partition with equal hardware: `count`, `cpus`, `memory_mb`,
    `gpus` by type, the `names`, and the number of nodes by state.

    Args:
        partition: The partition whose nodes are described; by default, the cluster's default partition.
        runs_dir: The folder of the user's runs, for `last_stop`.
    """
    version, config, partitions, nodes = await asyncio.gather(
        commands.output(["scontrol", "--version"]),
        commands.output(["scontrol", "show", "config"]),
        commands.output(["scontrol", "-o", "show", "partition"]),
        commands.output(["scontrol", "-o", "show", "node"]),
    )
    reservations, accounting, limits, home = await asyncio.gather(
        _works(["scontrol", "-o", "show", "reservation"]),
        _works(["sacct", "-X", "-n", "-P", "-o", "JobID", "-S", "now"]),
        _limits(),
        _file_system(os.path.expanduser("~")),
    )
    found = [commands.pairs(line) for line in partitions.splitlines() if line.strip()]
    settings = commands.settings(config)
    return {
        "version": (re.search(r"\d+\.\d+(\.\d+)?", version) or [""])[0],
        "cluster": settings.get("ClusterName", ""),
        "partitions": [_partition(one) for one in found],
        "nodes": group(nodes, chosen_partition(found, partition)),
        "settings": {
            "KillWait": commands.duration(settings.get("KillWait", "")),
            "SlurmdTimeout": commands.duration(settings.get("SlurmdTimeout", "")),
            "ProctrackType": settings.get("ProctrackType", ""),
            "PreemptType": settings.get("PreemptType", ""),
            "PreemptMode": settings.get("PreemptMode", ""),
            "preempt_send_user_signal": _sends_user_signal(settings),
            "JobRequeue": settings.get("JobRequeue", "1") != "0",
            "cred_expire": _cred_expire(settings.get("AuthInfo", "")),
            "MaxArraySize": _whole(settings.get("MaxArraySize", "")),
        },
        "limits": limits,
        "reservations": reservations,
        "sacct": accounting,
        "overlap": _version(version) >= OVERLAP_SINCE,
        "home": {"file_system": home, "shared": any(name in home for name in SHARED_FILE_SYSTEMS)},
        "user": getpass.getuser(),
        "last_stop": await asyncio.get_running_loop().run_in_executor(None, job_folder.last_stop, runs_dir),
    }


def _sends_user_signal(settings: dict[str, str]) -> bool:
    """Returns whether a preemption with a GraceTime sends the signal of `--signal` instead of SIGTERM.

    Slurm moved the option from SlurmctldParameters to PreemptParameters, and shortened its name.
    """
    found = f"{settings.get('SlurmctldParameters', '')},{settings.get('PreemptParameters', '')}".split(",")
    return "preempt_send_user_signal" in found or "send_user_signal" in found


def _version(text: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def chosen_partition(partitions: list[dict[str, str]], wanted: str | None) -> str | None:
    """Returns the name of the partition for runs: `wanted`, or by default the cluster's default partition, if any.

    Raises RpcError if the cluster has no partition `wanted`.
    """
    names = [one.get("PartitionName", "") for one in partitions]
    if wanted is None:
        return next((one.get("PartitionName") for one in partitions if one.get("Default") == "YES"), None)
    if wanted not in names:
        message = f"the cluster has no partition {wanted}; it has {', '.join(names) or 'none'}"
        raise RpcError(message, "no_partition", "Correct `partition` of the cluster in the fleet file.")
    return wanted


def _partition(found: dict[str, str]) -> dict[str, Any]:
    grace = found.get("GraceTime", "0")
    return {
        "name": found.get("PartitionName", ""),
        "default": found.get("Default") == "YES",
        "state": found.get("State", ""),
        "nodes": int(found.get("TotalNodes", "0")),
        "max_time_s": commands.duration(found.get("MaxTime", "")),
        "grace_s": float(grace) if grace.isdigit() else commands.duration(grace) or 0.0,
        "preempt_mode": found.get("PreemptMode", ""),
    }


def group(nodes: str, partition: str | None) -> list[dict[str, Any]]:
    """Groups the nodes of a partition, as printed by `scontrol -o show node`, by their hardware.

    Groups are sorted by a node's GPUs, then by its CPUs and its memory, largest first. If `partition` is None, all
    nodes are included.
    """
    shapes: dict[Any, dict[str, Any]] = {}
    for line in nodes.splitlines():
        node = commands.pairs(line)
        if "NodeName" not in node or (partition is not None and partition not in node.get("Partitions", "").split(",")):
            continue
        gpus = commands.gres(node.get("Gres", ""))
        cpus = int(node.get("CPUEfctv") or node.get("CPUTot") or 1)
        memory = int(node.get("RealMemory", "0"))
        key = (sum(gpus.values()), cpus, memory, tuple(sorted(gpus.items())))
        shape = shapes.setdefault(
            key, {"count": 0, "cpus": cpus, "memory_mb": memory, "gpus": gpus, "states": {}, "names": []}
        )
        shape["count"] += 1
        shape["names"].append(node["NodeName"])
        state = re.sub(r"[*~#!%$@^\-]+$", "", node.get("State", "UNKNOWN").split("+")[0]).lower()
        if "DRAIN" in node.get("State", ""):
            state = "drained"
        shape["states"][state] = shape["states"].get(state, 0) + 1
    return [shapes[key] for key in sorted(shapes, reverse=True)]


async def _works(argv: list[str]) -> bool:
    try:
        return (await commands.outcome(argv))[0] == 0
    except RpcError:
        return False


async def _limits() -> list[dict[str, str]]:
    """Returns the limits that are set for the user's associations, or [] if the cluster has no accounting."""
    names = ["Account", "Partition", "QOS", "MaxJobs", "MaxSubmitJobs", "MaxWall", "MaxTRES", "GrpTRES"]
    command = ["sacctmgr", "-n", "-P", "show", "assoc", f"user={getpass.getuser()}", f"format={','.join(names)}"]
    try:
        code, text, _ = await commands.outcome(command)
    except RpcError:
        return []
    rows = [line.split("|") for line in text.splitlines()] if code == 0 else []
    return [{name: value for name, value in zip(names, row) if value} for row in rows]


async def _file_system(path: str) -> str:
    try:
        return (await commands.output(["stat", "-f", "-c", "%T", path])).strip()
    except RpcError:
        return ""


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _cred_expire(text: str) -> float:
    found = re.search(r"cred_expire=(\d+)", text)
    return float(found[1]) if found else 120.0
