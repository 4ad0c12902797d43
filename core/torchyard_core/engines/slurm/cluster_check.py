"""The check of a cluster for `hosts check`, and the lines about a cluster in the checklist of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.errors import AgentRefused, HostError, TorchyardError
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.formatting import counted
from torchyard_core.launch.checks.check import Check

WARNINGS = ("linuxproc", "kill_wait", "home_not_shared")
"""Codes of problems that do not prevent runs from starting."""
NOT_AT_LAUNCH = ("kill_wait",)
"""Codes of problems that `hosts check` reports, but a launch does not."""


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
    def of(cls, hosts: ClusterHosts, *, install: bool = True) -> ClusterCheck:
        """Checks a cluster. By default, installs the agent on its login node if it is missing."""
        cluster = hosts.cluster
        try:
            description = ClusterDescription.read(hosts.login(install=install), cluster)
        except (HostError, AgentRefused) as error:
            return cls(cluster.name, cluster.partition, None, error, (error,))
        problems = tuple(description.problems(cluster))
        return cls(cluster.name, cluster.partition, description, None, problems)

    @property
    def state(self) -> str:
        """`ready`, `degraded`, or the state of the error that prevented the check."""
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


def launch_checks(description: ClusterDescription, cluster: Cluster) -> list[Check]:
    """Returns the lines about the cluster in the checklist of a launch."""
    nodes = counted(sum(shape["count"] for shape in description.shapes), "node")
    message = f"Slurm {description.answer['version']}, {nodes}, agent {description.agent}"
    lines = [Check("host", cluster.name, True, message)]
    lines += [
        Check("host", cluster.name, True, problem.message, problem.advice, warning=True)
        for problem in description.problems(cluster)
        if problem.code not in NOT_AT_LAUNCH
    ]
    return lines
