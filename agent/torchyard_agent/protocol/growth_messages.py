"""The parameters and results of the methods that add replicas to a live run, as typed dictionaries."""

from __future__ import annotations

from typing import TypedDict

from torchyard_agent.protocol.messages import Member, ReplicaPlan


class Invitation(TypedDict):
    """The result of `run.invite`: the data that a host needs to join a live run."""

    primary: Member
    secret: str
    """The run's secret (see `Prepare`). Only the user's own daemons and desktops receive it."""
    replicas: list[dict[str, str]]
    """{`name`, `host`} of each replica, including added ones. `host` is "" if the replica's addition was cancelled."""


class Hold(TypedDict):
    """The parameters of `run.hold`, which reserves ports for new replicas.

    Sent to the keeper of a host in a live run.
    """

    ports: int
    """The number of additional ports to reserve until the run ends."""


class Grow(TypedDict):
    """The parameters of `run.grow`, sent to the primary: the replicas to add on one host."""

    member: Member | None
    """The address of the host if it is not a member of the run yet, otherwise None."""
    replicas: list[ReplicaPlan]
    by: str
