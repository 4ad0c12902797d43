"""A cluster as its login node describes it, for the planner, the launch checklist, and `hosts check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchyard_core.engines.slurm.planned_nodes import on_slots, slots_of
from torchyard_core.errors import HostError, TorchyardError
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.formatting import counted
from torchyard_core.next_steps import Advice
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology

OLDEST_VERSION = (21, 8)
DESCRIBE_TIMEOUT_S = 120.0
KILL_WAIT_S = 30.0
"""Slurm's default KillWait in seconds. In less time, a model can rarely be saved."""


@dataclass(frozen=True)
class ClusterDescription:
    """The agent's answer to `cluster.describe`."""

    answer: dict[str, Any]
    agent: str
    """Version and interpreter of the agent."""

    @classmethod
    def read(cls, login: DaemonClient, cluster: Cluster) -> ClusterDescription:
        """Asks the login node for the description. Raises HostError or AgentRefused if this fails."""
        answer = login.call("cluster.describe", {"partition": cluster.partition}, DESCRIBE_TIMEOUT_S)
        return cls(answer, f"{login.hello['version']} on Python {login.python}")

    @property
    def shapes(self) -> Sequence[dict[str, Any]]:
        found: Sequence[dict[str, Any]] = self.answer["nodes"]
        return found

    @property
    def most_in_array(self) -> int | None:
        """The maximum number of jobs in an array; None if it is unknown."""
        size: int | None = self.answer["settings"].get("MaxArraySize")
        return None if size is None else size - 1

    def require_nodes(self, cluster: Cluster) -> None:
        """Raises NeverStarts if no node of the partition can run jobs at present."""
        if not slots_of(cluster, self.shapes, 1):
            where = f"the partition {cluster.partition} of {cluster.name}" if cluster.partition else cluster.name
            states = Counter[str]()
            for shape in self.shapes:
                states.update(shape["states"])
            found = ", ".join(f"{counted(count, 'node')} {state}" for state, count in states.items())
            message = f"{where} has no node that can run jobs{f' ({found})' if found else ''}."
            raise never_starts(
                cluster.name, message, "Name another `partition` in the fleet file, or ask its operator."
            )

    def plan_input(self, cluster: Cluster, topology: Topology) -> tuple[list[HostFacts], Topology]:
        """Returns the slots for the planner, and the topology whose pools name these slots."""
        most = sum(pool.replicas for pool in topology.pools)
        slots = slots_of(cluster, self.shapes, most)
        return slots, on_slots(topology, cluster, slots)

    def problems(self, cluster: Cluster) -> list[TorchyardError]:
        """Returns the problems of the cluster that can affect a run."""
        found = []
        settings, home = self.answer["settings"], self.answer["home"]
        version = tuple(int(part) for part in self.answer["version"].split(".")[:2] if part.isdigit())
        if version and version < OLDEST_VERSION:
            text = f"{cluster.name} has Slurm {self.answer['version']}; runs are supported from 21.08 on."
            found.append(TorchyardError(text, code="old_slurm"))
        if not self.shapes:
            text = f"{cluster.name} has no nodes{f' in {cluster.partition}' if cluster.partition else ''}."
            found.append(TorchyardError(text, code="no_nodes", hint="Name another `partition` in the fleet file."))
        if not home["shared"]:
            text = f"the agent's folder on {cluster.name} is on {home['file_system'] or 'an unknown file system'}."
            hint = "Login node and nodes must share it: if they do not, set `agent_dir` of `login` in the fleet file."
            found.append(TorchyardError(text, code="home_not_shared", hint=hint))
        if settings["ProctrackType"] == "proctrack/linuxproc":
            text = (
                f"{cluster.name} tracks processes by linuxproc: processes that outlive a killed keeper stay on their "
                "node and drain it."
            )
            found.append(TorchyardError(text, code="linuxproc", hint="Ask its administrator for proctrack/cgroup."))
        found += self._kill_wait_problems(cluster)
        return found

    def _kill_wait_problems(self, cluster: Cluster) -> list[TorchyardError]:
        """Returns a problem if Slurm's KillWait is too short, otherwise no problem.

        KillWait should be at least the time that the last run needed to end or, if this time is unknown, KILL_WAIT_S.
        """
        kill_wait, last = self.answer["settings"]["KillWait"], self.answer.get("last_stop")
        if kill_wait is None or (kill_wait >= KILL_WAIT_S if last is None else kill_wait >= last["seconds"]):
            return []
        text = f"{cluster.name} kills jobs {kill_wait:.0f} s after it asks them to end (KillWait)"
        text += "." if last is None else f", but run {last['run_id']} took {last['seconds']:.0f} s to save and end."
        hint = "A run whose checkpoint takes longer loses the steps since its last one when it is preempted."
        return [TorchyardError(text, code="kill_wait", hint=hint)]


def never_starts(cluster: str, message: str, hint: Advice = "") -> NeverStarts:
    """Returns the error for a request for nodes that the cluster can never satisfy."""
    return NeverStarts(cluster, message, code="never_starts", hint=hint or "Ask for fewer or other nodes.")


class NeverStarts(HostError):
    """Raised if a cluster can never satisfy a run's request for nodes."""
