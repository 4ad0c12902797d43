"""The plan of a run in job.json: the parameters of `run.prepare` and `run.start`, with placeholders.

A placeholder is `@KIND:SLOT@` or `@KIND:SLOT:NUMBER@`: the `address`, `interface` and `run_dir` of a slot, one of its
ports (`port`), or one of its GPUs in the order of the plan (`gpu`). The desktop writes placeholders, because the nodes
become known only to the batch program.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torchyard_agent.protocol.messages import Member, OwnJobs, Place, Prepared

PLACEHOLDER = re.compile(r"@(address|interface|run_dir|port|gpu):([\w.-]+?)(?::(\d+))?@")
_MAY_BE_EMPTY = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Environment variables that are omitted if they would be empty because no interface was found."""


def fill(content: Any, prepared: Mapping[str, Prepared | Place], gpus: Mapping[str, list[str]]) -> Any:
    """Returns JSON content in which all placeholders are replaced. A string that is a single port becomes a number.

    Args:
        content: Parameters of a keeper's method.
        prepared: The results of `prepare` on the slots' keepers.
        gpus: The GPUs of each slot, in the order of the plan.
    """
    if isinstance(content, dict):
        filled = {fill(key, prepared, gpus): fill(value, prepared, gpus) for key, value in content.items()}
        return {key: value for key, value in filled.items() if value != "" or key not in _MAY_BE_EMPTY}
    if isinstance(content, list):
        return [fill(item, prepared, gpus) for item in content]
    if not isinstance(content, str):
        return content
    whole = PLACEHOLDER.fullmatch(content)
    if whole is not None and whole[1] == "port":
        return prepared[whole[2]]["ports"][int(whole[3])]
    return PLACEHOLDER.sub(lambda match: _value(match, prepared, gpus), content)


def _value(match: re.Match[str], prepared: Mapping[str, Prepared | Place], gpus: Mapping[str, list[str]]) -> str:
    kind, slot, number = match[1], match[2], int(match[3] or 0)
    if kind == "gpu":
        return gpus[slot][number]
    if kind == "port":
        return str(prepared[slot]["ports"][number])
    return str(prepared[slot][kind])  # type: ignore[literal-required]  # Any other kind is a key.


def slots(components: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the slots of a job's components."""
    return [slot for component in components for slot in component["slots"]]


def absent(prepare: Mapping[str, Any], gpus: int) -> tuple[Prepared, list[str]]:
    """Returns dummy values for a slot whose job has not started: the result of `prepare`, and the slot's GPUs.

    No rank uses these values.
    """
    place = Prepared(
        pid=0,
        address="0.0.0.0",  # No process binds this address.
        interface="",
        ports=[1] * int(prepare["ports"]),
        gang_port=0,
        run_dir="",
        checkpoint="",
    )
    return place, [""] * gpus


def own_jobs(start: Mapping[str, Any], later: Collection[str]) -> OwnJobs:
    """Returns the replicas and gang masters of the slots in `later`, whose jobs may start later, with placeholders."""
    replicas = [one for one in start["replicas"] if one["host"] in later]
    names = {one["name"] for one in replicas}
    masters = {gang: one for gang, one in start["cluster"]["masters"].items() if one["replica"] in names}
    return OwnJobs(replicas=replicas, masters=masters)


def members(slots: list[str], prepared: Mapping[str, Prepared]) -> list[Member]:
    """Returns the members of the run, the primary first."""
    return [
        Member(host=slot, address=prepared[slot]["address"], gang_port=prepared[slot]["gang_port"]) for slot in slots
    ]
