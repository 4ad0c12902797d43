"""Tests of runs on a real NVIDIA GPU: how it is detected, planned, assigned by UUID and monitored, and training under
five strategies.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import DIGITS, events_of, log_of, logs_of, programs_on, run, started, topology
from tests.end_to_end.training.test_strategies import HOGWILD_OPTIONS, SYNCHRONOUS_OPTIONS, accuracies
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.train,
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU"),
]

HOLD = """
    import os, pathlib, torch, torchyard_roles as ty
    cluster = ty.join()
    print("given", os.environ["CUDA_VISIBLE_DEVICES"], cluster.device, flush=True)
    memory = torch.zeros(2 << 30, dtype=torch.uint8, device=cluster.device)
    model = torch.nn.Linear(4096, 4096)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-9))
    while not pathlib.Path("/tmp/enough").exists():
        cluster.report(loss=model(torch.ones(512, 4096, device=cluster.device)).sum())
"""


def nvidia_smi(query: str) -> list[list[str]]:
    """Returns the queried values of each GPU, as printed by nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split(", ") for line in lines]


def answer(desktop: Desktop, *arguments: str | Path) -> Any:
    done = desktop.torchyard(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_gpu_is_found_planned_given_watched_and_kept_from_others(
    lab: Callable[..., Lab], make_desktop: Callable[..., Desktop], tmp_path: Path
) -> None:
    hosts = lab(1)
    desktop, other = make_desktop(hosts), make_desktop(hosts)
    (host,) = answer(desktop, "hosts", "check")
    for gpu, (index, identity, name, memory) in zip(
        host["gpus"], nvidia_smi("index,uuid,name,memory.total"), strict=True
    ):
        assert (gpu["index"], gpu["uuid"], gpu["name"]) == (int(index), identity, name)
        assert gpu["memory_mb"] == pytest.approx(int(memory), abs=1)
    count = len(host["gpus"])
    text = f"""
        pools:
          - {{name: chief, role: chief, replicas: 1, gpus: {count}}}
        program: {{script: hold.py, env: {{OMP_NUM_THREADS: "1"}}}}
    """
    file = topology(tmp_path / "hold", text, hold_py=HOLD)
    process = desktop.start("run", file, "--json")
    run_id = started(process, "run_submitted")["run_id"]
    started(process, "report", replica="chief-0")

    (now,) = answer(desktop, "status")
    for gpu in now["gpus"]:
        (process_there,) = (each for each in gpu["processes"] if each["replica"] == f"{run_id}/chief-0")
        assert process_there["user"] == "root"
        assert process_there["memory_mb"] > 2048
        assert gpu["memory_used_mb"] > 2048
        assert gpu["power_w"] > 0
        assert 0 <= gpu["utilisation"] <= 100
    refused = other.torchyard("run", file)
    assert refused.returncode == 1
    assert "used by root" in refused.stderr, refused.stderr
    hosts["gpu-a"].exec(["touch", "/tmp/enough"], check=True)
    *_, ended = events_of(process)
    assert ended["state"] == "succeeded", ended
    given = log_of(desktop, run_id, "chief-0")
    assert f"given {','.join(gpu['uuid'] for gpu in host['gpus'])} cuda:0" in given.splitlines()
    wait_until(lambda: not any(gpu["processes"] for gpu in answer(desktop, "status")[0]["gpus"]))


LEAST_ACCURACY = 0.97
"""Minimum test accuracy; training in one process on the CPU reaches 0.99."""
TRAINERS = "{name: workers, role: worker, replicas: 3, placement: spread}"


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("kind: all_reduce", []),
        ("kind: sandblaster", ["{name: servers, role: ps, replicas: 2}"]),
        ("kind: reduction_server", ["{name: reducers, role: reducer, replicas: 3}"]),
        ("kind: reduction_server", ["{name: reducers, role: reducer, replicas: 1}"]),
        ("kind: downpour, max_staleness: 8", ["{name: servers, role: ps, replicas: 1}"]),
        ("kind: hogwild, sync_every: 4", []),
    ],
    ids=["all_reduce", "sandblaster", "reducers", "mixed", "downpour", "hogwild"],
)
def test_the_example_learns_on_gpus_under_five_strategies(
    desktop: Desktop, lab3: Lab, tmp_path: Path, strategy: str, more: list[str]
) -> None:
    """Three hosts share this machine's first GPU. A setup line selects it, because a plan never assigns a GPU twice."""
    is_synchronous = strategy.split()[1].strip(",") not in ("downpour", "hogwild")
    pools = [TRAINERS, *more, "{name: scorer, role: evaluator, replicas: 1}"]
    arguments = SYNCHRONOUS_OPTIONS if is_synchronous else HOGWILD_OPTIONS
    lines = "".join(f"      - {pool}\n" for pool in pools)
    script = (
        (DIGITS / "train.py").read_text().replace("cluster = ty.join()", "cluster = ty.join(); print(cluster.device)")
    )
    file = topology(
        tmp_path / "program",
        f"""\
    strategy: {{{strategy}}}
    pools:
{lines}    program:
      script: train.py
      args: {json.dumps(arguments)}
      setup: [export CUDA_VISIBLE_DEVICES=0]
      env: {{OMP_NUM_THREADS: "1"}}
      checkpoint_every_s: 0.5
      max_restarts: 0
      ends_with: {"trainers" if is_synchronous else "all"}
    """,
        train_py=script,
    )
    outcome = run(desktop, file)
    logs = logs_of(desktop, outcome.run_id)
    assert outcome.code == 0, (outcome.ended, logs)
    trainers = sorted(name for name in logs if name.startswith("worker"))
    assert len(trainers) == 3
    for name in [*trainers, "evaluator-0"]:
        assert "cuda:0" in logs[name].splitlines(), logs[name]
    if is_synchronous:
        (score,) = {accuracies(logs[name])[-1] for name in trainers}
        assert score >= LEAST_ACCURACY, logs[trainers[0]]
    assert accuracies(logs["evaluator-0"])[-1] >= LEAST_ACCURACY, logs["evaluator-0"]
    assert not any("Traceback" in log for log in logs.values()), logs
    wait_until(lambda: not programs_on(lab3))
