"""The check of a cluster for `hosts check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.errors import AgentRefused, HostError, TorchyardError

WARNINGS = ("linuxproc", "kill_wait", "home_not_shared")
"""Codes of problems that do not prevent runs from starting."""


@dataclass(frozen=True)
class ClusterCheck:
    """The result of checking one cluster."""

    name: str
    partition: str | None
    description: ClusterDescription | None
    error: TorchyardError | None
    """The error that prevented the check; None if the cluster answered."""
    problems: tuple[TorchyardError, ...] = ()

    @classmethod
    def of(cls, hosts: ClusterHosts) -> ClusterCheck:
        """Checks a cluster."""
        cluster = hosts.cluster
        try:
            description = ClusterDescription.read(hosts.login(), cluster)
        except (HostError, AgentRefused) as error:
            return cls(cluster.name, cluster.partition, None, error, (error,))
        problems = tuple(description.problems(cluster))
        return cls(cluster.name, cluster.partition, description, None, problems)

    @property
    def state(self) -> str:
        """`ready`, `degraded`, or the state of the error."""
        if self.error is not None:
            return getattr(self.error, "state", "degraded")
        return "ready" if all(problem.code in WARNINGS for problem in self.problems) else "degraded"

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return 3
        return 0 if self.state == "ready" else 1

    def to_json(self) -> dict[str, Any]:
        problems = [problem.to_json() for problem in self.problems]
        about = {} if self.description is None else self.description.answer
        return {"name": self.name, "kind": "slurm", "state": self.state, "problems": problems, **about}
