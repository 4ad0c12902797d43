"""The example's script, unchanged, under every strategy: real hosts, real keepers, every kind of replica."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.end_to_end.running import DIGITS, Outcome, log_of, programs_on, run, topology, wait_until
from tests.lab import Desktop, Lab
from tests.nursery import Nursery

pytestmark = [pytest.mark.lab, pytest.mark.train]

EPOCHS = "8"
GENTLE = ("--epochs", "14", "--lr", "0.002")
"""For groups at their own pace, whose steps add up: what each takes has to be smaller."""
SYNCHRONOUS, ASYNCHRONOUS = 0.01, 0.02
"""How far the accuracy may be from one process's, of 1."""

CHIEF = "{name: chief, role: chief, replicas: 1, hosts: [gpu-a]}"
ONE_WORKER = "{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}"
TWO_WORKERS = "{name: workers, role: worker, replicas: 2, hosts: [gpu-b, gpu-c], placement: spread}"
TWO_GROUPS = "{name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}"
THREE_GROUPS = "{name: workers, role: worker, replicas: 3, placement: spread}"
EVALUATOR = "{name: scorer, role: evaluator, replicas: 1, hosts: [gpu-c]}"


@pytest.fixture(scope="module")
def accuracy_of_one(torch_for_hosts: Nursery) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = torch_for_hosts.start(DIGITS / "train_single.py", "--epochs", EPOCHS, environment=environment)
    output, _ = alone.communicate(timeout=120)
    assert alone.returncode == 0, output
    alone.close()
    return accuracies(output)[-1]


def accuracies(text: str) -> list[float]:
    found = re.findall(r"test accuracy ([0-9.]+)", text)
    assert found, text[-800:]
    return [float(one) for one in found]


def trained(desktop: Desktop, folder: Path, strategy: str, *pools: str, arguments: list[str]) -> Outcome:
    lines = "".join(f"      - {pool}\n" for pool in pools)
    file = topology(
        folder,
        f"""\
    strategy: {{{strategy}}}
    pools:
{lines}    program:
      script: train.py
      args: {json.dumps(arguments)}
      env: {{OMP_NUM_THREADS: "1"}}
      checkpoint_every_s: 0.5
      max_restarts: 0
    """,
        train_py=(DIGITS / "train.py").read_text(),
    )
    outcome = run(desktop, file)
    assert outcome.code == 0, (outcome.ended, logs_of(desktop, outcome))
    return outcome


def logs_of(desktop: Desktop, outcome: Outcome) -> dict[str, str]:
    names = [str(replica["name"]) for replica in outcome.ended["replicas"]]
    return {name: log_of(desktop, outcome.run_id, name) for name in names}


@pytest.mark.parametrize(
    ("strategy", "pools", "batch_size", "within"),
    [
        ("kind: all_reduce", [CHIEF, ONE_WORKER], 16, SYNCHRONOUS),
        (
            "kind: sandblaster",
            [CHIEF, TWO_WORKERS, "{name: servers, role: ps, replicas: 2, hosts: [gpu-b, gpu-c]}", EVALUATOR],
            10,
            SYNCHRONOUS,
        ),
        (
            "kind: reduction_server",
            [CHIEF, TWO_WORKERS, "{name: reducers, role: reducer, replicas: 3}"],
            10,
            SYNCHRONOUS,
        ),
        (
            "kind: reduction_server",
            [CHIEF, TWO_WORKERS, "{name: reducers, role: reducer, replicas: 2}", EVALUATOR],
            10,
            SYNCHRONOUS,
        ),
        (
            "kind: downpour, max_staleness: 8",
            [TWO_GROUPS, "{name: servers, role: ps, replicas: 1, hosts: [gpu-c]}", EVALUATOR],
            16,
            ASYNCHRONOUS,
        ),
        ("kind: hogwild, sync_every: 4", [THREE_GROUPS, EVALUATOR], 16, ASYNCHRONOUS),
    ],
    ids=["all_reduce", "sandblaster", "reducers", "mixed", "downpour", "hogwild"],
)
def test_the_example_learns_as_well_as_one_process_and_leaves_nothing(
    desktop: Desktop,
    lab3: Lab,
    warm_python: str,
    tmp_path: Path,
    accuracy_of_one: float,
    request: pytest.FixtureRequest,
    strategy: str,
    pools: list[str],
    batch_size: int,
    within: float,
) -> None:
    desktop.use(lab3, python=warm_python)
    arguments = ["--epochs", EPOCHS] if within == SYNCHRONOUS else list(GENTLE)
    arguments += ["--batch-size", str(batch_size)]
    outcome = trained(desktop, tmp_path / "program", strategy, *pools, arguments=arguments)

    logs = logs_of(desktop, outcome)
    trainers = [name for name in logs if name.startswith(("chief", "worker"))]
    # Groups at their own pace end with what there is by then; the chief's model is the one that is kept.
    for name in trainers if within == SYNCHRONOUS else trainers[:1]:
        assert accuracies(logs[name])[-1] >= accuracy_of_one - within, logs[name]
    if within == SYNCHRONOUS:
        assert len({accuracies(logs[name])[-1] for name in trainers}) == 1
    # Everybody has ended by itself, with 0: servers and reducers with the trainers, an evaluator after the last
    # checkpoint.
    ends = {replica["name"]: (replica["state"], replica["exit_code"]) for replica in outcome.ended["replicas"]}
    assert {name: code for name, (_, code) in ends.items()} == dict.fromkeys(ends, 0), logs
    assert all(ends[name][0] == "succeeded" for name in trainers)
    assert not any("Traceback" in log for log in logs.values()), logs
    if "evaluator-0" in logs:
        scored = accuracies(logs["evaluator-0"])
        assert scored[-1] >= accuracy_of_one - within, logs["evaluator-0"]
    if strategy == "kind: reduction_server":
        assert ("all sum a share" in logs["chief-0"]) == (request.node.callspec.id == "mixed"), logs["chief-0"]
    # What servers and reducers report has come as far as what trainers do.
    for name, told in outcome.ended["metrics"].items():
        if name.startswith("ps"):
            assert told["version"] > 0, told
        assert name.startswith(("ps", "reducer")) == ({"clients", "bytes_s"} <= told.keys()), (name, told)
    assert {name for name in ends if not name.startswith("evaluator")} <= outcome.ended["metrics"].keys()
    wait_until(lambda: not programs_on(lab3))
