"""The batch program of a trial's job on a cluster, and the process through which it accesses the sweep's study.

A trial is an element of an array of jobs (`24_3`) or, if its request for nodes is heterogeneous, a single job. Trials
therefore start, fail, and are requeued and preempted independently. The batch program asks the study for a trial, runs
it like any other run, and meanwhile reports the objective to the study:

    begin ──trial, parameters──> keepers start ──started──> run ──report, every second──> the run ends ──end──> exit

A job that starts again gets the same trial from the study, and continues its run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

from torchyard_agent.keeper.link.gang_link import Message
from torchyard_agent.keeper.processes import rank_process
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import commands, job_folder, sweep_folder, sweep_jobs
from torchyard_agent.slurm.batch_program import Batch, set_up_process
from torchyard_agent.slurm.job_queue import Job

SAMPLE_EVERY_S = 1.0
"""Interval in seconds at which the metrics of the trial are sampled."""
STUDY_OPENS_WITHIN_S = 300.0
"""Timeout in seconds for the import of Optuna, which takes long if many nodes read it from a shared file system."""
ANSWER_WITHIN_S = 600.0
"""Timeout in seconds of a request to the study. Several jobs may have to wait for the sweep's lock in turn."""
LARGEST_ANSWER = 1 << 20
STOPPED = "the sweep was stopped"

log = logging.getLogger(__name__)


class StudyFailed(Exception):
    """Raised if the study cannot be used. The message is a clause for users."""


def main(folder: str, number: int) -> int:
    """Runs the job with this number of the sweep whose job folder is `folder`. Returns the job's exit status."""
    set_up_process()
    return asyncio.run(_run(folder, number))


async def _run(folder: str, number: int) -> int:
    run_dir = os.path.dirname(folder)
    early: list[int] = []
    for known in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
        asyncio.get_running_loop().add_signal_handler(known, early.append, known)
    if job_folder.view(run_dir, os.path.basename(run_dir))["ended"]:
        log.info("the sweep has ended")
        return 0
    study = StudyProcess(run_dir, number)
    try:
        await study.open()
        begun = await study.ask("begin")
    except StudyFailed as failure:
        await study.close()
        return await _give_up(run_dir, f"{socket.gethostname()}: {failure}")
    try:
        if not begun:
            log.info("no trial is left for this job")
            return 0
        return await TrialBatch(run_dir, number, begun, study, early).run()
    finally:
        await study.close()


async def _give_up(run_dir: str, problem: str) -> int:
    """Ends this job, which cannot use the study, and also the sweep if none of its trials has begun.

    Once a trial has begun, the study evidently works on other nodes. Returns the job's exit status.
    """
    log.error("%s", problem)
    run_id = os.path.basename(run_dir)
    with sweep_folder.lock(run_dir):
        has_begun = os.path.exists(os.path.join(sweep_folder.outputs(run_dir), sweep_folder.TABLE))
        ends = not has_begun and not job_folder.view(run_dir, run_id)["ended"]
        if ends:
            sweep_folder.append_log(run_dir, f"the sweep has failed: {problem}")
            sweep_folder.note_stop(run_dir, problem)
            sweep_folder.end(run_dir, run_id, RunState.FAILED, problem)
    if ends:
        await sweep_jobs.end_jobs(run_dir)
    return 1


class StudyProcess:
    """The process that accesses the study (`sweeps.study_process`). If it has ended, the next request restarts it.

    Args:
        run_dir: The folder of the sweep's run.
        number: The number of the job in the sweep.
    """

    def __init__(self, run_dir: str, number: int):
        self._folder = job_folder.path(run_dir)
        sweep = job_folder.read(self._folder, "job.json")["sweep"]
        self._python: str = sweep["python"]
        self._setup: list[str] = sweep["setup"]
        self._env: dict[str, str] = sweep["env"]
        self._arguments = ["-m", "torchyard_agent.sweeps.study_process", run_dir, str(number)]
        self._note = os.path.join(self._folder, f"element-{number}.setup")
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Starts the process. Raises StudyFailed if it cannot use the study."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._note)
        others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        path = os.pathsep.join([rank_process.ARCHIVE, *others])
        try:
            self._process = await asyncio.create_subprocess_exec(
                *rank_process.command([self._python, *self._arguments], self._setup, self._note),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self._env, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
                cwd=self._folder,
                limit=LARGEST_ANSWER,
                start_new_session=True,  # Slurm's signals to the batch program must not end this process.
            )
        except OSError as error:
            raise StudyFailed(f"{self._python}, which chooses the trials, cannot be run ({error.strerror})") from error
        await self._answer(STUDY_OPENS_WITHIN_S)

    async def ask(self, op: str, **params: Any) -> dict[str, Any]:
        """Sends a request to the process, and returns its answer. Raises StudyFailed if the request fails."""
        # A request is completed even if its caller is cancelled. Otherwise, the next request would receive its answer.
        return await asyncio.shield(asyncio.ensure_future(self._exchange({"op": op, **params})))

    async def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        async with self._lock:
            if self._process is None:
                await self.open()
            process = self._process
            assert process is not None
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
            except OSError:
                pass  # The process has ended. If it printed an error before, `_answer` reads it.
            return await self._answer(ANSWER_WITHIN_S)

    async def _answer(self, within_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), within_s)
        except (asyncio.TimeoutError, ValueError):
            await self.close()
            raise StudyFailed(f"the study of the sweep did not answer within {within_s:.0f} s") from None
        if not line:
            code = await process.wait()
            self._process = None
            raise StudyFailed(self._end_of(code))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise StudyFailed(str(answer["error"]))
        return answer

    def _end_of(self, code: int) -> str:
        """Returns why the process has ended without an answer."""
        try:
            with open(self._note, encoding="utf-8") as file:
                which, _, status = file.read().strip().partition(" ")
        except OSError:
            return f"the process with the study of the sweep ended with {code}"
        if which == "exec":
            return f"{self._python}, which chooses the trials, is not there after the setup lines"
        return f"the setup line `{self._setup[int(which)]}` ended with {status}"

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class TrialBatch(Batch):
    """The batch program of the job of one trial.

    Args:
        run_dir: The folder of the sweep's run.
        number: The number of the job in the sweep.
        begun: The result of `JobTrials.begin`.
        study: The process with the study.
        early: The signals that arrived before the trial was known.
    """

    def __init__(
        self, run_dir: str, number: int, begun: dict[str, Any], study: StudyProcess, early: Sequence[int] = ()
    ):
        super().__init__(sweep_folder.write_trial(run_dir, begun, number))
        self._sweep_dir = run_dir
        self._number = number
        self._begun = begun
        self._study = study
        self._early = list(early)
        self._sampling: asyncio.Task[None] | None = None
        self._sampled: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._is_over = False
        self._is_start_noted = False

    async def run(self) -> int:
        for number in self._early:
            if number == signal.SIGUSR2:
                self._on_stop()
            else:
                self._on_notice(number)
        job_folder.write(self._folder, "submitted.json", {"jobs": [self._own], "at": 0.0})
        return await super().run()

    @property
    def _secrets_folder(self) -> str:
        return job_folder.path(self._sweep_dir)

    def _begin(self) -> None:
        super()._begin()
        self._sampling = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        """Names the job after the trial's run, and reports the objective until this task is cancelled."""
        name = f"{job_folder.NAME_PREFIX}{self._run_id}"
        with contextlib.suppress(RpcError):  # Only sessions need the name, to find the job in the queue.
            await commands.output(["scontrol", "update", f"jobid={self._own}", f"name={name}"])
        await self._note_start()
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            self._streams[self._primary].send({"op": "metrics"})
            metrics = await self._sampled.get()
            reason = (await self._try("report", metrics=metrics)).get("stop", "")
            if reason and (self._request or {}).get("op") not in ("stop", "pause"):
                self._ask({"op": "stop", "reason": reason})

    async def _note_start(self) -> None:
        """Records in the study, once, that the trial has started, and on which nodes."""
        if not self._is_start_noted:
            self._is_start_noted = True
            nodes = list(dict.fromkeys(self._node_of.values()))
            await self._try("started", nodes=nodes, job=self._own, params=self._begun["params"])

    async def _try(self, op: str, **params: Any) -> dict[str, Any]:
        """Makes a request to the study. Returns {} if it fails: the trial continues, and later requests may succeed."""
        try:
            return await self._study.ask(op, **params)
        except StudyFailed as failure:
            log.warning("%s: %s", op, failure)
            return {}

    def _on_report(self, slot: str, report: Message) -> None:
        if "metrics" in report:
            self._sampled.put_nowait(report["metrics"])
        else:
            super()._on_report(slot, report)

    def _on_stop(self) -> None:
        if self._is_over:
            return
        if sweep_folder.stop_reason(self._sweep_dir):
            self._ask({"op": "stop", "reason": STOPPED})
        else:
            super()._on_stop()

    async def _finish(self, code: int) -> int:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait({self._sampling})
            await self._note_start()  # The run may have ended before its first sample.
        if self._problem and not self._has_begun:
            sweep_folder.note_unstarted(self._run_dir)
        status = await super()._finish(code)
        if job_folder.view(self._run_dir, self._run_id)["ended"]:
            self._is_over = True
            await self._end_trial()
        return status

    async def _end_trial(self) -> None:
        """Records the outcome of the trial. If this fails, another job of the sweep records it."""
        stops = False
        for _ in range(2):  # If the study's process was killed, the second request starts it again.
            try:
                stops = (await self._study.ask("end"))["stops"]
                break
            except StudyFailed as failure:
                log.warning("the outcome is not recorded: %s", failure)
                await self._study.close()
        if stops:
            await sweep_jobs.end_jobs(self._sweep_dir)
        with contextlib.suppress(RpcError):  # If Slurm does not answer, the next session of a desktop asks again.
            if not self._is_sweep_over and await sweep_jobs.end_lost_trials(self._sweep_dir):
                await self._try("end")

    @property
    def _is_sweep_over(self) -> bool:
        return bool(job_folder.view(self._sweep_dir, os.path.basename(self._sweep_dir))["ended"])

    def _on_interruption(self, cause: str) -> None:
        sweep_folder.log_interruption(self._run_dir, self._run_id, cause)
        with sweep_folder.lock(self._sweep_dir):
            sweep_folder.update_table(self._sweep_dir)

    async def _continue(self, job: Job | None) -> bool:
        has_continued = await super()._continue(job)
        successor = job_folder.job_id(self._folder)
        if successor != self._own:
            with sweep_folder.lock(self._sweep_dir):
                job_folder.note_submission(job_folder.path(self._sweep_dir), successor)
        return has_continued

    @property
    def _submission(self) -> list[str]:
        return sweep_jobs.submission(self._sweep_dir, self._number)
