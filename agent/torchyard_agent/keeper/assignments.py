"""Each host's share of a run, as the primary gives it: its replicas, and all that their ranks are started with."""

from __future__ import annotations

from collections.abc import Collection

from torchyard_agent.keeper.link.gang_link import Message
from torchyard_agent.protocol.messages import Member, ReplicaShare, Start
from torchyard_agent.protocol.rank_environment import Contract


class Shares:
    """`carries`: whether checkpoints are carried between the hosts."""

    def __init__(self, start: Start, *, carries: bool):
        self._start = start
        self._carries = carries
        self.meeting_point = _joined(start["members"][0])
        """Where ranks and members reach the primary's keeper, `address:port`."""
        self._contract = Contract(start["cluster"], start["replicas"], self.meeting_point)

    def of_host(self, host: str) -> Message:
        here = [replica for replica in self._start["replicas"] if replica["host"] == host]
        return {
            "say": "share",
            "replicas": [self._contract.share(replica) for replica in here],
            "host_wait_s": self._start["policy"]["host_wait_s"],
            "setup": self._start["setup"],
            "secrets": self._start["secrets"],
            "carry": self._carries,
            "spare_imports": self._start["spare_imports"],
            "max_restarts": self._start["policy"]["max_restarts"],
        }

    def of_gang(
        self, names: Collection[str], generation: int, dropped: Collection[str]
    ) -> dict[str, list[ReplicaShare]]:
        """By host, what a gang's replicas are started with again. Ranks and world sizes are those of the replicas that
        take part now, without the `dropped`."""
        taking_part = [replica for replica in self._start["replicas"] if replica["name"] not in dropped]
        contract = Contract(self._start["cluster"], taking_part, self.meeting_point)
        by_host: dict[str, list[ReplicaShare]] = {}
        for replica in self._start["replicas"]:
            if replica["name"] in names:
                by_host.setdefault(replica["host"], []).append(contract.share(replica, generation))
        return by_host


def _joined(member: Member) -> str:
    address = member["address"]
    return f"[{address}]:{member['gang_port']}" if ":" in address else f"{address}:{member['gang_port']}"
