"""The coordinator of a sweep: chooses the parameters of trials, starts their runs, and records their outcomes.

The coordinator is the only rank of the sweep's own run. It calls the keepers of trials through that run's keeper, which
is its parent process (`keeper.trial_keepers`). Each action is recorded in the study before it is taken. A coordinator
that was killed and is started again therefore continues where it stopped:

- It starts each trial whose run was never begun.
- It follows each trial whose run has begun to its end, and never starts the trial again.

A trial fails if one of its hosts is lost. None of the trial's hosts gets a new trial until the lost host has
reconnected and no process of the failed trial is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sqlite3
import sys
import time
from collections.abc import Awaitable
from typing import Any, Callable

import optuna
from optuna.trial import FrozenTrial, TrialState

from torchyard_agent import unix_socket_rpc
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.sweep_messages import Sweep, SweepSlot, parameter_text
from torchyard_agent.sweeps import study_setup, trial_outcomes
from torchyard_agent.sweeps.study import MOST_FAILED_STARTS, FollowedTrial, SweepStudy
from torchyard_agent.sweeps.trial_outcomes import Outcome

POLL_S = 0.3
TABLE_EVERY_S = 1.0
"""Shortest time in seconds between two writes of the table while no trial starts or ends."""
CALL_S = 150.0
"""Timeout in seconds of a call to the sweep's keeper, longer than the timeout of the keeper's calls to other hosts."""
STUDY = "study.sqlite3"


class Slot:
    """A set of hosts that runs one trial at a time, and the run of the trial that currently occupies the hosts."""

    def __init__(self, number: int, described: SweepSlot):
        self.number = number
        self.hosts = described["hosts"]
        self.described = described
        self.run_id = ""
        """The run that occupies the hosts, from its preparation until all its keepers have exited, or "" if none."""

    @property
    def primary(self) -> str:
        return self.hosts[0]

    @property
    def replicas(self) -> list[str]:
        return [replica["name"] for replica in self.described["replicas"]]


class RunningTrial(FollowedTrial):
    """A trial that runs in a slot."""

    def __init__(self, study: SweepStudy, trial: optuna.Trial, slot: Slot, run_id: str):
        super().__init__(study, trial, slot.replicas)
        self.slot = slot
        self.run_id = run_id
        self.stop_requested = False


class Coordinator:
    """Runs the trials of one sweep.

    Args:
        sweep: The description of the sweep, as received from its keeper.
        folder: The folder of the study and the table.
        call: Calls a method of the sweep's keeper: `sweep`, `trial`, `stop` or `fail`.
    """

    def __init__(self, sweep: Sweep, folder: str, call: Callable[[str, dict[str, Any]], Awaitable[Any]]):
        self._sweep = sweep
        self._search = sweep["search"]
        self._folder = folder
        self._call = call
        self._slots = [Slot(number, one) for number, one in enumerate(sweep["slots"])]
        self._running: list[RunningTrial] = []
        self._lost: set[str] = set()
        self._stopping = False
        self._failed_starts = 0
        self._no_host_since: float | None = None
        self._table_at = 0.0
        self._changed = True
        file = os.path.join(folder, STUDY)
        if sweep["study"] and not os.path.exists(file):  # This sweep continues an ended one.
            study_setup.unpack(sweep["study"], file)
        study = study_setup.open_study(self._search, f"sqlite:///{file}")
        self._study = SweepStudy(sweep["run_id"], sweep["name"], self._search, folder, study, self._copy_study)

    def stop(self) -> None:
        """Makes `run` stop all trials and return."""
        self._stopping = True

    async def run(self) -> None:
        """Runs the trials until all have ended."""
        self._recover()
        while True:
            await self._update_hosts()
            if not self._stopping:
                await self._start_trials()
            for running in list(self._running):
                await self._follow(running)
            await self._free_slots()
            self._write_table()
            if self._is_done():
                break
            await asyncio.sleep(POLL_S)
        self._write_table(is_last=True)
        if not self._stopping:
            await self._fail_without_result()

    async def _fail_without_result(self) -> None:
        """Makes the sweep's run fail if none of its trials is complete."""
        reason = self._study.failure()
        if reason:
            print(f"the sweep has failed: {reason}", flush=True)
            await self._call("fail", {"reason": reason})

    def _is_done(self) -> bool:
        if self._running:
            return False
        return self._stopping or (self._study.number_to_draw() <= 0 and not self._unbegun())

    def _unbegun(self) -> list[FrozenTrial]:
        """Returns the trials whose parameters were drawn, but whose run was not begun."""
        followed = {running.trial.number for running in self._running}
        return [trial for trial in self._study.trials(TrialState.RUNNING) if trial.number not in followed]

    def _recover(self) -> None:
        """Takes over unfinished trials, and the runs that an earlier coordinator started for them."""
        if lines := self._study.end_trials_of_earlier_sweep():
            print("\n".join(lines), flush=True)
            self._write_table(at_once=True)
        for frozen in self._study.trials(TrialState.RUNNING):
            run_id, number = frozen.user_attrs.get("run_id", ""), int(frozen.user_attrs.get("slot", 0))
            if run_id:
                # The keepers of a run that was prepared but not begun exit by themselves. Until then, the slot is
                # occupied.
                self._slots[number].run_id = run_id
                if frozen.user_attrs.get("started"):
                    trial = self._study.reopened(frozen)
                    self._running.append(RunningTrial(self._study, trial, self._slots[number], run_id))
        self._study.repeat_interrupted()

    async def _update_hosts(self) -> None:
        """Determines which hosts are lost. Stops the sweep if no slot has been usable for `host_wait_s`."""
        self._lost = set((await self._call("sweep", {}))["lost"])
        usable = any(self._lost.isdisjoint(slot.hosts) for slot in self._slots)
        if usable or self._running:
            self._no_host_since = None
        elif self._no_host_since is None:
            self._no_host_since = time.monotonic()
        elif time.monotonic() - self._no_host_since > self._sweep["host_wait_s"] and not self._stopping:
            lost = ", ".join(sorted(self._lost))
            await self._give_up(f"no host is left for its trials: {lost} did not come back")

    async def _give_up(self, reason: str) -> None:
        print(f"stopping the sweep: {reason}", flush=True)
        self._stopping = True
        await self._call("stop", {"reason": reason})

    async def _start_trials(self) -> None:
        """Starts a trial in each free slot."""
        for slot in self._slots:
            if slot.run_id or not self._lost.isdisjoint(slot.hosts) or self._stopping:
                continue
            unbegun = self._unbegun()
            if unbegun:
                trial = self._study.reopened(unbegun[0])
            elif self._study.number_to_draw() > 0:
                trial = self._study.study.ask()
            else:
                return
            await self._start(trial, slot)

    async def _start(self, trial: optuna.Trial, slot: Slot) -> None:
        """Starts a trial's run in a slot. If a host is lost before the run begins, the trial waits for a free slot."""
        params = self._study.params(trial)
        attempt = int(trial.user_attrs.get("attempt", 0)) + 1
        run_id = f"{self._sweep['run_id']}.{trial.number + 1}" + (f"-{attempt}" if attempt > 1 else "")
        noted = {"attempt": attempt, "started": False, "slot": slot.number, "hosts": slot.hosts, "run_id": run_id}
        for name, value in noted.items():
            trial.set_user_attr(name, value)
        slot.run_id = run_id
        self._write_table(at_once=True)  # A desktop that continues the sweep later must know of this trial.
        try:
            await self._launch(trial, slot, run_id, params)
        except RpcError as error:
            await self._abort(slot, run_id)
            if error.code not in _UNCERTAIN:
                self._failed_starts += 1
                self._finish(trial, Outcome(trial_outcomes.FAILED, None, f"it could not be started: {error}"))
                if self._failed_starts >= MOST_FAILED_STARTS:
                    await self._give_up(f"{self._failed_starts} trials in a row could not be started: {error}")
            return
        self._failed_starts = 0

    async def _launch(self, trial: optuna.Trial, slot: Slot, run_id: str, params: dict[str, Any]) -> None:
        """Prepares the keepers of a trial and begins its run. Raises RpcError if the run has certainly not begun."""
        described = json.loads(json.dumps(slot.described).replace(self._sweep["run_token"], run_id))
        secret = secrets.token_hex(32)
        answers = await asyncio.gather(
            *(
                self._trial(host, "prepare", run_id, {**described["prepare"][host], "secret": secret})
                for host in slot.hosts
            ),
            return_exceptions=True,
        )
        members = []
        for host, answer in zip(slot.hosts, answers):
            if isinstance(answer, BaseException):
                raise answer
            members.append({"host": host, "address": answer["address"], "gang_port": answer["gang_port"]})
        for host in slot.hosts[1:]:
            await self._trial(host, "join", run_id, {"primary": members[0]})
        # From here on, the run may have begun. The trial is started again only if its keeper turns out not to have
        # begun the run.
        trial.set_user_attr("started", True)
        running = RunningTrial(self._study, trial, slot, run_id)
        texts = {name: parameter_text(value) for name, value in params.items()}
        start = {
            "members": members,
            "cluster": {**described["cluster"], "trial": running.name, "params": texts},
            "replicas": described["replicas"],
            "policy": self._sweep["policy"],
            "notify": None,
            "carry": self._sweep["carry"],
            "spare_imports": [],
            "start_at": None,
            "booking": None,
            "sweep": None,
        }
        try:
            await self._trial(slot.primary, "start", run_id, start)
        except RpcError as error:
            if error.code not in _UNCERTAIN:
                raise
        self._running.append(running)
        self._changed = True
        shown = ", ".join(f"{name}={text}" for name, text in texts.items())
        print(f"trial {running.name} on {', '.join(slot.hosts)}: {shown}", flush=True)

    async def _abort(self, slot: Slot, run_id: str) -> None:
        for host in slot.hosts:
            with contextlib.suppress(RpcError):  # The keeper was not prepared, or its host is lost.
                await self._trial(host, "abort", run_id, {})

    async def _trial(self, host: str, method: str, run_id: str, params: dict[str, Any]) -> Any:
        return await self._call("trial", {"host": host, "method": method, "params": {**params, "run_id": run_id}})

    async def _follow(self, running: RunningTrial) -> None:
        """Reads the state of a trial, reports its objective to the study, and records its end."""
        slot = running.slot
        try:
            shown = await self._trial(slot.primary, "show", running.run_id, {})
        except RpcError as error:
            if error.code == "host_lost":
                self._running.remove(running)
                self._finish(running.trial, Outcome(trial_outcomes.FAILED, None, f"{error} while it ran"))
            return  # After any other error, the state is read again.
        if shown["alive"]:
            if self._stopping:
                await self._stop_trial(running, "the sweep was stopped")
            else:
                await self._measure(running, shown["metrics"])
            return
        self._running.remove(running)
        if not shown["exists"]:
            # The trial's keeper abandoned the launch before the run began, and removed the run's folder.
            running.trial.set_user_attr("started", False)
            return
        running.report(shown["metrics"])
        self._finish(running.trial, running.outcome(shown, stopping=self._stopping))

    async def _measure(self, running: RunningTrial, metrics: dict[str, Any]) -> None:
        if running.report(metrics):
            self._changed = True
            if reason := running.prune():
                await self._stop_trial(running, reason)

    async def _stop_trial(self, running: RunningTrial, reason: str) -> None:
        if running.stop_requested:
            return
        running.stop_requested = True
        with contextlib.suppress(RpcError):  # The trial may already have ended.
            await self._trial(running.slot.primary, "stop", running.run_id, {"reason": reason})

    def _finish(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Records the outcome of a trial in the study."""
        print(self._study.record(trial, outcome), flush=True)
        self._study.update_importances()
        self._write_table(at_once=True)

    async def _free_slots(self) -> None:
        """Frees the slots of ended trials whose keepers have exited on all hosts, and ends keepers that still run."""
        held = {running.run_id for running in self._running}
        for slot in self._slots:
            if slot.run_id and slot.run_id not in held and await self._is_free(slot):
                slot.run_id = ""

    async def _is_free(self, slot: Slot) -> bool:
        is_free = True
        for host in slot.hosts:
            try:
                shown = await self._trial(host, "show", slot.run_id, {})
            except RpcError as error:
                # A lost host does not occupy the slot, because it ends its trials before it reconnects.
                is_free = is_free and error.code == "host_lost"
                continue
            if shown["alive"]:
                is_free = False
                with contextlib.suppress(RpcError):
                    await self._trial(host, "abort", slot.run_id, {})
                with contextlib.suppress(RpcError):
                    reason = "the trial has ended"
                    await self._trial(host, "stop", slot.run_id, {"reason": reason, "force": True})
        return is_free

    def _copy_study(self, new: str) -> None:
        study = os.path.join(self._folder, STUDY)
        with contextlib.closing(sqlite3.connect(study)) as source, contextlib.closing(sqlite3.connect(new)) as target:
            source.backup(target)

    def _write_table(self, *, at_once: bool = False, is_last: bool = False) -> None:
        """Writes the table if trials have reported since the last write, at most once in TABLE_EVERY_S.

        If `at_once` or `is_last` is true, the table and a copy of the study are written immediately.
        """
        now = time.monotonic()
        if not (is_last or at_once) and (not self._changed or now - self._table_at < TABLE_EVERY_S):
            return
        self._changed, self._table_at = False, now
        state = "stopped" if self._stopping else "finished"
        self._study.write_table(
            state if is_last else "stopping" if self._stopping else "running",
            slots=[slot.hosts for slot in self._slots],
            lost=sorted(self._lost),
            with_copy=is_last or at_once,
        )


_UNCERTAIN = ("host_lost", "timeout", "disconnected")
"""Codes of errors that leave open whether a call was carried out."""


async def coordinate(run_dir: str) -> int:
    """Runs the sweep whose coordinator has the output folder `run_dir`. Returns the exit code."""
    address = control_socket.read(os.path.dirname(os.path.dirname(run_dir)))
    if address is None:
        print("the coordinator of a sweep is started by the keeper of the sweep", file=sys.stderr)
        return 2
    keeper = await unix_socket_rpc.connect(address)

    async def call(method: str, params: dict[str, Any]) -> Any:
        return await keeper.call(method, params, timeout=CALL_S)

    answer = await call("sweep", {"full": True})
    coordinator = Coordinator(answer["sweep"], run_dir, call)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, coordinator.stop)
    await coordinator.run()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(coordinate(os.environ["TORCHYARD_RUN_DIR"])))
