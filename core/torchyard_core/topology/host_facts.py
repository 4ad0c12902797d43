"""What the planner knows of a host: what the fleet file says of it, and what was discovered there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PortRange = tuple[int, int]
"""First and last port, both included."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a host. `index` is NVML's."""

    index: int
    uuid: str
    name: str
    memory_mb: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host as the planner sees it. What nobody found out yet is None."""

    name: str
    address: str | None = None
    """Where it is reached by SSH; None for this computer."""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: int | None = None
    memory_gb: float | None = None
    gpus: tuple[Gpu, ...] = ()
    checked: bool = False
    """False: nothing is known of it, and it counts as able."""
    busy_gpus: frozenset[str] = frozenset()
    """UUIDs of GPUs that somebody uses: they are not free."""
    gpu_users: Mapping[str, str] = field(default_factory=dict)
    """Who that is, by UUID: logins, or nothing where nobody can tell."""
    gpu_bookings: Mapping[str, str] = field(default_factory=dict)
    """Who else has booked a GPU for the planned time, by UUID: `kim until 18:00`. They too are among `busy_gpus`."""
    booked_by: str = ""
    """Who else has booked the host itself for the planned time, one without GPUs: nothing is placed there."""
    use_known: bool = True
    """False: nobody knows now who uses its GPUs. They count as free, and are not said to be."""
    port_range: PortRange | None = None
    """What the firewall lets through between hosts; None for any port."""
    data_address: str | None = None
    """Its address for training traffic; None leaves the choice to the host."""
    interface: str | None = None
    python: str | None = None
    """The programs' interpreter that the fleet file names."""
    found_python: str | None = None
    """The interpreter that a check found."""
    torch: str | None = None
    """Version of torch in that interpreter."""

    def gpu_at(self, index: int) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def user_of(self, gpu: Gpu) -> str | None:
        """Who uses a GPU: a login, "" where nobody can tell who; None where it is free, or nothing is known."""
        return self.gpu_users.get(gpu.uuid, "") if gpu.uuid in self.busy_gpus else None

    def why_taken(self, gpu: Gpu) -> str | None:
        """`used by kim`, `booked by kim until 18:00`; None where it is free, or nothing is known.

        Who is on a GPU now is the better answer where both are known.
        """
        user = self.user_of(gpu)
        if user is None:
            return None
        booked = self.gpu_bookings.get(gpu.uuid)
        return f"booked by {booked}" if booked and not user else f"used by {user or 'somebody else'}"
