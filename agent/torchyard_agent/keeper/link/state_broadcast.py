"""Writes a run's states to the primary's journal and sends them to the members, which keep journals of their own."""

from __future__ import annotations

import logging
import time

from torchyard_agent.keeper.decisions.instructions import RecordGangRestart, RecordReplicaState, RecordRunState
from torchyard_agent.keeper.link.member_connections import MemberConnections
from torchyard_agent.keeper.link.messages import RunStateChanged
from torchyard_agent.keeper.run_status import RunStatus
from torchyard_agent.protocol import timestamps
from torchyard_agent.protocol.run_states import ReplicaState

log = logging.getLogger(__name__)


class StateBroadcast:
    def __init__(self, status: RunStatus, members: MemberConnections):
        self._status = status
        self._members = members

    def run_state(self, change: RecordRunState) -> None:
        waiting_for = None
        if change.waits is not None:
            until = timestamps.with_milliseconds(time.time() + change.waits.seconds)
            waiting_for = {"hosts": list(change.waits.hosts), "until": until, "cause": change.waits.cause}
        self._status.run_state(change.state, change.reason, waiting_for)
        self._members.send_all(RunStateChanged(change.state, change.reason, waiting_for))

    def replica_state(self, change: RecordReplicaState) -> None:
        self._status.replica_state(*change)
        self._members.send(change.host, change)

    def gang_restart(self, change: RecordGangRestart) -> None:
        log.warning("gang %s restarts as generation %d: %s", change.gang, change.generation, change.cause)
        self._status.gang_restart(*change)
        self._members.send_all(change)

    def catch_up(self, host: str) -> None:
        """Sends a member that has just joined the states of the run and of the member's replicas."""
        self._members.send(host, RunStateChanged(self._status.state, self._status.reason))
        for one in self._status.replicas.values():
            if one["host"] == host:
                code, reason, restarts = one["exit_code"], one["reason"], one["restarts"]
                state = ReplicaState(one["state"])
                self._members.send(host, RecordReplicaState(one["name"], host, state, code, reason, restarts))
