"""The assignments of hosts: for each host, its replicas, with the commands and environments of their ranks."""

from __future__ import annotations

from collections.abc import Collection

from torchyard_agent.keeper.link.messages import Assignment
from torchyard_agent.protocol.messages import ReplicaAssignment, Start
from torchyard_agent.protocol.rank_environment import RankEnvironment


class Assignments:
    """Computes the assignments of a run from the parameters of `run.start`.

    Args:
        replicates: Whether checkpoints are copied between the hosts.
    """

    def __init__(self, start: Start, *, replicates: bool):
        self._start = start
        self._replicates = replicates
        address, port = start["members"][0]["address"], start["members"][0]["gang_port"]
        self.meeting_point = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        """The `address:port` at which ranks and members reach the primary's keeper."""
        self._environment = RankEnvironment(start["cluster"], start["replicas"], self.meeting_point)

    def of_host(self, host: str) -> Assignment:
        start = self._start
        return Assignment(
            replicas=[self._environment.share(one) for one in start["replicas"] if one["host"] == host],
            host_wait_s=start["policy"]["host_wait_s"],
            setup=start["setup"],
            secrets=start["secrets"],
            carry=self._replicates,
            spare_imports=start["spare_imports"],
            max_restarts=start["policy"]["max_restarts"],
        )

    def of_gang(
        self, names: Collection[str], generation: int, dropped: Collection[str], attempt: int = 0
    ) -> dict[str, list[ReplicaAssignment]]:
        """Returns the assignments of replicas of a gang for its restart, or for return number `attempt`, by host.

        Ranks and world sizes do not count the replicas in `dropped`.
        """
        taking_part = [replica for replica in self._start["replicas"] if replica["name"] not in dropped]
        environment = RankEnvironment(self._start["cluster"], taking_part, self.meeting_point)
        by_host: dict[str, list[ReplicaAssignment]] = {}
        for replica in self._start["replicas"]:
            if replica["name"] in names:
                by_host.setdefault(replica["host"], []).append(environment.share(replica, generation, attempt))
        return by_host
