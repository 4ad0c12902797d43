"""The current users of GPUs, according to a telemetry sample of a host.

Only this module defines when a GPU is in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchyard_core.topology.host_facts import HostFacts

SAMPLE_TIMEOUT_S = 30.0
"""Timeout in seconds for a sample. A sample usually takes milliseconds, but a host that is swapping answers slowly."""
SAMPLE_VALID_S = 5.0
"""Time in seconds for which a sample is valid. After this time, the use of the host's GPUs is unknown."""


def user_of(process: dict[str, Any]) -> str:
    """Formats a process on a GPU: RUN/REPLICA for a replica, otherwise its user, program and PID."""
    return str(process["replica"] or f"{process['user']}: {process['program']} ({process['pid']})")


def users_of(gpu: dict[str, Any]) -> list[str]:
    """Formats the processes that a telemetry sample lists for a GPU, without duplicates."""
    return list(dict.fromkeys(user_of(process) for process in gpu["processes"]))


def with_occupancy(facts: HostFacts, sample: Mapping[str, Any] | None) -> HostFacts:
    """Returns the host's facts with the use of its GPUs according to a telemetry sample.

    Without a sample, the use is marked as unknown.
    """
    if sample is None:
        return replace(facts, busy_gpus=frozenset(), gpu_users={}, use_known=False)
    users = gpus_in_use(sample)
    return replace(facts, busy_gpus=frozenset(users), gpu_users=users, use_known=True)


def is_in_use(gpu: Mapping[str, Any]) -> bool:
    """Returns whether a GPU of a sample is in use. Display servers do not count as use."""
    return bool(_workers(gpu))


def gpus_in_use(sample: Mapping[str, Any]) -> dict[str, str]:
    """Returns, for each GPU in use, the logins whose processes use the GPU, separated by commas.

    Keys are GPU UUIDs. The value is empty if no login is known.
    """
    return {str(gpu["uuid"]): _logins(gpu) for gpu in sample["gpus"] if is_in_use(gpu)}


def _workers(gpu: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the processes on a GPU except display servers."""
    return [process for process in gpu["processes"] if process.get("draws_screen") is not True]


def _logins(gpu: Mapping[str, Any]) -> str:
    logins = dict.fromkeys(str(process["user"] or "") for process in _workers(gpu))
    return ", ".join(login for login in logins if login not in ("", "unknown"))


def replicas_without_gpu(sample: dict[str, Any]) -> list[str]:
    """Returns the replicas in a host's sample that use no GPU."""
    on_gpus = {process["replica"] for gpu in sample["gpus"] for process in gpu["processes"]}
    return [replica for replica in sample["replicas"] if replica not in on_gpus]
