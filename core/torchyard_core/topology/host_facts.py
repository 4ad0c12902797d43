"""Facts about a host for the planner, from the fleet file and from the last check of the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NO_AGENT = "no agent"
"""The `check_failure` of a host on which the login works but no agent is installed."""
PortRange = tuple[int, int]
"""First and last port, both included."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a host. `index` is NVML's index of the GPU."""

    index: int
    uuid: str
    name: str
    memory_mb: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host in the form that the planner uses. Unknown facts are None."""

    name: str
    address: str | None = None
    """SSH destination; None for this computer."""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: int | None = None
    memory_gb: float | None = None
    gpus: tuple[Gpu, ...] = ()
    checked: bool = False
    """False for a host that was never checked, whose capacity is assumed to be unlimited."""
    check_failure: str = ""
    """If the host is not `checked`, the state found by the last attempt to check it, such as `unreachable`, or ""."""
    busy_gpus: frozenset[str] = frozenset()
    """UUIDs of GPUs that are not free: those in use, and those in `gpu_bookings` and `gpu_exclusions`."""
    gpu_users: Mapping[str, str] = field(default_factory=dict)
    """Logins of the users of busy GPUs, by UUID; empty where unknown."""
    gpu_bookings: Mapping[str, str] = field(default_factory=dict)
    """Other users' bookings of GPUs in the planned time, by UUID: `kim until 18:00`. They are in `busy_gpus`."""
    gpu_exclusions: Mapping[str, str] = field(default_factory=dict)
    """Reasons why a launch may not use free GPUs, by UUID: `outside the booking`. These GPUs are in `busy_gpus`."""
    booked_by: str = ""
    """Another user's booking of a host without GPUs in the planned time. No replica is placed on such a host."""
    use_known: bool = True
    """False if the current use of the GPUs is unknown. The GPUs then count as free, but are not shown as free."""
    port_range: PortRange | None = None
    """Ports that the firewall allows between hosts; None for any port."""
    data_address: str | None = None
    """Address for training traffic; None leaves the choice to the host."""
    interface: str | None = None
    python: str | None = None
    """Interpreter for programs, from the fleet file."""
    found_python: str | None = None
    """Interpreter for programs, found by a check."""
    torch: str | None = None
    """Version of torch in the interpreter for programs."""
    cluster: str = ""
    """The cluster of a slot, which stands for any node of a shape; "" for a host of the fleet file."""
    node: str = ""
    """The node that the cluster's scheduler has chosen for a slot; "" until then."""

    @property
    def unchecked_reason(self) -> str:
        """Returns why the capacity of a host that is not `checked` is unknown, for example `has not been checked`."""
        if self.lacks_agent:
            return "has no agent yet"
        return f"could not be checked ({self.check_failure})" if self.check_failure else "has not been checked"

    @property
    def lacks_agent(self) -> bool:
        """Whether the host is not `checked` only because its agent is not installed yet."""
        return self.check_failure == NO_AGENT

    def gpu_at(self, index: int) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def user_of(self, gpu: Gpu) -> str | None:
        """Returns the login of the user of a GPU.

        Returns "" if the GPU is busy but its user is unknown, and None for any other GPU.
        """
        return self.gpu_users.get(gpu.uuid, "") if gpu.uuid in self.busy_gpus else None

    def why_taken(self, gpu: Gpu) -> str | None:
        """Returns the reason why a GPU cannot be used, or None for a GPU that is free or whose use is unknown.

        Reasons are `used by kim`, `booked by kim until 18:00` or `outside the booking`, in this order of precedence.
        """
        user = self.user_of(gpu)
        if user is None:
            return None
        if not user and (booking := self.gpu_bookings.get(gpu.uuid)):
            return f"booked by {booking}"
        if not user and (exclusion := self.gpu_exclusions.get(gpu.uuid)):
            return exclusion
        return f"used by {user or 'another user'}"
