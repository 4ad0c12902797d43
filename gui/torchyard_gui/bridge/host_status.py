"""The status of one host (facts, state, activity, users), the properties that hosts and clusters have in common, and
the number of hosts in each state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from torchyard_core.errors import AgentFailed, AgentMissing, HostError, TorchyardError
from torchyard_core.fleet.gpu_occupancy import is_in_use, replicas_without_gpu, users_of
from torchyard_core.fleet.host_audit import Act
from torchyard_core.fleet.host_check import DEGRADED, READY, HostCheck
from torchyard_core.fleet.host_facts_cache import Facts
from torchyard_core.fleet.inventory import Host
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.host_states import HostState

if TYPE_CHECKING:
    from torchyard_core.engines.slurm.cluster_check import ClusterCheck

UNKNOWN = "unknown"
"""The state of a host that has not been checked since the window was opened, or that no longer answers."""


@dataclass(frozen=True)
class HostActivity:
    """The activity in progress on a host, such as a check."""

    kind: str
    """The kind of activity: `waiting` (for its turn), `checking`, `looking`, `deploying`, `sending` or `undeploying`.
    """
    done: int = 0
    total: int = 0
    """Total number of bytes; 0 if unknown."""


@dataclass(frozen=True)
class GpuNow:
    """A GPU and its users. Measured values are None if they are currently unknown."""

    index: int
    name: str
    memory_mb: int
    memory_used_mb: float | None = None
    utilisation: float | None = None
    """Utilization in percent."""
    temperature_c: float | None = None
    power_w: float | None = None
    throttling: tuple[str, ...] = ()
    """Reasons for reduced clocks, by their names in NVML."""
    users: tuple[str, ...] | None = None
    problem: str | None = None


class CheckedEntry:
    """Properties that follow from the last check of a fleet file entry, which is a host, or a cluster with its login
    node.
    """

    state: str
    since: datetime | None
    check: HostCheck | ClusterCheck | None
    lost: TorchyardError | None
    doing: HostActivity | None

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def login(self) -> Host:
        """The host, or the login node of the cluster."""
        raise NotImplementedError

    @property
    def answers(self) -> bool:
        """Whether the agent answers."""
        return self.state in (READY, DEGRADED)

    @property
    def condition(self) -> HostState:
        """The state by which the entry is shown, filtered and counted."""
        if self.state == AgentFailed.state:
            return HostState.NO_AGENT if self.has_no_agent else HostState.AGENT_FAILED
        return HostState(self.state)

    @property
    def error(self) -> TorchyardError | None:
        """The error that makes the entry unusable, or None if there is none."""
        return self.lost or (self.check.error if self.check else None)

    @property
    def blocking_host(self) -> str:
        """The name of the host that the error concerns: the host itself, or a bastion on the route to it."""
        return self.error.host if isinstance(self.error, HostError) else self.name

    @property
    def has_no_agent(self) -> bool:
        """Whether the entry is unusable only because the agent is missing."""
        return isinstance(self.error, AgentMissing)

    @property
    def problems(self) -> list[TorchyardError]:
        if self.lost is not None:
            return [self.lost]
        return list(self.check.problems) if self.check else []


@dataclass(frozen=True)
class HostStatus(CheckedEntry):
    """Immutable status of one host. Methods return changed copies."""

    host: Host
    facts: HostFacts
    """Facts about the host for the planner."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """The last answer to `host.facts`, as recorded in the facts file; empty if none is recorded for `host.address`."""
    state: str = UNKNOWN
    """The state of a HostCheck, or UNKNOWN."""
    since: datetime | None = None
    """The time at which the state began; None if it is not known.

    If the state is UNKNOWN, this is the time at which the host stopped answering or was last checked.
    """
    check: HostCheck | None = None
    """The last check since the window was opened, or None if there was none."""
    lost: TorchyardError | None = None
    """The error with which the host stopped answering; None if it still answers."""
    doing: HostActivity | None = None
    sample: Mapping[str, Any] | None = None
    """The last telemetry sample, or None if there is none or it is too old."""
    remark: str = ""
    """The version of an agent that the last deployment kept because it was newer; "" if there was none."""
    acts: tuple[Act, ...] = ()
    """The latest audit records, oldest first. They are loaded when the host's details are shown."""

    @classmethod
    def from_facts(cls, host: Host, facts: HostFacts, found: Facts) -> HostStatus:
        """Returns the status before the first check, with the facts that an earlier session recorded."""
        known = found if facts.checked else {}
        return cls(host, facts, known, since=checked_at(known))

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def login(self) -> Host:
        return self.host

    @property
    def gpus(self) -> list[GpuNow]:
        """The GPUs of the latest sample or, if there is none, those of the recorded facts."""
        if self.sample is not None:
            return [
                GpuNow(
                    index=gpu["index"],
                    name=str(gpu["name"] or ""),
                    memory_mb=int(gpu["memory_mb"] or 0),
                    memory_used_mb=gpu["memory_used_mb"],
                    utilisation=gpu["utilisation"],
                    temperature_c=gpu.get("temperature_c"),
                    power_w=gpu.get("power_w"),
                    throttling=tuple(gpu.get("throttling", ())),
                    users=tuple(users_of(gpu)),
                    problem=gpu["problem"],
                )
                for gpu in self.sample["gpus"]
            ]
        return [GpuNow(gpu.index, gpu.name, gpu.memory_mb) for gpu in self.facts.gpus]

    @property
    def beside_gpus(self) -> list[str]:
        """The replicas that use no GPU of the host."""
        return replicas_without_gpu(dict(self.sample)) if self.sample is not None else []

    @property
    def gpus_in_use(self) -> int | None:
        return None if self.sample is None else sum(map(is_in_use, self.sample["gpus"]))

    def checked(self, check: HostCheck, now: datetime, remark: str = "") -> HostStatus:
        """Returns the status after a check at the time `now`."""
        same = check.state == self.state and self.lost is None
        sample = self.sample if check.state in (READY, DEGRADED) else None
        return replace(
            self,
            state=check.state,
            since=self.since if same else now,
            check=check,
            lost=None,
            doing=None,
            sample=sample,
            remark=remark,
        )

    def silent(self, why: TorchyardError, heard: datetime) -> HostStatus:
        """Returns the status of a host that has stopped answering, with the time `heard` of its last answer."""
        if not self.answers:
            return self
        return replace(self, state=UNKNOWN, since=heard, lost=why, sample=None)

    def sampled(self, sample: Mapping[str, Any], now: datetime) -> HostStatus:
        """Returns the status with new telemetry.

        If the host had stopped answering, its state reverts to that of its last check in this session.
        """
        if self.state == UNKNOWN and self.lost is not None and self.check is not None:
            return replace(self, state=self.check.state, since=now, lost=None, sample=sample)
        return replace(self, sample=sample)


def now() -> datetime:
    """Returns the current time of this computer."""
    return datetime.now(UTC)


def checked_at(found: Facts) -> datetime | None:
    try:
        return datetime.fromisoformat(str(found["checked_at"]))
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True)
class HostCount:
    """The hosts by state, and the hosts that are being checked. In the filter, clusters are counted too."""

    total: int
    by_state: dict[HostState, list[CheckedEntry]]
    """The hosts by state, in the order of HostState, without the hosts in `checking`. Empty states are omitted."""
    checking: list[CheckedEntry]
    """Hosts that are being checked and whose state is not known yet."""

    @property
    def answering(self) -> int:
        return sum(len(hosts) for state, hosts in self.by_state.items() if state.answers)


def count_hosts(hosts: Sequence[CheckedEntry]) -> HostCount:
    checking = [host for host in hosts if host.doing is not None and host.condition is HostState.UNKNOWN]
    known = [host for host in hosts if host not in checking]
    by_state = {state: [host for host in known if host.condition is state] for state in HostState}
    return HostCount(len(hosts), {state: found for state, found in by_state.items() if found}, checking)
