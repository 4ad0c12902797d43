"""How long a keeper waits for whom. Seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchyard_agent.keeper.decisions.state import COLLECT_S

PREFIX = "TORCHYARD_KEEPER_"


class Patience(NamedTuple):
    """The waits of architecture.md, 10; tests shorten them through the environment (`TORCHYARD_KEEPER_LEASE_S`)."""

    launch_lease_s: float = 30.0
    """Before `start` or `join`: how long a launch of which nothing is heard keeps what it holds. The desktop renews it
    every few seconds, however long its slowest host takes to be prepared."""
    join_within_s: float = 30.0
    """For the members to find the primary."""
    heartbeat_s: float = 2.0
    lease_s: float = 10.0
    """A member not heard for this long is lost; one that has not heard the primary stops its own ranks."""
    collect_s: float = COLLECT_S
    """Failures that arrive within this time of the first compete for being the cause."""
    stuck_after_s: float = 10.0
    """From SIGKILL to the sentence that names what the kernel has not let go."""
    spares_after_s: float = 30.0
    """From the start of ranks to that of their spare interpreters: a program that fails does so soon."""
    gpus_within_s: float = 600.0
    """For a scheduled run's GPUs to become free, once its time has come."""
    booking_warn_s: float = 600.0
    """Before a booking's end, where somebody else's follows."""
    booking_notice_s: float = 60.0
    """At least, from that warning to the end."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Patience:
        given = {name: PREFIX + name.upper() for name in cls._fields}
        return cls(**{name: float(environ[variable]) for name, variable in given.items() if variable in environ})
