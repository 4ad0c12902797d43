"""Who uses what on a host now: what a sample of its telemetry says, for `status` and the Fleet page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchyard_core.topology.host_facts import HostFacts

SAMPLE_TIMEOUT_S = 30.0
"""A sample itself takes milliseconds; a host that swaps takes long to answer anything."""


def user_of(process: dict[str, Any]) -> str:
    """A replica of ours as RUN/REPLICA; who else as `lee: python (4711)`."""
    return str(process["replica"] or f"{process['user']}: {process['program']} ({process['pid']})")


def users_of(gpu: dict[str, Any]) -> list[str]:
    """Everyone on one GPU of a sample, each once."""
    return list(dict.fromkeys(user_of(process) for process in gpu["processes"]))


def with_use(facts: HostFacts, sample: Mapping[str, Any] | None) -> HostFacts:
    """A host with who uses its GPUs by a sample of its telemetry; by None, nobody knows."""
    if sample is None:
        return replace(facts, busy_gpus=frozenset(), gpu_users={}, use_known=False)
    users = {str(gpu["uuid"]): _logins(gpu) for gpu in sample["gpus"] if _workers(gpu)}
    return replace(facts, busy_gpus=frozenset(users), gpu_users=users, use_known=True)


def _workers(gpu: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Without display servers, as the host's agent tells them."""
    return [process for process in gpu["processes"] if process.get("draws_screen") is not True]


def _logins(gpu: Mapping[str, Any]) -> str:
    logins = dict.fromkeys(str(process["user"] or "") for process in _workers(gpu))
    return ", ".join(login for login in logins if login not in ("", "unknown"))


def beside_gpus(sample: dict[str, Any]) -> list[str]:
    """The replicas that run on a host's CPUs only."""
    on_gpus = {process["replica"] for gpu in sample["gpus"] for process in gpu["processes"]}
    return [replica for replica in sample["replicas"] if replica not in on_gpus]
