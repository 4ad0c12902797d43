"""The parameters of a sweep, as typed dictionaries. The desktop sends them to the coordinator through the primary."""

from __future__ import annotations

from typing import Any, TypedDict, Union

ParameterValue = Union[str, int, float, bool]


class ParameterRange(TypedDict):
    """The distribution of a parameter (`torchyard_core.sweeps.model.Parameter`)."""

    distribution: str
    low: Any
    high: Any
    step: Any
    values: Any


class Objective(TypedDict):
    metric: str
    goal: str


class Search(TypedDict):
    """A search (`torchyard_core.sweeps.model.Search`). Settings with default values are null."""

    parameters: dict[str, ParameterRange]
    objective: Objective
    sampler: dict[str, Any]
    pruner: dict[str, Any]
    trials: int
    parallel: int


def parameter_text(value: ParameterValue) -> str:
    """Returns the text that replaces `{params.NAME}`: numbers in Python's shortest form, and `true` or `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class SweepSlot(TypedDict):
    """Hosts and GPUs that run one trial at a time, with the values that all runs of these trials share."""

    hosts: list[str]
    """The hosts of the slot, beginning with the primary of its trials."""
    cluster: Any
    """`protocol.messages.Cluster`, in which `run_id` is the sweep's `run_token`."""
    replicas: list[Any]
    """`protocol.messages.ReplicaPlan`, in which the run ID is the sweep's `run_token`."""
    prepare: dict[str, Any]
    """`protocol.messages.Prepare` by host, without `run_id` and `secret`."""


class Sweep(TypedDict):
    """The sweep in `run.start`. The primary keeps it in memory for the coordinator."""

    run_id: str
    name: str
    run_token: str
    """The placeholder for a trial's run ID in the slots."""
    search: Search
    slots: list[SweepSlot]
    policy: Any
    """`protocol.messages.Policy` of the trials."""
    carry: bool
    host_wait_s: float
    study: str
    """The study of the ended sweep that this sweep continues, as zlib-compressed SQLite in base64, or "" if none."""
