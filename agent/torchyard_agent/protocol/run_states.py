"""The states of runs and replicas.

There is no state `unknown`. Views contain the last known state and its time, as (state, as_of).
"""

from __future__ import annotations

from enum import Enum

KEEPER_DIED = "its keeper died"
"""The reason shown for a run without a keeper whose end is not recorded, if no other reason is known."""


class RunState(str, Enum):
    DRAFT = "draft"
    CHECKING = "checking"
    SENDING = "sending"
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_terminal(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED)


class ReplicaState(str, Enum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        return self in (ReplicaState.SUCCEEDED, ReplicaState.FAILED, ReplicaState.STOPPED, ReplicaState.LOST)
