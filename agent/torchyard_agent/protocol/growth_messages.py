"""The parameters and results of the methods that add replicas to a live run, as typed dictionaries."""

from __future__ import annotations

from typing import TypedDict

from torchyard_agent.protocol.messages import Member, ReplicaPlan


class Invitation(TypedDict):
    """The result of `run.invite`: what a host needs to join a live run."""

    primary: Member
    secret: str
    """As in Prepare. Only the user's own daemons and desktops receive it."""
    replicas: list[dict[str, str]]
    """{`name`, `host`} of each replica of the run, including added ones. The host is empty for withdrawn replicas."""


class Hold(TypedDict):
    """The parameters of `run.hold`, sent to the keeper of a host of a live run on which replicas are added."""

    ports: int
    """The number of ports to hold in addition, until the run ends."""


class Grow(TypedDict):
    """The parameters of `run.grow`, sent to the primary's keeper: the replicas to add on one host."""

    member: Member | None
    """The address of the host if it is not a member of the run yet; else None."""
    replicas: list[ReplicaPlan]
    by: str
