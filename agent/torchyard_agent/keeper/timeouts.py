"""The timeouts of a keeper, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchyard_agent.keeper.decisions.state import COLLECT_S

PREFIX = "TORCHYARD_KEEPER_"


class Timeouts(NamedTuple):
    """The timeouts of a keeper. Tests shorten them by environment variables such as `TORCHYARD_KEEPER_LEASE_S`."""

    launch_lease_s: float = 30.0
    """Until `start` or `join`: how long GPUs and ports are held for a launch that is not renewed. The desktop renews it
    every few seconds, however long the preparation of its slowest host takes."""
    join_within_s: float = 30.0
    """The time in which the members must connect to the primary."""
    heartbeat_s: float = 2.0
    lease_s: float = 10.0
    """Time without a message, such as a heartbeat, after which the primary considers a member lost, and a member that
    does not hear the primary ends its own ranks.
    """
    collect_s: float = COLLECT_S
    """Failures that arrive within this time of the first are candidates for the cause."""
    stuck_after_s: float = 10.0
    """Time from SIGKILL to the report of processes that the kernel has not ended."""
    spares_after_s: float = 30.0
    """Time from the start of ranks to the start of their spare interpreters. Most failing programs fail earlier."""
    gpus_within_s: float = 600.0
    """Time for a scheduled run's GPUs to become free after its start time."""
    booking_warn_s: float = 600.0
    """Shortest time from the warning to the time by which the run must leave its GPUs because of a booking, if the
    booking is known early enough.
    """
    booking_notice_s: float = 60.0
    """The shortest time between that warning and the order to end the run."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Timeouts:
        given = {name: PREFIX + name.upper() for name in cls._fields}
        return cls(**{name: float(environ[variable]) for name, variable in given.items() if variable in environ})
