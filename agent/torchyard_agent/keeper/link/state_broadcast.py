"""What the policy tells of a run: into the primary's journal, and to the members, which keep one of their own."""

from __future__ import annotations

import logging
import time

from torchyard_agent import journal
from torchyard_agent.keeper.decisions import events
from torchyard_agent.keeper.link.gang_link import Line
from torchyard_agent.keeper.link.member_connections import Members
from torchyard_agent.keeper.run_status import Record

log = logging.getLogger(__name__)


class Telling:
    """A member that comes later is told by catch_up() what it has missed."""

    def __init__(self, record: Record, members: Members):
        self._record = record
        self._members = members

    def run_state(self, told: events.TellRunState) -> None:
        waiting_for = None
        if told.waits is not None:
            until = journal.at(time.time() + told.waits.seconds)
            waiting_for = {"hosts": list(told.waits.hosts), "until": until, "cause": told.waits.cause}
        self._record.run_state(told.state, told.reason, waiting_for)
        said = {"state": told.state.value, "reason": told.reason, "waiting_for": waiting_for}
        self._members.tell_all({"say": "run_state", **said})

    def replica_state(self, told: events.TellReplicaState) -> None:
        self._record.replica_state(told.replica, told.host, told.state, told.exit_code, told.reason, told.restarts)
        said = {
            "say": "replica_state",
            "replica": told.replica,
            "host": told.host,
            "state": told.state.value,
            "exit_code": told.exit_code,
            "reason": told.reason,
            "restarts": told.restarts,
        }
        self._members.tell(told.host, said)

    def gang_restart(self, told: events.TellGangRestart) -> None:
        log.warning("gang %s starts again as generation %d: %s", told.gang, told.generation, told.cause)
        self._record.gang_restart(told.gang, told.generation, told.cause)
        said = {"gang": told.gang, "generation": told.generation, "cause": told.cause}
        self._members.tell_all({"say": "gang_restart", **said})

    def catch_up(self, line: Line, host: str) -> None:
        """What was told before this member came: the run's state, and those of its replicas."""
        line.send({"say": "run_state", "state": self._record.state.value, "reason": self._record.reason})
        for replica in self._record.replicas.values():
            if replica["host"] == host:
                told = {name: replica[name] for name in ("host", "state", "exit_code", "reason", "restarts")}
                line.send({"say": "replica_state", "replica": replica["name"], **told})
