"""What the window knows of one host: what was found, since when, what is under way, and who uses it now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from torchyard_core.errors import AgentMissing, HostError, TorchyardError
from torchyard_core.fleet.gpu_occupancy import beside_gpus, users_of
from torchyard_core.fleet.host_audit import Act
from torchyard_core.fleet.host_check import DEGRADED, READY, HostCheck
from torchyard_core.fleet.host_facts_cache import Facts
from torchyard_core.fleet.inventory import Host
from torchyard_core.topology.host_facts import HostFacts

UNKNOWN = "unknown"
"""Nobody has looked since the window was opened, or the host no longer answers."""


@dataclass(frozen=True)
class Doing:
    """What is under way on a host."""

    kind: str
    """`waiting` (for its turn), `checking`, `looking`, `deploying`."""
    done: int = 0
    total: int = 0
    """Bytes; 0 where nobody knows."""


@dataclass(frozen=True)
class GpuNow:
    """One GPU with who is on it. What is not known now is None."""

    index: int
    name: str
    memory_mb: int
    memory_used_mb: float | None = None
    utilisation: float | None = None
    """Percent."""
    users: tuple[str, ...] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class HostStatus:
    """One host, as of now. Changed by `dataclasses.replace` and the methods here, which give a new one."""

    host: Host
    facts: HostFacts
    """As the planner sees it."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """The last answer to `host.facts`, from the file of facts: empty where there is none for this address."""
    state: str = UNKNOWN
    """That of a HostCheck, or UNKNOWN."""
    since: datetime | None = None
    """When the state began; for UNKNOWN, when the host was last heard of. None: never."""
    check: HostCheck | None = None
    """The last one since the window was opened."""
    lost: TorchyardError | None = None
    """Why a host that answered does not any more."""
    doing: Doing | None = None
    sample: Mapping[str, Any] | None = None
    """The last of its telemetry; None where there is none of now."""
    remark: str = ""
    """What a deploy had to say beside its result."""
    acts: tuple[Act, ...] = ()
    """What was done to it last, oldest first, of a host whose details somebody looked at."""

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def answers(self) -> bool:
        return self.state in (READY, DEGRADED)

    @property
    def error(self) -> TorchyardError | None:
        """What stands between us and the host."""
        return self.lost or (self.check.error if self.check else None)

    @property
    def in_the_way(self) -> str:
        """The host that the error is about: itself, or a bastion on the way to it."""
        return self.error.host if isinstance(self.error, HostError) else self.name

    @property
    def has_no_agent(self) -> bool:
        """Whether all that it lacks is the agent, which deploying puts there."""
        return isinstance(self.error, AgentMissing)

    @property
    def problems(self) -> list[dict[str, str]]:
        """What is wrong, each with code, message and hint."""
        if self.lost is not None:
            return [self.lost.to_json()]
        return list(self.check.problems) if self.check else []

    @property
    def gpus(self) -> list[GpuNow]:
        """Its GPUs: of the sample where there is one, else those that were found when it was last looked at."""
        if self.sample is not None:
            return [
                GpuNow(
                    index=gpu["index"],
                    name=str(gpu["name"] or ""),
                    memory_mb=int(gpu["memory_mb"] or 0),
                    memory_used_mb=gpu["memory_used_mb"],
                    utilisation=gpu["utilisation"],
                    users=tuple(users_of(gpu)),
                    problem=gpu["problem"],
                )
                for gpu in self.sample["gpus"]
            ]
        return [GpuNow(gpu.index, gpu.name, gpu.memory_mb) for gpu in self.facts.gpus]

    @property
    def beside_gpus(self) -> list[str]:
        """The replicas on its CPUs."""
        return beside_gpus(dict(self.sample)) if self.sample is not None else []

    @property
    def gpus_in_use(self) -> int | None:
        """How many GPUs somebody is on; None where that is not known."""
        return None if self.sample is None else sum(bool(gpu.users) for gpu in self.gpus)

    def checked(self, check: HostCheck, now: datetime, remark: str = "") -> HostStatus:
        """As a check found it at `now`."""
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
        """It answered until `heard`, and does not any more."""
        if not self.answers:
            return self
        return replace(self, state=UNKNOWN, since=heard, lost=why, sample=None)

    def sampled(self, sample: Mapping[str, Any], now: datetime) -> HostStatus:
        """With what goes on there now; a host that was silent is back."""
        if self.state == UNKNOWN and self.lost is not None and self.check is not None:
            return replace(self, state=self.check.state, since=now, lost=None, sample=sample)
        return replace(self, sample=sample)


def now() -> datetime:
    """Of this computer's clock."""
    return datetime.now(UTC)


def first_status(host: Host, facts: HostFacts, found: Facts) -> HostStatus:
    """Unknown, with what was found when somebody last looked."""
    known = found if facts.checked else {}
    return HostStatus(host, facts, known, since=checked_at(known))


def checked_at(found: Facts) -> datetime | None:
    """When somebody last looked."""
    try:
        return datetime.fromisoformat(str(found["checked_at"]))
    except (KeyError, ValueError):
        return None
