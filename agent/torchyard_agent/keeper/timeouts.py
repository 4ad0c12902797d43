"""The timeouts of a keeper in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchyard_agent.keeper.decisions.state import COLLECT_S

PREFIX = "TORCHYARD_KEEPER_"


class Timeouts(NamedTuple):
    """The timeouts of a keeper. Tests shorten them by environment variables such as `TORCHYARD_KEEPER_LEASE_S`."""

    launch_lease_s: float = 30.0
    """How long GPUs and ports are reserved for a launch that is not renewed and has not reached `start` or `join`.

    The desktop renews the lease every few seconds while its slowest host is being prepared.
    """
    join_within_s: float = 30.0
    """The time within which the members must connect to the primary."""
    heartbeat_s: float = 2.0
    lease_s: float = 10.0
    """A member from which the primary receives no message for this long is considered lost.

    A member that receives nothing from the primary for this time ends its own ranks.
    """
    collect_s: float = COLLECT_S
    """The time after the first failure within which further failures are candidates for the cause."""
    stuck_after_s: float = 10.0
    """The time from SIGKILL to the report of processes that are still running."""
    spares_after_s: float = 30.0
    """The time from the start of ranks to the start of their spare interpreters. Most failures happen earlier."""
    gpus_within_s: float = 600.0
    """The time after a scheduled run's start within which its GPUs must become free."""
    booking_warn_s: float = 600.0
    """How long before the deadline of a booking the user is warned, if the deadline is known early enough."""
    booking_notice_s: float = 60.0
    """The shortest time from the warning that a booking forces the run to end until the run is ordered to end."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Timeouts:
        given = {name: PREFIX + name.upper() for name in cls._fields}
        return cls(**{name: float(environ[variable]) for name, variable in given.items() if variable in environ})
