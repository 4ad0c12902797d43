"""Tests that a topology is launched on SSH hosts and trained there, and that the command follows the run to its end."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.running import DIGITS, PROGRAMS, log_of, logs_of, programs_on, run, topology
from tests.fork_server import ForkServer
from tests.lab import Desktop, HostSpec, Lab
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.train]


def accuracy(text: str) -> float:
    found = re.findall(r"test accuracy ([0-9.]+)", text)
    assert found, text[-500:]
    return float(found[-1])


@pytest.mark.usefixtures("bare_hosts")
def test_digits_on_three_hosts_reach_the_accuracy_of_one_process(
    desktop: Desktop, lab3: Lab, warm_python: str, torch_for_hosts: ForkServer
) -> None:
    desktop.use(lab3, python=warm_python)
    outcome = run(desktop, DIGITS / "three-hosts.yaml")

    assert outcome.code == 0, outcome.stderr
    assert outcome.ended["state"] == "succeeded"
    assert {replica["host"] for replica in outcome.ended["replicas"]} == {"gpu-a", "gpu-b", "gpu-c"}
    assert all(replica["exit_code"] == 0 for replica in outcome.ended["replicas"])
    # With several threads per process, this training would take minutes on a busy machine.
    alone = torch_for_hosts.start(DIGITS / "train_single.py", environment={**os.environ, "OMP_NUM_THREADS": "1"})
    output, _ = alone.communicate(timeout=120)
    alone.close()
    assert alone.returncode == 0, output
    logs = logs_of(desktop, outcome.run_id)
    assert logs.keys() == {"chief-0", "worker-0", "worker-1"}
    [together] = {accuracy(log) for log in logs.values()}
    assert accuracy(output) >= 0.96
    assert together == pytest.approx(accuracy(output), abs=0.01)
    assert not any("Traceback" in log for log in logs.values()), logs
    # The events contain the metrics that the script reported, and how long the phases of the launch took.
    assert {event["replica"] for event in outcome.of("report")} == {"chief-0", "worker-0", "worker-1"}
    timings = outcome.ended["timings"]
    assert (
        0
        < timings["checked_s"]
        < timings["sent_s"]
        < timings["started_s"]
        < timings["first_step_s"]
        < timings["ended_s"]
    )
    assert outcome.ended["metrics"].keys() == logs.keys()
    wait_until(lambda: not programs_on(lab3))


def test_real_torchrun_works_as_a_command(desktop: Desktop, tmp_path: Path) -> None:
    folder = tmp_path / "torchrun"
    folder.mkdir()
    shutil.copy(PROGRAMS / "plain_ddp.py", folder)
    torchrun = Path(sys.executable).with_name("torchrun")
    file = topology(
        folder,
        f"""
        pools:
          - {{name: chief, role: chief, replicas: 1, hosts: [gpu-a]}}
          - {{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}}
        program:
          launcher: command
          command: ["{torchrun}", "--nnodes={{nnodes}}", "--node-rank={{node_rank}}", "--nproc-per-node={{nproc}}",
                    "--master-addr={{master_addr}}", "--master-port={{master_port}}", plain_ddp.py]
        """,
    )

    outcome = run(desktop, file)

    assert outcome.ended["state"] == "succeeded", outcome.ended
    # The worker's torchrun may log a lost store after the program's output, if the chief's torchrun exits first.
    output = log_of(desktop, outcome.run_id, "worker-0").splitlines()
    seen = json.loads([line for line in output if line.startswith("{")][-1])
    assert (seen["rank"], seen["world_size"], seen["ranks"]) == (1, 2, [0, 1])


def test_an_unmodified_ddp_script_sees_the_trainers_alone_and_rank_0_is_the_chief_although_its_address_sorts_last(
    lab: LabFactory, make_desktop: Callable[..., Desktop], torch_for_hosts: ForkServer, tmp_path: Path
) -> None:
    # A c10d rendezvous orders nodes by address as text, in which 10.x.x.9 comes after 10.x.x.10 and 10.x.x.11. The
    # chief would then be rank 2.
    hosts = lab(
        hosts=[HostSpec("gpu-a", last_octet=9), HostSpec("gpu-b", last_octet=10), HostSpec("gpu-c", last_octet=11)]
    )
    (python,) = {host.fork_scripts_from(torch_for_hosts) for host in hosts.hosts}
    desktop = make_desktop(hosts, python=python)
    folder = tmp_path / "ranks"
    folder.mkdir()
    shutil.copy(PROGRAMS / "plain_ddp.py", folder)
    file = topology(
        folder,
        """
        strategy: {kind: all_reduce}
        pools:
          - {name: workers, role: worker, replicas: 2, hosts: [gpu-b, gpu-c], placement: spread}
          - {name: chief, role: chief, replicas: 1, hosts: [gpu-a]}
          - {name: eval, role: evaluator, replicas: 1, hosts: [gpu-c]}
        program: {script: plain_ddp.py, ends_with: all}
        """,
    )

    outcome = run(desktop, file)

    assert outcome.ended["state"] == "succeeded", outcome.ended
    seen = {name: json.loads(log.splitlines()[-1]) for name, log in logs_of(desktop, outcome.run_id).items()}
    assert seen.pop("evaluator-0")["WORLD_SIZE"] is None
    assert {name: (each["rank"], each["RANK"]) for name, each in seen.items()} == {
        "chief-0": (0, "0"),
        "worker-0": (1, "1"),
        "worker-1": (2, "2"),
    }
    for trainer in seen.values():
        assert (trainer["WORLD_SIZE"], trainer["ranks"]) == ("3", [0, 1, 2])
        assert trainer["same_model"]
