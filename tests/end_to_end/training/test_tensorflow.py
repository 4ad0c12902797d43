"""Tests that TensorFlow scripts train across several hosts with only TF_CONFIG."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.end_to_end.running import REPOSITORY, logs_of, nothing_but, programs_on
from tests.end_to_end.training.example_runs import Place, View, assert_shown, launch
from tests.lab import Desktop, Lab, LabUnavailable
from tests.lab_fixtures import unavailable
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.tensorflow]

EXAMPLES = REPOSITORY / "examples" / "tensorflow"
ENVIRONMENT = REPOSITORY / ".venv-tensorflow"
LEAST_ACCURACY = 0.9
"""Minimum accuracy in classifying ten patterns: guessing gives 0.1, and noise makes 1 impossible."""


@pytest.fixture(autouse=True)
def _installed() -> None:
    if not (ENVIRONMENT / ".setup-done").exists():
        unavailable(LabUnavailable("The lab's hosts have no TensorFlow: `make tensorflow` installs it."))


def trained(desktop: Desktop, lab: Lab, topology: str) -> dict[str, Any]:
    """Runs an example whose processes have only three environment variables; returns the output of `runs show`."""
    setup = [f"source {ENVIRONMENT}/bin/activate", nothing_but("PATH", "TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL")]
    place = Place("three hosts", desktop, tuple(host.name for host in lab.hosts), python="")
    shown = launch(EXAMPLES / topology, place, View(on_terminal=False, as_json=False), setup=setup)
    return assert_shown(shown, EXAMPLES / topology, place)


def ends(run: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Returns the host and the last state of each replica."""
    return {replica["name"]: (replica["host"], replica["state"]) for replica in run["replicas"]}


def losses(log: str) -> tuple[float, ...]:
    return tuple(map(float, re.findall(r"^epoch \d+ loss ([0-9.]+)$", log, re.MULTILINE)))


def accuracy(log: str) -> float:
    [found] = re.findall(r"^test accuracy ([0-9.]+)$", log, re.MULTILINE)
    return float(found)


def test_workers_on_several_hosts_keep_one_model(desktop: Desktop, lab3: Lab) -> None:
    run = trained(desktop, lab3, "multi-worker.yaml")

    hosts = {"chief-0": "gpu-a", "worker-0": "gpu-b", "worker-1": "gpu-c"}
    assert ends(run) == {name: (host, "succeeded") for name, host in hosts.items()}
    logs = logs_of(desktop, run["run_id"])
    for name in hosts:
        assert f"{name.replace('-', ' ')}: 3 train together\n" in logs[name]
        # Each worker trains on its own part of the data, but all print the same losses and accuracy.
        assert losses(logs[name]) == losses(logs["chief-0"])
        assert accuracy(logs[name]) == accuracy(logs["chief-0"]) > LEAST_ACCURACY
    assert losses(logs["chief-0"])[-1] < losses(logs["chief-0"])[0] / 2


def test_parameter_servers_and_workers_serve_until_their_chief_has_ended(desktop: Desktop, lab3: Lab) -> None:
    run = trained(desktop, lab3, "parameter-server.yaml")

    assert ends(run) == {
        "chief-0": ("gpu-a", "succeeded"),
        "worker-0": ("gpu-b", "stopped"),
        "worker-1": ("gpu-c", "stopped"),
        "ps-0": ("gpu-a", "stopped"),
    }
    logs = logs_of(desktop, run["run_id"])
    for name in ends(run):
        assert f"{name.replace('-', ' ')} in a cluster of 1 chief, 2 worker, 1 ps\n" in logs[name]
    chief = logs["chief-0"]
    assert re.findall(r" lies on (\S+)$", chief, re.MULTILINE) == ["/job:ps/replica:0/task:0/device:CPU:0"] * 2
    steps = {host: int(number) for number, host in re.findall(r"^(\d+) steps on (\S+)$", chief, re.MULTILINE)}
    assert steps.keys() == {"gpu-b", "gpu-c"}
    assert sum(steps.values()) == 180
    assert losses(chief)[-1] < losses(chief)[0] / 2
    assert accuracy(chief) > LEAST_ACCURACY
    wait_until(lambda: not programs_on(lab3))
