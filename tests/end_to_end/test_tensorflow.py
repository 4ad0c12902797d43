"""TensorFlow trains across hosts: its own scripts, from nothing but the TF_CONFIG that they are given."""

from __future__ import annotations

import json
import re

import pytest

from tests.end_to_end.running import REPOSITORY, Outcome, logs_of, nothing_but, programs_on, run, wait_until
from tests.lab import Desktop, Lab, LabUnavailable
from tests.lab_fixtures import unavailable

pytestmark = [pytest.mark.lab, pytest.mark.tensorflow]

EXAMPLES = REPOSITORY / "examples" / "tensorflow"
ENVIRONMENT = REPOSITORY / ".venv-tensorflow"
LEARNT = 0.9
"""Accuracy of telling ten patterns apart; who guesses has 0.1, and noise lets nobody have 1."""


@pytest.fixture(autouse=True)
def _installed() -> None:
    if not (ENVIRONMENT / ".setup-done").exists():
        unavailable(LabUnavailable("The lab's hosts have no TensorFlow: `make tensorflow` installs it."))


def trained(desktop: Desktop, topology: str, *options: str) -> Outcome:
    """The outcome of an example whose processes see no variable but these."""
    setup = [f"source {ENVIRONMENT}/bin/activate", nothing_but("PATH", "TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL")]
    return run(desktop, EXAMPLES / topology, f"--set=program.setup={json.dumps(setup)}", *options)


def ends(outcome: Outcome) -> dict[str, tuple[str, str]]:
    """Host and last state of each replica."""
    return {replica["name"]: (replica["host"], replica["state"]) for replica in outcome.ended["replicas"]}


def losses(log: str) -> tuple[float, ...]:
    return tuple(map(float, re.findall(r"^epoch \d+ loss ([0-9.]+)$", log, re.MULTILINE)))


def accuracy(log: str) -> float:
    [found] = re.findall(r"^test accuracy ([0-9.]+)$", log, re.MULTILINE)
    return float(found)


def test_workers_on_several_hosts_keep_one_model(desktop: Desktop) -> None:
    outcome = trained(desktop, "multi-worker.yaml", "--set=pools.workers.replicas=1")

    assert outcome.ended["state"] == "succeeded", outcome.ended
    assert ends(outcome) == {"chief-0": ("gpu-a", "succeeded"), "worker-0": ("gpu-b", "succeeded")}
    logs = logs_of(desktop, outcome.run_id)
    assert "chief 0: 2 train together\n" in logs["chief-0"]
    assert "worker 0: 2 train together\n" in logs["worker-0"]
    # Each has its own half of the data; what both come to is the same.
    assert losses(logs["chief-0"]) == losses(logs["worker-0"])
    assert losses(logs["chief-0"])[-1] < losses(logs["chief-0"])[0] / 2
    assert accuracy(logs["chief-0"]) == accuracy(logs["worker-0"]) > LEARNT


def test_parameter_servers_and_workers_serve_until_their_chief_has_ended(desktop: Desktop, lab3: Lab) -> None:
    outcome = trained(desktop, "parameter-server.yaml")

    assert outcome.ended["state"] == "succeeded", outcome.ended
    assert ends(outcome) == {
        "chief-0": ("gpu-a", "succeeded"),
        "worker-0": ("gpu-b", "stopped"),
        "worker-1": ("gpu-c", "stopped"),
        "ps-0": ("gpu-a", "stopped"),
    }
    logs = logs_of(desktop, outcome.run_id)
    for name in ends(outcome):
        assert f"{name.replace('-', ' ')} in a cluster of 1 chief, 2 worker, 1 ps\n" in logs[name]
    chief = logs["chief-0"]
    assert re.findall(r" lies on (\S+)$", chief, re.MULTILINE) == ["/job:ps/replica:0/task:0/device:CPU:0"] * 2
    steps = {host: int(number) for number, host in re.findall(r"^(\d+) steps on (\S+)$", chief, re.MULTILINE)}
    assert steps.keys() == {"gpu-b", "gpu-c"}
    assert sum(steps.values()) == 180
    assert losses(chief)[-1] < losses(chief)[0] / 2
    assert accuracy(chief) > LEARNT
    wait_until(lambda: not programs_on(lab3))
