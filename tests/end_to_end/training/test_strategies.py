"""Tests that the example script learns under four strategies on lab hosts, with every kind of replica.

`test_training` covers all_reduce, and `test_text_example` covers local SGD and DiLoCo. By default, a synchronous and an
asynchronous strategy are tested: reduction servers, among them workers that reduce, and parameter servers with an
evaluator. `test_examples` runs the examples of all strategies, and `make proof` all variants of this test.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.end_to_end.running import DIGITS, Outcome, logs_of, programs_on, run, topology
from tests.fork_server import ForkServer
from tests.lab import Desktop, Lab
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.train]

EPOCHS = "8"
SYNCHRONOUS_OPTIONS = ("--epochs", EPOCHS, "--batch-size", "10")
"""Options for three trainers whose gradients are averaged.

Their batch sizes add up to about the batch size of one process.
"""
DOWNPOUR_OPTIONS = ("--epochs", "14", "--lr", "0.002", "--batch-size", "16")
HOGWILD_OPTIONS = ("--epochs", "14", "--lr", "0.001", "--batch-size", "8")
"""Options for asynchronous groups.

The steps of all groups add up, so each step must be smaller. On a busy machine, the groups of Hogwild make dozens of
steps in the same direction between two exchanges.
"""
SYNCHRONOUS, ASYNCHRONOUS = 0.01, 0.02
"""Maximum differences in accuracy from training in one process."""

CHIEF = "{name: chief, role: chief, replicas: 1, hosts: [gpu-a]}"
TWO_WORKERS = "{name: workers, role: worker, replicas: 2, hosts: [gpu-b, gpu-c], placement: spread}"
TWO_GROUPS = "{name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}"
SHARDED_GROUPS = "{name: workers, role: worker, replicas: 4, hosts: [gpu-a]}"
"""Workers on one host, since the hosts of the lab share no folder for sharded checkpoints."""
THREE_GROUPS = "{name: workers, role: worker, replicas: 3, placement: spread}"
EVALUATOR = "{name: scorer, role: evaluator, replicas: 1, hosts: [gpu-c]}"


@pytest.fixture(scope="module")
def accuracy_of_one(torch_for_hosts: ForkServer) -> float:
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


def last_scored(log: str) -> int:
    """Returns the step of the last checkpoint that the evaluator has evaluated."""
    return int(re.findall(r"step (\d+) test accuracy", log)[-1])


def trained(
    desktop: Desktop, folder: Path, strategy: str, *pools: str, arguments: Sequence[str], ends_with: str
) -> Outcome:
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
      checkpoint_every_s: 2
      max_restarts: 0
      ends_with: {ends_with}
    """,
        train_py=(DIGITS / "train.py").read_text(),
    )
    outcome = run(desktop, file)
    assert outcome.code == 0, (outcome.ended, logs_of(desktop, outcome.run_id))
    return outcome


@pytest.mark.parametrize(
    ("strategy", "pools", "arguments", "within"),
    [
        pytest.param(
            "kind: sandblaster",
            [CHIEF, TWO_WORKERS, "{name: servers, role: ps, replicas: 2, hosts: [gpu-b, gpu-c]}", EVALUATOR],
            SYNCHRONOUS_OPTIONS,
            SYNCHRONOUS,
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "kind: reduction_server",
            [CHIEF, TWO_WORKERS, "{name: reducers, role: reducer, replicas: 3}"],
            SYNCHRONOUS_OPTIONS,
            SYNCHRONOUS,
            marks=pytest.mark.proof,
        ),
        (
            "kind: reduction_server",
            [CHIEF, TWO_WORKERS, "{name: reducers, role: reducer, replicas: 2}"],
            SYNCHRONOUS_OPTIONS,
            SYNCHRONOUS,
        ),
        (
            "kind: downpour, max_staleness: 8",
            [TWO_GROUPS, "{name: servers, role: ps, replicas: 1, hosts: [gpu-c]}", EVALUATOR],
            DOWNPOUR_OPTIONS,
            ASYNCHRONOUS,
        ),
        pytest.param(
            "kind: hogwild, sync_every: 4",
            [THREE_GROUPS, EVALUATOR],
            HOGWILD_OPTIONS,
            ASYNCHRONOUS,
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "kind: downpour, shard: all, worker_groups: 2, max_staleness: 8",
            [SHARDED_GROUPS, "{name: servers, role: ps, replicas: 2, hosts: [gpu-b, gpu-c]}", EVALUATOR],
            DOWNPOUR_OPTIONS,
            ASYNCHRONOUS,
            marks=pytest.mark.proof,
        ),
    ],
    ids=["sandblaster", "reducers", "mixed", "downpour", "hogwild", "sharded-downpour"],
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
    arguments: Sequence[str],
    within: float,
) -> None:
    desktop.use(lab3, python=warm_python)
    # Asynchronous groups print the accuracy of their own models, while the final model is the chief's after all groups
    # have ended. Such a run therefore also waits for the evaluator, which evaluates the final model.
    ends_with = "trainers" if within == SYNCHRONOUS else "all"
    outcome = trained(desktop, tmp_path / "program", strategy, *pools, arguments=arguments, ends_with=ends_with)

    logs = logs_of(desktop, outcome.run_id)
    trainers = [name for name in logs if name.startswith(("chief", "worker"))]
    printed = [accuracies(logs[name])[-1] for name in trainers]
    if within == SYNCHRONOUS:
        assert len(set(printed)) == 1
        assert printed[0] >= accuracy_of_one - within, logs[trainers[0]]
    else:
        assert last_scored(logs["evaluator-0"]) == outcome.ended["metrics"][trainers[0]]["step"], logs["evaluator-0"]
    # All replicas have exited by themselves with code 0: servers and reducers after the trainers, and the evaluator
    # after it has evaluated the last checkpoint.
    ends = {replica["name"]: (replica["state"], replica["exit_code"]) for replica in outcome.ended["replicas"]}
    assert {name: code for name, (_, code) in ends.items()} == dict.fromkeys(ends, 0), logs
    assert all(ends[name][0] == "succeeded" for name in (trainers if ends_with == "trainers" else ends))
    assert not any("Traceback" in log for log in logs.values()), logs
    if "evaluator-0" in logs:
        scored = accuracies(logs["evaluator-0"])
        assert scored[-1] >= accuracy_of_one - within, logs["evaluator-0"]
    if strategy == "kind: reduction_server":
        assert ("all sum a share" in logs["chief-0"]) == (request.node.callspec.id == "mixed"), logs["chief-0"]
    # Servers and reducers also send reports, with other fields than trainers.
    for name, told in outcome.ended["metrics"].items():
        if name.startswith("ps"):
            assert told["version"] > 0, told
        assert name.startswith(("ps", "reducer")) == ({"clients", "bytes_s"} <= told.keys()), (name, told)
    assert {name for name in ends if not name.startswith("evaluator")} <= outcome.ended["metrics"].keys()
    wait_until(lambda: not programs_on(lab3))
