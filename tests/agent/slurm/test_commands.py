"""Tests of the parsers of Slurm's output, with output of Slurm 22.05, and of the environment of its commands."""

from __future__ import annotations

import pytest

from torchyard_agent.slurm import commands, description
from torchyard_agent.slurm.job_queue import Job

NODES = """\
NodeName=n1 Arch=x86_64 CPUAlloc=1 CPUEfctv=8 CPUTot=8 Gres=gpu:a100:4(S:0-1) NodeAddr=10.1.1.1 OS=Linux 6.1 #1 SMP \
RealMemory=16000 State=MIXED Partitions=main,urgent  BootTime=1795833665 Reason=not responding [root@1795833665]
NodeName=n2 CPUEfctv=8 CPUTot=8 Gres=gpu:a100:4(S:0-1) RealMemory=16000 State=IDLE* Partitions=main
NodeName=n3 CPUEfctv=16 CPUTot=16 Gres=(null) RealMemory=64000 State=IDLE+DRAIN Partitions=main
NodeName=n4 CPUEfctv=16 CPUTot=16 Gres=(null) RealMemory=64000 State=IDLE Partitions=other
"""


def test_the_environment_has_no_settings_of_a_surrounding_job() -> None:
    environ = {"SLURM_JOB_ID": "1", "SBATCH_ACCOUNT": "x", "SRUN_DEBUG": "1", "SLURM_CONF": "/c", "HOME": "/root"}
    assert commands.environment(environ) == {
        "SLURM_CONF": "/c",
        "HOME": "/root",
        "SLURM_TIME_FORMAT": "%s",
        "LC_ALL": "C",
    }


def test_values_of_scontrol_may_contain_spaces() -> None:
    node = commands.pairs(NODES.splitlines()[0])
    assert node["OS"] == "Linux 6.1 #1 SMP"
    assert node["Reason"] == "not responding [root@1795833665]"
    assert node["Partitions"] == "main,urgent"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30 sec", 30), ("00:05:00", 300), ("1-00:00:00", 86400), ("15", 900), ("10:30", 630), ("UNLIMITED", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert commands.duration(text) == seconds


def test_gpus_by_type() -> None:
    assert commands.gres("gpu:a100:4(S:0-1),gpu:2,fpga:1") == {"a100": 4, "": 2}
    assert commands.gres("(null)") == {}


def test_nodes_are_grouped_by_shape_within_the_partition() -> None:
    gpu, cpu = description.group(NODES, "main")
    assert (gpu["count"], gpu["gpus"], gpu["states"]) == (2, {"a100": 4}, {"mixed": 1, "idle": 1})
    assert (cpu["count"], cpu["cpus"], cpu["states"], cpu["names"]) == (1, 16, {"drained": 1}, ["n3"])
    assert [shape["count"] for shape in description.group(NODES, None)] == [2, 2]


def test_lines_of_other_lengths_are_messages() -> None:
    text = "slurm_load_jobs: try again\n7|torchyard-x|PENDING|Resources|N/A||\n"
    assert commands.table(text, 6) == [["7", "torchyard-x", "PENDING", "Resources", "N/A", ""]]


def test_a_cancelled_job_differs_from_one_that_is_requeued_or_at_its_time_limit() -> None:
    job = Job("7", "COMPLETING", "None", None, "n1", restarts=1)
    assert job.was_cancelled(restarts=1)
    assert not job.was_cancelled(restarts=0)
    assert not job._replace(reason="TimeLimit").was_cancelled(restarts=1)
    assert not job._replace(state="RUNNING").was_cancelled(restarts=1)


def test_interruptions_have_slurm_s_names() -> None:
    job = Job("7", "COMPLETING", "None", None, "n1", restarts=1)
    assert job.interruption(restarts=0) == "REQUEUED"
    assert job.interruption(restarts=1) == ""
    preempted = job._replace(is_preempted=True)
    assert preempted.interruption(restarts=1) == "PREEMPTED"
    assert not preempted.was_cancelled(restarts=1), "a job that may not be requeued is cancelled by a preemption"
    assert job._replace(reason="NodeDown").interruption(restarts=0) == "NODE_FAIL"
    assert job._replace(reason="TimeLimit").interruption(restarts=1) == "TIMEOUT"
    assert job._replace(state="OUT_OF_MEMORY").interruption(restarts=1) == "OUT_OF_MEMORY"


@pytest.mark.parametrize(
    ("settings", "sends"),
    [
        ({}, False),
        ({"SlurmctldParameters": "enable_configless,preempt_send_user_signal"}, True),
        ({"PreemptParameters": "youngest_first,send_user_signal"}, True),
    ],
)
def test_both_names_of_the_signal_at_a_preemption_are_known(settings: dict[str, str], sends: bool) -> None:
    assert description._sends_user_signal(settings) is sends


def test_the_sentence_of_a_waiting_job_has_slurm_s_reason_and_estimate() -> None:
    job = Job("7", "PENDING", "(Resources)", 4102444800.0, "")
    assert job.sentence == "job 7 waits in the queue: Resources; Slurm expects its start at 2100-01-01T00:00:00Z"
    assert Job("7", "PENDING", "None", None, "").sentence == "job 7 waits in the queue"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[007-010,12],login", ["gpu007", "gpu008", "gpu009", "gpu010", "gpu12", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1,3]-ib", ["n1-ib", "n3-ib"]),
        ("(null)", []),
        ("", []),
    ],
)
def test_a_list_of_nodes_is_expanded(text: str, names: list[str]) -> None:
    assert commands.hostlist(text) == names
