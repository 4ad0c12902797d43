"""The main job: a topology is launched on real SSH hosts, trains there for real, and is followed to its end."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.end_to_end.running import DIGITS, PROGRAMS, log_of, run, topology
from tests.lab import Desktop, HostSpec, Lab
from tests.lab_fixtures import LabFactory
from tests.nursery import Nursery

pytestmark = [pytest.mark.lab, pytest.mark.train]


def accuracy(text: str) -> float:
    found = re.findall(r"test accuracy ([0-9.]+)", text)
    assert found, text[-500:]
    return float(found[-1])


@pytest.mark.usefixtures("bare_hosts")
def test_digits_on_three_hosts_reach_the_accuracy_of_one_process(desktop: Desktop, torch_for_hosts: Nursery) -> None:
    outcome = run(desktop, DIGITS / "three-hosts.yaml")

    assert outcome.code == 0, outcome.stderr
    assert outcome.ended["state"] == "succeeded"
    assert {replica["host"] for replica in outcome.ended["replicas"]} == {"gpu-a", "gpu-b", "gpu-c"}
    assert all(replica["exit_code"] == 0 for replica in outcome.ended["replicas"])
    # Threads that wait for each other take minutes on a busy machine.
    alone = torch_for_hosts.start(DIGITS / "train_single.py", environment={**os.environ, "OMP_NUM_THREADS": "1"})
    output, _ = alone.communicate(timeout=120)
    alone.close()
    assert alone.returncode == 0, output
    assert accuracy(log_of(desktop, outcome.run_id, "chief-0")) == pytest.approx(accuracy(output), abs=0.01)
    # The script reported by itself, and the times were taken.
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


def test_an_unmodified_ddp_script_sees_the_trainers_world_only(
    desktop: Desktop, lab3: Lab, warm_python: str, tmp_path: Path
) -> None:
    desktop.use(lab3, python=warm_python)
    folder = tmp_path / "ddp"
    folder.mkdir()
    shutil.copy(PROGRAMS / "plain_ddp.py", folder)
    file = topology(
        folder,
        """
        strategy: {kind: all_reduce}
        pools:
          - {name: chief, role: chief, replicas: 1, hosts: [gpu-a]}
          - {name: workers, role: worker, replicas: 1, hosts: [gpu-b]}
          - {name: eval, role: evaluator, replicas: 1, hosts: [gpu-c]}
        program: {script: plain_ddp.py, ends_with: all}
        """,
    )

    outcome = run(desktop, file)

    assert outcome.ended["state"] == "succeeded", outcome.ended
    seen = [
        json.loads(log_of(desktop, outcome.run_id, name).splitlines()[-1])
        for name in ("chief-0", "worker-0", "evaluator-0")
    ]
    assert [trainer["RANK"] for trainer in seen[:2]] == ["0", "1"]
    assert all(trainer["WORLD_SIZE"] == "2" and trainer["ranks"] == [0, 1] for trainer in seen[:2])
    assert all(trainer["same_model"] for trainer in seen[:2])
    assert seen[2]["WORLD_SIZE"] is None


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
    seen = json.loads(log_of(desktop, outcome.run_id, "worker-0").splitlines()[-1])
    assert (seen["rank"], seen["world_size"], seen["ranks"]) == (1, 2, [0, 1])


def test_rank_0_is_the_chief_although_its_address_sorts_last(
    lab: LabFactory, make_desktop, torch_for_hosts: Nursery, tmp_path: Path
) -> None:
    # As text, 10.x.x.9 sorts after 10.x.x.10 and .11: c10d rendezvous would make the chief rank 2.
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
        pools:
          - {name: workers, role: worker, replicas: 2, hosts: [gpu-b, gpu-c], placement: spread}
          - {name: chief, role: chief, replicas: 1, hosts: [gpu-a]}
        program: {script: plain_ddp.py}
        """,
    )

    outcome = run(desktop, file)

    assert outcome.ended["state"] == "succeeded", outcome.ended
    ranks = {
        name: json.loads(log_of(desktop, outcome.run_id, name).splitlines()[-1])["rank"]
        for name in ("chief-0", "worker-0", "worker-1")
    }
    assert ranks == {"chief-0": 0, "worker-0": 1, "worker-1": 2}
