"""Tests of collective calls by all trainers: evaluation, reports and early stopping, even if a worker group fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.end_to_end.running import Outcome, events_of, logs_of, topology
from tests.lab import Desktop, Lab

pytestmark = [pytest.mark.lab, pytest.mark.train]

SCRIPT = """
import os
import time
import torch
import torchyard_roles as ty

with ty.join() as cluster:
    torch.manual_seed(0)
    inputs = torch.randn(60, 2)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = torch.nn.Linear(2, 1)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.02))
    loader = cluster.loader(data, batch_size=4, shuffle=True, seed=1)
    for epoch in range(20):
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if DIES and epoch == 1 and number == 2 and cluster.index == 2 and os.environ["TORCHYARD_GENERATION"] == "0":
                os._exit(7)
        total, count = 0.0, 0
        for x, y in cluster.loader(data, batch_size=7, evaluation=True):
            total += torch.nn.functional.mse_loss(model(x), y, reduction="sum").item()
            count += len(y)
        total, count = cluster.mean([total, count])
        cluster.report(validation=total / count, samples=count * cluster.world_size)
        patience = time.monotonic() + 60
        while cluster.is_chief and epoch == 4 and not os.path.exists("seen"):
            assert time.monotonic() < patience, "no report was seen"
            time.sleep(0.05)
            cluster.report(validation=total / count)
        print(f"epoch {epoch} validation {total / count!r} of {count * cluster.world_size:.0f}", flush=True)
        if cluster.any(cluster.is_chief and epoch == 4):
            break
"""


def followed_until_its_report_is_seen(desktop: Desktop, lab: Lab, file: Path) -> Outcome:
    """Follows a run to its end. After the first report of `validation`, creates the file for which the script waits."""
    process = desktop.start("run", file, "--json")
    assert process.stderr is not None
    events, run_id = [], "*"
    for event in events_of(process):
        events.append(event)
        run_id = event.get("run_id", run_id)
        if "validation" in event.get("custom", {}):
            for host in lab.hosts:
                for work in host.home.glob(f".torchyard/hosts/*/runs/{run_id}/work"):
                    (work / "seen").touch()
    return Outcome(process.wait(60), events, process.stderr.read())


@pytest.mark.parametrize(("kind", "dies"), [("all_reduce", False), ("hogwild", True)])
def test_all_stop_early_together_and_a_group_that_died_takes_part_again(
    desktop: Desktop, lab3: Lab, warm_python: str, tmp_path: Path, kind: str, dies: bool
) -> None:
    desktop.use(lab3, python=warm_python)
    file = topology(
        tmp_path / "program",
        f"""\
        strategy: {{kind: {kind}}}
        pools:
          - {{name: workers, role: worker, replicas: 3, placement: spread}}
        program: {{script: train.py, env: {{OMP_NUM_THREADS: "1"}}, checkpoint_every_s: 1}}
        """,
        train_py=SCRIPT.replace("DIES", str(dies)),
    )
    outcome = followed_until_its_report_is_seen(desktop, lab3, file)
    logs = logs_of(desktop, outcome.run_id)
    assert outcome.code == 0, logs
    restarts = {replica["name"]: replica["restarts"] for replica in outcome.ended["replicas"]}
    assert restarts == {"worker-0": 0, "worker-1": 0, "worker-2": int(dies)}, logs
    told = {name: re.findall(r"epoch (\d+) validation (\S+) of (\d+)", log) for name, log in logs.items()}
    assert told["worker-0"] == told["worker-1"]
    assert [int(epoch) for epoch, _, _ in told["worker-0"]] == list(range(5))
    # Each of the 60 samples is counted once in the evaluation.
    assert {samples for _, _, samples in told["worker-0"]} == {"60"}
    if dies:
        assert int(told["worker-2"][0][0]) == 0
    else:
        assert told["worker-2"] == told["worker-0"]
    # Custom metrics are in the report events, in the event of the run's end, and in the output of `runs show`.
    metrics = outcome.ended["metrics"]["worker-0"]
    assert metrics["samples"] == 60
    assert metrics["validation"] == float(told["worker-0"][-1][1])
    assert any("validation" in event.get("custom", {}) for event in outcome.of("report"))
    shown = json.loads(desktop.torchyard("runs", "show", outcome.run_id, "--json").stdout)
    assert shown["metrics"]["worker-0"]["validation"] == metrics["validation"]
    assert "validation" in desktop.torchyard("runs", "show", outcome.run_id).stdout
