"""Facts about a host for the planner, from the fleet file and from the last check of the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NO_AGENT = "no agent"
"""The `check_failure` of a host on which the login works but no agent is installed."""
PortRange = tuple[int, int]
"""First and last port of a range, both included."""


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
    """False for a host that was never checked. The capacity of such a host is assumed to be unlimited."""
    check_failure: str = ""
    """The state found by the last failed check, such as `unreachable`; "" if the host is `checked` or was not tried."""
    busy_gpus: frozenset[str] = frozenset()
    """UUIDs of GPUs that are not free: those in use, and those in `gpu_bookings` and `gpu_exclusions`."""
    gpu_users: Mapping[str, str] = field(default_factory=dict)
    """Logins of the users of busy GPUs, by UUID; empty where unknown."""
    gpu_bookings: Mapping[str, str] = field(default_factory=dict)
    """Other users' bookings in the planned time, by GPU UUID: `kim until 18:00`. The GPUs are also in `busy_gpus`."""
    gpu_exclusions: Mapping[str, str] = field(default_factory=dict)
    """Reasons why a launch may not use free GPUs, by UUID: `outside the booking`. The GPUs are also in `busy_gpus`."""
    booked_by: str = ""
    """Another user's booking of a host without GPUs in the planned time. Such a host gets no replicas."""
    use_known: bool = True
    """False if the current use of the GPUs is unknown. The GPUs then count as free, but are not shown as free."""
    port_range: PortRange | None = None
    """Ports that the firewall allows between hosts; None for any port."""
    data_address: str | None = None
    """Address for training traffic; None leaves the choice to the host."""
    interface: str | None = None
    python: str | None = None
    """Python interpreter for training programs, as set in the fleet file."""
    found_python: str | None = None
    """Python interpreter for training programs, as found by a check of the host."""
    torch: str | None = None
    """Version of torch in the interpreter for training programs."""
    cluster: str = ""
    """The cluster to which a slot belongs; "" if these facts describe a host of the fleet file."""
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

        Returns "" if the GPU is busy but its user is unknown, and None if the GPU is not busy.
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
