"""Tests of the daemon's sampler process, including under the oldest supported Python version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fake_nvml import FakeGpu, write_gpus
from tests.agent.telemetry import sampling_cost
from tests.agent.telemetry.sample_programs import AGENT, OLDEST_PYTHON, conversation, program

SLEEPING = "import time\nprint('ready', flush=True)\ntime.sleep(600)"


def measure(python: str, environment: dict[str, str], samples: int, replicas: int) -> dict[str, Any]:
    """Runs `sampling_cost` under the given interpreter, and returns its output."""
    command = [python, "-I", "-S", sampling_cost.__file__, str(AGENT), str(samples), str(replicas)]
    ended = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def test_a_sample_tells_of_host_gpus_and_replicas(
    nvml_environment: dict[str, str], gpu_file: Path, tmp_path: Path
) -> None:
    with program(SLEEPING) as replica, conversation(nvml_environment) as python:
        gpu = FakeGpu("GPU-a", compute=[(replica.pid, 500), (os.getpid(), 1), (2**22 + 1, 2)])
        write_gpus(gpu_file, [gpu])
        python.say("from torchyard_agent.telemetry.sampler import Sampler")
        python.say(f"sampler = Sampler({str(tmp_path)!r})")
        sample = python.say(f"(sampler.sample({{'run/worker-0': [{replica.pid}]}}))")
    assert sample.keys() == {"time", "host", "gpus", "replicas"}
    assert sample["replicas"]["run/worker-0"]["processes"] == 1
    ours, mine, hidden = sample["gpus"][0]["processes"]
    assert (ours["pid"], ours["replica"], ours["memory_mb"]) == (replica.pid, "run/worker-0", 500)
    assert mine["replica"] is None
    assert mine["user"] == ours["user"] != "unknown"
    assert (hidden["user"], hidden["program"]) == ("unknown", "unknown")


def test_after_a_rest_the_gpus_are_told_again(nvml_environment: dict[str, str], gpu_file: Path, tmp_path: Path) -> None:
    write_gpus(gpu_file, [FakeGpu("GPU-a")])
    with conversation(nvml_environment) as python:
        python.say("from torchyard_agent.telemetry.sampler import Sampler")
        python.say(f"sampler = Sampler({str(tmp_path)!r})")
        assert len(python.say("(sampler.sample({})['gpus'])")) == 1
        python.say("sampler.close_nvml()")
        write_gpus(gpu_file, [FakeGpu("GPU-a"), FakeGpu("GPU-b")])
        assert len(python.say("(sampler.sample({})['gpus'])")) == 2


@pytest.mark.parametrize("python", [sys.executable, str(OLDEST_PYTHON)], ids=["this", "oldest"])
def test_sampling_stays_small(python: str, nvml_environment: dict[str, str], gpu_file: Path) -> None:
    if not Path(python).exists():
        pytest.skip("there is no Python 3.9 here")
    write_gpus(gpu_file, [FakeGpu(f"GPU-{number}", compute=[(os.getpid(), 1)]) for number in range(8)])
    cost = measure(python, nvml_environment, samples=5, replicas=16)
    assert cost["gpus"] == 8
    assert list(cost["replicas"].values()) == [2] * 16
    assert cost["anonymous_mb"] < 10


def test_everything_of_the_agent_here_runs_under_the_oldest_python(
    nvml_environment: dict[str, str], gpu_file: Path, tmp_path: Path
) -> None:
    if not OLDEST_PYTHON.exists():
        pytest.skip("there is no Python 3.9 here")
    write_gpus(gpu_file, [FakeGpu("GPU-a")])
    with conversation(nvml_environment, str(OLDEST_PYTHON)) as python:
        python.say("from torchyard_agent import network_addresses as network, port_reservation")
        python.say("from torchyard_agent.keeper.processes import gpu_lock")
        python.say("from torchyard_agent.telemetry import host_facts")
        found = python.say(f"(host_facts.host_facts({str(OLDEST_PYTHON)!r}, {str(tmp_path)!r}))")
        python.say("locks = gpu_lock.take(['GPU-oldest-python'], {'run_id': 'r'})")
        assert python.say("(gpu_lock.holder_of('GPU-oldest-python')['user'])")
        python.say("locks.release()")
        assert python.say("(network.interface_of(network.address_towards('127.0.0.1')))") == "lo"
        assert len(python.say("(port_reservation.hold_ports(3).ports)")) == 3
    assert found["agent_python"]["version"] == found["python"]["version"] == "3.9.18"
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-a"]
