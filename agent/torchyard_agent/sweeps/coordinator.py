"""The coordinator of a sweep: chooses the parameters of trials, starts their runs, and records their outcomes.

It is the only rank of the sweep's own run, and calls the keepers of trials through that run's keeper, which is its
parent process (`keeper.trial_keepers`). Each action is recorded in the study before it is taken, so a coordinator that
was killed continues where it stopped when it is started again:

- a trial whose run was never begun is started;
- a trial whose run has begun is followed to its end, and never started again.

A trial fails if one of its hosts is lost. Its hosts get no new trial until they have returned and none of the
failed trial's processes is left on them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import secrets
import signal
import sqlite3
import sys
import time
import zlib
from collections.abc import Awaitable
from typing import Any, Callable

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from torchyard_agent import unix_socket_rpc
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.sweep_messages import Sweep, SweepSlot, parameter_text
from torchyard_agent.sweeps import pruning_steps, sweep_table, trial_outcomes
from torchyard_agent.sweeps import study as studies
from torchyard_agent.sweeps.trial_outcomes import Outcome

POLL_S = 0.3
TABLE_EVERY_S = 1.0
"""Shortest time in seconds between two writes of the table while no trial starts or ends."""
CALL_S = 150.0
"""Timeout in seconds of a call to the keeper. It is longer than that of the keeper's calls to other hosts."""
MOST_FAILED_STARTS = 3
"""Number of consecutive trials that fail to start after which the sweep is stopped."""
STUDY, COPY, TABLE = "study.sqlite3", "study-copy.sqlite3", "sweep.json"


class Slot:
    """A set of hosts that runs one trial at a time, and the trial that currently holds it."""

    def __init__(self, number: int, described: SweepSlot):
        self.number = number
        self.hosts = described["hosts"]
        self.described = described
        self.run_id = ""
        """The run that holds the hosts, from its preparation until all its keepers have exited, or ""."""

    @property
    def primary(self) -> str:
        return self.hosts[0]

    @property
    def replicas(self) -> list[str]:
        return [replica["name"] for replica in self.described["replicas"]]


class RunningTrial:
    """A trial whose run has begun, or may have begun."""

    def __init__(self, trial: optuna.Trial, slot: Slot, run_id: str, last_step: int = 0):
        self.trial = trial
        self.slot = slot
        self.run_id = run_id
        self.last_step = last_step
        """The highest step for which metrics were sampled."""
        self.pruned = bool(trial.user_attrs.get("pruned"))
        self.stop_requested = False

    @property
    def name(self) -> str:
        return str(self.trial.number + 1)


class Coordinator:
    """Runs the trials of one sweep.

    Args:
        sweep: The sweep, from the keeper.
        folder: The folder of the study and the table.
        call: Calls a method of the sweep's keeper: `sweep`, `trial` or `stop`.
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
        self._importances: dict[str, float] = {}
        self._distributions = studies.distributions_of(self._search)
        self._restore_study()
        known = len(self._open_study(0).get_trials(deepcopy=False))
        self._study = self._open_study(known)

    def _open_study(self, repeats: int) -> optuna.Study:
        return studies.open_study(self._search, os.path.join(self._folder, STUDY), repeats=repeats)

    def _restore_study(self) -> None:
        """Writes the study of the ended sweep that this sweep continues, unless the file already exists."""
        file = os.path.join(self._folder, STUDY)
        if self._sweep["study"] and not os.path.exists(file):
            with open(f"{file}.new", "wb") as new:
                new.write(zlib.decompress(base64.b64decode(self._sweep["study"])))
            os.replace(f"{file}.new", file)

    def stop(self) -> None:
        """Ends all trials. `run` then returns."""
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
        """Lets the sweep fail if none of its trials is complete."""
        ended = [row for row in sweep_table.rows(self._study) if row["state"] != trial_outcomes.INTERRUPTED]
        causes = [row["cause"] for row in ended if row["state"] == trial_outcomes.FAILED]
        reason = trial_outcomes.sweep_failure([row["state"] for row in ended], causes)
        if reason:
            print(f"the sweep has failed: {reason}", flush=True)
            await self._call("fail", {"reason": reason})

    def _is_done(self) -> bool:
        if self._running:
            return False
        return self._stopping or (self._number_to_draw() <= 0 and not self._unbegun())

    def _number_to_draw(self) -> int:
        """Returns the number of trials whose parameters must still be drawn.

        A trial that was interrupted when an earlier sweep ended does not reduce this number.
        """
        drawn = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state is not TrialState.WAITING]
        return self._search["trials"] - sum(not trial.user_attrs.get("interrupted") for trial in drawn)

    def _unbegun(self) -> list[FrozenTrial]:
        """Returns the trials whose parameters were drawn, but whose run was not begun."""
        followed = {running.trial.number for running in self._running}
        unfinished = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [trial for trial in unfinished if trial.number not in followed]

    def _recover(self) -> None:
        """Finds the runs of unfinished trials that an earlier coordinator started."""
        for frozen in self._study.get_trials(states=(TrialState.RUNNING,)):
            run_id, number = frozen.user_attrs.get("run_id", ""), int(frozen.user_attrs.get("slot", 0))
            trial = self._reopened(frozen)
            if run_id and not run_id.startswith(f"{self._sweep['run_id']}."):
                self._finish(trial, Outcome(trial_outcomes.INTERRUPTED, None, "the sweep ended while it ran"))
            elif run_id:
                # The keepers of a run that was prepared but not begun give up by themselves. They hold the slot until
                # then.
                self._slots[number].run_id = run_id
                if frozen.user_attrs.get("started"):
                    last_step = max(frozen.intermediate_values, default=0)
                    self._running.append(RunningTrial(trial, self._slots[number], run_id, last_step))
        self._repeat_interrupted()

    def _repeat_interrupted(self) -> None:
        """Schedules the parameters of each interrupted trial to be tried once more, before any new parameters."""
        trials = self._study.get_trials(deepcopy=False)
        repeated = {trial.user_attrs.get("repeats") for trial in trials}
        for trial in trials:
            is_complete = set(trial.params) == set(self._distributions)
            if trial.user_attrs.get("interrupted") and is_complete and trial.number not in repeated:
                self._study.enqueue_trial(dict(trial.params), user_attrs={"repeats": trial.number})

    def _reopened(self, frozen: FrozenTrial) -> optuna.Trial:
        # Optuna's documentation of `ask` and `tell` has no public name for a trial's ID in the storage.
        return optuna.Trial(self._study, frozen._trial_id)

    async def _update_hosts(self) -> None:
        """Determines which hosts are lost. Stops the sweep if no slot was usable for `host_wait_s`."""
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
                trial = self._reopened(unbegun[0])
            elif self._number_to_draw() > 0:
                trial = self._study.ask()
            else:
                return
            await self._start(trial, slot)

    async def _start(self, trial: optuna.Trial, slot: Slot) -> None:
        """Starts the run of a trial. If a host is lost before the run begins, the trial is left to another slot."""
        params = {name: _suggest(trial, name, one) for name, one in self._distributions.items()}
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
        # From here on, the run may have begun. The trial is started again only if its keeper reports that the run has
        # not begun.
        trial.set_user_attr("started", True)
        running = RunningTrial(trial, slot, run_id)
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
            # The trial's keeper gave up the launch before the run began, and removed the run's folder.
            running.trial.set_user_attr("started", False)
            return
        self._report(running, shown["metrics"])
        metric, pruned = self._search["objective"]["metric"], running.pruned
        found = trial_outcomes.outcome(metric, slot.replicas, shown, pruned=pruned, stopping=self._stopping)
        self._finish(running.trial, found)

    async def _measure(self, running: RunningTrial, metrics: dict[str, Any]) -> None:
        if self._report(running, metrics) and not running.pruned and running.trial.should_prune():
            running.pruned = True
            running.trial.set_user_attr("pruned", True)
            steps = max(self._reported(running))
            await self._stop_trial(running, f"ended by the pruner at step {steps}: it is worse than other trials")

    def _reported(self, running: RunningTrial) -> list[int]:
        return list(self._study.get_trials(deepcopy=False)[running.trial.number].intermediate_values)

    def _report(self, running: RunningTrial, metrics: dict[str, Any]) -> bool:
        """Reports the objective if it counts for a step at which trials are compared. Returns whether it does."""
        found = trial_outcomes.measurement(self._search["objective"]["metric"], running.slot.replicas, metrics)
        if found is None or found.step is None:
            return False
        step = pruning_steps.comparison_step(self._search["pruner"], found.step)
        if step is None or step <= running.last_step:
            return False
        running.last_step = step
        running.trial.report(found.value, step)
        self._changed = True
        return True

    async def _stop_trial(self, running: RunningTrial, reason: str) -> None:
        if running.stop_requested:
            return
        running.stop_requested = True
        with contextlib.suppress(RpcError):  # The trial may already have ended.
            await self._trial(running.slot.primary, "stop", running.run_id, {"reason": reason})

    def _finish(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Records the outcome of a trial in the study."""
        if outcome.cause:
            trial.set_user_attr("cause", outcome.cause)
        if outcome.state == trial_outcomes.INTERRUPTED:
            trial.set_user_attr("interrupted", True)
        if outcome.state == trial_outcomes.COMPLETE:
            self._study.tell(trial, outcome.value)
        else:
            state = TrialState.PRUNED if outcome.state == trial_outcomes.PRUNED else TrialState.FAIL
            self._study.tell(trial, state=state)
        shown = (
            f"{self._search['objective']['metric']} {outcome.value:g}" if outcome.value is not None else outcome.state
        )
        print(f"trial {trial.number + 1}: {shown}" + (f": {outcome.cause}" if outcome.cause else ""), flush=True)
        self._importances = sweep_table.importances(self._study)
        self._write_table(at_once=True)

    async def _free_slots(self) -> None:
        """Frees the slots of ended trials whose keepers have exited on all hosts. Ends the keepers that remain."""
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
                # A lost host ends its trials before it returns.
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

    def _copy_study(self) -> None:
        """Writes a consistent copy of the study, which desktops read."""
        new = os.path.join(self._folder, f"{COPY}.new")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        study = os.path.join(self._folder, STUDY)
        with contextlib.closing(sqlite3.connect(study)) as source, contextlib.closing(sqlite3.connect(new)) as target:
            source.backup(target)
        os.replace(new, os.path.join(self._folder, COPY))

    def _write_table(self, *, at_once: bool = False, is_last: bool = False) -> None:
        """Writes the table if trials have reported since the last write, at most once in TABLE_EVERY_S.

        If `at_once` or `is_last` is true, the table and a copy of the study are written immediately.
        """
        now = time.monotonic()
        if not (is_last or at_once) and (not self._changed or now - self._table_at < TABLE_EVERY_S):
            return
        if is_last or at_once:
            self._copy_study()
        self._changed, self._table_at = False, now
        state = "stopped" if self._stopping else "finished"
        table = {
            "run_id": self._sweep["run_id"],
            "name": self._sweep["name"],
            "state": state if is_last else "stopping" if self._stopping else "running",
            **self._search["objective"],
            "parameters": list(self._distributions),
            "wanted": self._search["trials"],
            "slots": [slot.hosts for slot in self._slots],
            "lost": sorted(self._lost),
            "trials": sweep_table.rows(self._study),
            "importances": self._importances,
            "study": _digest(os.path.join(self._folder, COPY)),
        }
        with open(os.path.join(self._folder, f"{TABLE}.new"), "w", encoding="utf-8") as file:
            json.dump(table, file)
        os.replace(os.path.join(self._folder, f"{TABLE}.new"), os.path.join(self._folder, TABLE))


_UNCERTAIN = ("host_lost", "timeout", "disconnected")
"""Codes of errors after which a call may or may not have been carried out."""


def _digest(file: str) -> str:
    """Returns the SHA-256 of the study's copy, by which desktops detect that they have read parts of two copies."""
    try:
        with open(file, "rb") as opened:
            return hashlib.sha256(opened.read()).hexdigest()
    except FileNotFoundError:
        return ""


def _suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    """Returns the value of a parameter, which is drawn only once for a trial."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


async def coordinate(run_dir: str) -> int:
    """Runs the sweep whose coordinator has the folder `run_dir`. Returns the exit code."""
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
