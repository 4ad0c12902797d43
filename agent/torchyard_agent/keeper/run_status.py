"""The status of a run: the states, latest metrics and times of its replicas, which are also journaled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable

from torchyard_agent.journal import Journal
from torchyard_agent.protocol import timestamps
from torchyard_agent.protocol.metrics_report import METRICS, custom_metrics, not_finite, valid_metrics
from torchyard_agent.protocol.run_states import ReplicaState, RunState

REPORT_EVERY_S = 5.0
"""Shortest time in seconds between two `report` events of a replica in the journal.

Samples of telemetry contain the current metrics more often.
"""
_JOURNALED = ("step", "loss", "throughput")
"""The metrics that every `report` event contains, as null if they are unknown.

Other metrics are included only if they are known.
"""


class RunStatus:
    """The status of a run. Changes are journaled, and the event `run_ended` contains the final status."""

    def __init__(self, run_id: str, to: Journal, clock: Callable[[], float] = time.monotonic):
        self.state = RunState.WAITING
        self.reason = ""
        self.replicas: dict[str, dict[str, Any]] = {}
        self.metrics: dict[str, dict[str, Any]] = {}
        self.first_step_at: str | None = None
        self.ended: dict[str, Any] | None = None
        """The fields of `run_ended`, once the run is over."""
        self.pause_reason = ""
        """The reason for a pause, or "" if the run is not being paused.

        A stopped run that is being paused does not end, but waits for its job to start again.
        """
        self._run_id = run_id
        self._journal = to
        self._clock = clock
        self._started = clock()
        self._timings: dict[str, float] = {}
        self._reported: dict[str, float] = {}

    def start(self) -> None:
        """Starts the clock by which the run's times are measured."""
        self._started = self._clock()

    def _elapsed(self) -> float:
        return round(self._clock() - self._started, 3)

    def run_state(self, state: RunState, reason: str, waiting_for: dict[str, Any] | None = None) -> None:
        """Records and journals a state of the run.

        Args:
            waiting_for: If a restart is waiting for lost hosts: their names (`hosts`), the end of the wait (`until`),
                and the `cause` of the restart.
        """
        self.state = state
        self.reason = reason or ("" if state is RunState.RUNNING else self.reason)
        if state is RunState.RUNNING:
            self._timings.setdefault("started_s", self._elapsed())
        more = {"reason": reason, "waiting_for": waiting_for}
        self._journal.write("run_state", state=state.value, **{name: value for name, value in more.items() if value})

    def replica_state(
        self, replica: str, host: str, state: ReplicaState, exit_code: int | None, reason: str, restarts: int = 0
    ) -> None:
        known = {"name": replica, "host": host, "state": state.value, "exit_code": exit_code, "restarts": restarts}
        self.replicas[replica] = {**known, "reason": reason}
        event = {"replica": replica, "host": host, "state": state.value, "exit_code": exit_code, "restarts": restarts}
        self._journal.write("replica_state", **event, **({"reason": reason} if reason else {}))

    def asked(self, entry: dict[str, Any]) -> None:
        """Journals a user's request (see `protocol.attribution`) to launch or stop the run.

        Has no effect if the run is over.
        """
        if self.ended is None:
            self._journal.write("asked", **entry)

    def checkpoint_saved(self, checkpoint: str) -> None:
        """Journals that the chief saved a checkpoint."""
        if self.ended is None:
            self._journal.write("checkpoint_saved", checkpoint=checkpoint)

    def checkpoint_copied(self, host: str, checkpoint: str, problem: str) -> None:
        """Journals that a checkpoint was copied to a host, or why the copy failed."""
        if self.ended is None:
            fields = {"host": host, "checkpoint": checkpoint}
            self._journal.write("checkpoint_carried", **fields, **({"problem": problem} if problem else {}))

    def booking_ends(self, booking: str, at: str, reason: str) -> None:
        """Journals the time by which the run must release its GPUs, and the reason."""
        self._journal.write("booking_ends", booking=booking, at=at, reason=reason)

    def gang_restart(self, gang: str, generation: int, cause: str) -> None:
        self._journal.write("gang_restart", gang=gang, generation=generation, cause=cause)

    def membership(
        self,
        gang: str,
        generation: int,
        number: int,
        members: Sequence[str],
        lost: Sequence[str],
        cause: str,
        joined: int = 0,
    ) -> None:
        """Journals a gang's new membership, with the highest step that its members have reported."""
        step = max((self.metrics.get(name, {}).get("step") or 0 for name in members), default=0)
        fields = {"gang": gang, "generation": generation, "number": number, "step": int(step), "cause": cause}
        self._journal.write("membership", **fields, members=list(members), lost=list(lost))

    def withdrawal(self, replica: str, why: str) -> None:
        """Journals that a replica was not added to the run."""
        self._journal.write("withdrawal", replica=replica, reason=why)

    def report(self, replica: str, metrics: dict[str, Any], *, first: bool) -> None:
        """Stores a replica's metrics.

        The metrics of the first step are journaled immediately, later metrics at most once every REPORT_EVERY_S.
        """
        self.metrics[replica] = metrics = valid_metrics(metrics)
        if first and self.first_step_at is None:
            self.first_step_at = timestamps.now()
            self._timings["first_step_s"] = self._elapsed()
        now = self._clock()
        if not first and now - self._reported.get(replica, now - REPORT_EVERY_S) < REPORT_EVERY_S:
            return
        self._reported[replica] = now
        numbers = {name: metrics.get(name) for name in _JOURNALED}
        numbers.update({name: metrics[name] for name in METRICS if metrics.get(name) is not None})
        custom = {name: value for name, value in custom_metrics(metrics).items() if value is not None}
        more: dict[str, Any] = {"custom": custom, "not_finite": not_finite(metrics), "first": first}
        numbers.update({name: value for name, value in more.items() if value})
        self._journal.write("report", replica=replica, **numbers)

    def end(self, state: RunState, reason: str) -> dict[str, Any]:
        """Journals the run's end, and returns the fields of `run_ended`."""
        replicas = [
            {name: replica[name] for name in ("name", "host", "state", "exit_code", "restarts", "reason")}
            for replica in self.replicas.values()
        ]
        timings = {"started_s": None, "first_step_s": None, **self._timings, "ended_s": self._elapsed()}
        fields = {
            "run_id": self._run_id,
            "state": state.value,
            "reason": reason,
            "replicas": replicas,
            "metrics": self.metrics,
            "timings": timings,
        }
        self.end_as(fields)
        return fields

    def end_as(self, fields: dict[str, Any]) -> None:
        """Journals the run's end, given as the fields of `run_ended`. If the run is being paused, it waits instead."""
        state = RunState(fields["state"])
        self.ended = fields
        if self.pause_reason and state is RunState.STOPPED:
            self.run_state(RunState.WAITING, self.pause_reason)
            return
        self.run_state(state, fields["reason"])
        self._journal.write("run_ended", **fields)

    def revive(self, reason: str) -> None:
        """Sets the state to `restarting` after this host has rejoined the run.

        The end of the run, which this host may have recorded while it was cut off, is discarded.
        """
        self.ended = None
        self.run_state(RunState.RESTARTING, reason)

    def status(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "reason": self.reason,
            "replicas": list(self.replicas.values()),
            "metrics": self.metrics,
            "first_step_at": self.first_step_at,
        }
