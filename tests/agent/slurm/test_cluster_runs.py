"""Tests of runs whose job waits in the queue: their logs, and their end if the job is cancelled in Slurm."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.daemon.rpc_methods import Methods
from torchyard_agent.journal import Journal
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import job_folder
from torchyard_agent.slurm.cluster_runs import ClusterRuns
from torchyard_agent.slurm.job_queue import Job, JobQueue

RUN = "20260101-000000-aaaa"
NODES = {"hpc.1": "n7", "hpc.2": "n9"}
REPLICAS = [{"name": "worker-0", "host": "hpc.1"}, {"name": "worker-1", "host": "hpc.2"}]


class Queue:
    """A login node where the job 7 of one run waits. `state` is the job's state for `scontrol`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        pending = f"7|torchyard-{RUN}|PENDING|Resources|N/A||root|N/A|"
        for name, text in {
            "squeue": f"grep -q PENDING {folder}/state && echo '{pending}'; exit 0",
            "scontrol": f"echo JobId=7 JobState=$(cat {folder}/state) Reason=None Restarts=0",
            "sacct": "exit 1",
        }.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        self.run_dir = Path(paths.run_dir(str(folder), "hpc.1", RUN))
        job = self.run_dir / "job"
        job.mkdir(parents=True)
        job_folder.write(str(job), "job.json", {"components": [{"slots": ["hpc.1", "hpc.2"]}]})
        job_folder.write(str(job), "secrets.json", {"KEY": "value"})
        job_folder.write(str(self.run_dir), "run.json", {"record": {"replicas": REPLICAS}})
        # The job was submitted before the answer of `squeue` that the tests read.
        job_folder.write(str(job), "submitted.json", {"jobs": ["6", "7"], "at": 0.0})
        job_folder.journal_state(str(self.run_dir), RunState.WAITING, "job 7 waits in the queue")
        self.set_state("PENDING")

    def set_state(self, state: str) -> None:
        (self.folder / "state").write_text(state)

    def runs(self, slot: str) -> ClusterRuns:
        """Returns the runs of a slot in a new session, which queries `squeue` again."""
        queue_dir = self.folder / "queue"
        queue_dir.mkdir(exist_ok=True)
        (queue_dir / "queue.json").unlink(missing_ok=True)
        return ClusterRuns(str(self.folder), "hpc", slot, "", JobQueue(str(queue_dir)))

    def ask(self, slot: str, method: str, **params: Any) -> Any:
        """Returns the answer of a method of a slot."""
        nothing: Any = None

        async def answer() -> Any:
            table = Methods(str(self.folder), {"node": slot}, self.runs(slot), nothing, nothing).table()
            return await table[method](nothing, {"run_id": RUN, **params})

        return asyncio.run(answer())


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Queue(tmp_path)


def test_the_logs_of_a_waiting_run_are_empty_on_each_slot_and_have_not_ended(queue: Queue) -> None:
    for slot, replica in (("hpc.1", "worker-0"), ("hpc.2", "worker-1")):
        assert queue.ask(slot, "logs.list") == []
        answer = queue.ask(slot, "logs.read", replica=replica, offset=0)
        assert (answer["size"], answer["ended"]) == (0, False)
    with pytest.raises(RpcError, match="there is no run"):
        queue.ask("hpc.3", "logs.list")


def test_logs_of_an_interrupted_run_end_only_with_the_run(queue: Queue) -> None:
    other = Path(paths.run_dir(str(queue.folder), "hpc.2", RUN))
    (other / "logs").mkdir(parents=True)
    (other / "logs" / "worker-1.log").write_text("a line\n")
    # The keeper of another slot than the primary's has ended its part of the run.
    journal = Journal(str(other / "journal.jsonl"), lambda: None)
    journal.write("run_ended", state="stopped", reason="")
    journal.close()
    job_folder.journal_interruption(str(queue.run_dir), RUN, "7", 0, "PREEMPTED")
    answer = queue.ask("hpc.2", "logs.read", replica="worker-1", offset=0)
    assert (answer["next"], answer["ended"]) == (7, False)
    job_folder.journal_end(str(queue.run_dir), RUN, RunState.STOPPED, "stopped by kim")
    assert queue.ask("hpc.2", "logs.read", replica="worker-1", offset=7)["ended"]


def test_a_waiting_job_that_is_cancelled_in_slurm_stops_its_run(queue: Queue) -> None:
    assert queue.ask("hpc.1", "run.show")["alive"]
    queue.set_state("CANCELLED")
    shown = queue.ask("hpc.1", "run.show")
    assert (shown["state"], shown["reason"]) == ("stopped", "its job 7 was cancelled in Slurm")
    assert [job["job_id"] for job in shown["jobs"]] == ["7"]
    assert [(one["name"], one["host"], one["state"]) for one in shown["replicas"]] == [
        ("worker-0", "hpc.1", "stopped"),
        ("worker-1", "hpc.2", "stopped"),
    ]
    assert not (queue.run_dir / "job" / "secrets.json").exists()
    assert queue.ask("hpc.2", "logs.read", replica="worker-1", offset=0)["ended"]


def test_the_expected_start_is_journaled_also_if_another_task_has_asked_slurm(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_agent.slurm.cluster_runs.WATCH_S", 0.01)
    squeue = queue.folder / "bin" / "squeue"
    squeue.write_text(squeue.read_text().replace("N/A||", "4102444800||"))
    runs = queue.runs("hpc.1")

    async def watch() -> None:
        assert await runs.is_open(RUN), "a desktop follows the run"
        watching = asyncio.get_running_loop().create_task(runs.watch_queue())
        try:
            while "2100-01-01T00:00:00Z" not in job_folder.view(str(queue.run_dir), RUN)["reason"]:
                await asyncio.sleep(0.01)
        finally:
            watching.cancel()

    asyncio.run(asyncio.wait_for(watch(), 20))  # Before Slurm is asked again.


def test_a_run_has_nodes_while_it_does_not_wait(queue: Queue) -> None:
    job_folder.write(str(queue.run_dir / "job"), "started.json", {"nodes": NODES, "job_id": "7", "restart": 0})
    assert queue.ask("hpc.1", "run.show")["nodes"] == {}
    job_folder.journal_state(str(queue.run_dir), RunState.RUNNING, "")
    assert queue.ask("hpc.1", "run.show")["nodes"] == NODES


def test_the_job_of_a_waiting_run_is_not_shown_as_running_by_an_older_answer_of_slurm(queue: Queue) -> None:
    squeue = queue.folder / "bin" / "squeue"
    squeue.write_text(squeue.read_text().replace("|PENDING|", "|RUNNING|").replace("grep -q PENDING", "grep -q ."))
    assert [job["state"] for job in queue.ask("hpc.1", "run.show")["jobs"]] == [""]
    job_folder.journal_state(str(queue.run_dir), RunState.RUNNING, "")
    assert [job["state"] for job in queue.ask("hpc.1", "run.show")["jobs"]] == ["RUNNING"]


@pytest.mark.parametrize(("cause", "is_hastened"), [("REQUEUED", True), ("NODE_FAIL", False)])
def test_a_requeued_job_starts_at_once_while_a_desktop_is_connected_unless_a_node_was_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, cause: str, is_hastened: bool
) -> None:
    monkeypatch.setenv("PATH", f"{queue.folder / 'bin'}:/usr/bin:/bin")
    scontrol = queue.folder / "bin" / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {queue.folder}/updates\n' + scontrol.read_text().split("\n", 1)[1])
    job_folder.write(str(queue.run_dir / "job"), "started.json", {"nodes": NODES, "job_id": "7", "restart": 0})
    job_folder.journal_interruption(str(queue.run_dir), RUN, "7", 0, cause)
    runs = queue.runs("hpc.1")
    job = Job("7", "PENDING", "BeginTime", None, "")
    asyncio.run(runs._start_now(RUN, job))
    updates = queue.folder / "updates"
    assert (updates.exists() and "StartTime=now" in updates.read_text()) is is_hastened


def test_a_job_that_failed_before_its_batch_program_began_is_no_stop(queue: Queue) -> None:
    queue.set_state("NODE_FAIL")
    shown = queue.ask("hpc.1", "run.show")
    assert not shown["alive"]
    assert not shown["ended"]
    assert shown["died"] == "Slurm ended its job 7: NODE_FAIL"
