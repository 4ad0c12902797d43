"""Computes each host's assignment, with the commands and environments of the host's ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchyard_agent.keeper.link.messages import Assignment
from torchyard_agent.protocol.messages import OwnJobs, Place, ReplicaAssignment, ReplicaPlan, Start
from torchyard_agent.protocol.rank_environment import RankEnvironment


class Assignments:
    """The assignments of a run, computed from the parameters of `run.start`.

    Args:
        replicates: Whether the keepers copy checkpoints between hosts.
    """

    def __init__(self, start: Start, *, replicates: bool):
        self._start = start
        self._own_jobs = start.get("own_jobs") or OwnJobs(replicas=[], masters={})
        own = {replica["host"] for replica in self._own_jobs["replicas"]}
        self._hosts = {replica["host"] for replica in start["replicas"]} - own
        self._late: list[str] = []
        """The replicas that were added after the trainers' current generation began. They have the highest ranks."""
        self.replicates = replicates
        address, port = start["members"][0]["address"], start["members"][0]["gang_port"]
        self.meeting_point = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        """The `address:port` of the primary, to which ranks and members connect."""
        self._environment = RankEnvironment(start["cluster"], start["replicas"], self.meeting_point)

    def of_host(self, host: str) -> Assignment:
        start = self._start
        return Assignment(
            # The replicas of added hosts and of hosts in group jobs are left out, because only StartGeneration starts
            # their ranks.
            replicas=[
                self._environment.share(one)
                for one in start["replicas"]
                if one["host"] == host and host in self._hosts and one["name"] not in self._late
            ],
            host_wait_s=start["policy"]["host_wait_s"],
            setup=start["setup"],
            secrets=start["secrets"],
            carry=self.replicates,
            spare_imports=start["spare_imports"],
            max_restarts=start["policy"]["max_restarts"],
        )

    def of_gang(
        self, names: Collection[str], generation: int, dropped: Collection[str], attempt: int = 0
    ) -> dict[str, list[ReplicaAssignment]]:
        """Returns the assignments for restarting the replicas `names` of a gang, by host.

        `attempt` is the number of the return if a single lost replica returns, otherwise 0. Ranks and world sizes never
        count the replicas in `dropped`. They count replicas that were added after the generation began only if `names`
        contains such a replica.
        """
        taking_part, late = self._taking_part(dropped)
        started_with = 0
        if any(replica["name"] in names for replica in late):
            started_with = sum(replica["processes"] for replica in taking_part if replica["trainer"])
            taking_part += late
        environment = RankEnvironment(self._start["cluster"], taking_part, self.meeting_point)
        by_host: dict[str, list[ReplicaAssignment]] = {}
        for replica in taking_part:
            if replica["name"] in names:
                assignment = environment.share(replica, generation, attempt, started_with)
                by_host.setdefault(replica["host"], []).append(assignment)
        return by_host

    def _taking_part(self, dropped: Collection[str]) -> tuple[list[ReplicaPlan], list[ReplicaPlan]]:
        """Returns the replicas with which the current generation began, and those added later. Excludes `dropped`."""
        there = {replica["name"]: replica for replica in self._start["replicas"] if replica["name"] not in dropped}
        late = [there.pop(name) for name in self._late if name in there]
        return list(there.values()), late

    def seats(self, gang: str, dropped: Collection[str]) -> list[tuple[str, int]]:
        """Returns the name and the number of ranks of each replica of a gang, in rank order."""
        taking_part, late = self._taking_part(dropped)
        return [(one["name"], one["processes"]) for one in (*taking_part, *late) if one["gang"] == gang]

    def place(self, host: str, place: Place) -> None:
        """Fills in the address, ports and GPUs of a group job's host in the plans of the host's replicas."""
        # `run_plan` is imported here, because only a run with group jobs needs it.
        from torchyard_agent.slurm import run_plan

        plans = [one for one in self._own_jobs["replicas"] if one["host"] == host]
        filled = {one["name"]: run_plan.fill(one, {host: place}, {host: place["gpus"]}) for one in plans}
        start = self._start
        start["replicas"] = [filled.get(one["name"], one) for one in start["replicas"]]
        for gang, master in self._own_jobs["masters"].items():
            if master["replica"] in filled:
                start["cluster"]["masters"][gang] = run_plan.fill(master, {host: place}, {})
        self._environment = RankEnvironment(start["cluster"], start["replicas"], self.meeting_point)

    def add(self, replicas: Sequence[ReplicaPlan]) -> None:
        """Adds replicas to the current generation of their gang."""
        self._start["replicas"] = [*self._start["replicas"], *replicas]
        self._late += [replica["name"] for replica in replicas]

    def begin_generation(self, late: Collection[str]) -> None:
        """Begins a generation of the trainers. The added replicas in `late` are not part of it, but join it later."""
        self._late = [name for name in self._late if name in late]
