"""Tests of `torchyard status`, which shows the current use of hosts and GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.cli.command_runner import answer, torchyard
from tests.core.cli.sample_runs import sleeping
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_core.cli.commands.status import HEADINGS, rows


@pytest.mark.lab
@pytest.mark.usefixtures("bare_hosts")
def test_status_shows_replicas_and_the_hosts_that_do_not_answer(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    run_id = torchyard(desktop, "run", sleeping(tmp_path / "long", hosts=["gpu-a"]), "--detach").stdout.strip()
    lab3["gpu-c"].stop_sshd()
    # The daemon samples the processes once a second.
    wait_until(lambda: f"{run_id}/worker-0" in torchyard(desktop, "status", code=3).stdout)

    printed = torchyard(desktop, "status", code=3).stdout.splitlines()

    by_host = {line.split()[0]: line for line in printed[1:4]}
    assert f"{run_id}/worker-0" in by_host["gpu-a"]
    assert by_host["gpu-b"].split()[2:4] == ["agent", "missing"]
    assert "unreachable" in by_host["gpu-c"]
    assert any("torchyard deploy gpu-b" in line for line in printed[4:])
    busy, without, silent = answer(desktop, "status", code=3)
    assert busy["state"] == "ready"
    assert list(busy["replicas"]) == [f"{run_id}/worker-0"]
    assert busy["host"]["memory_mb"] > 0
    assert busy["as_of"].endswith("Z")
    assert (without["state"], without["error"]["code"]) == ("agent missing", "agent_missing")
    assert (silent["state"], silent["as_of"]) == ("unreachable", None)
    torchyard(desktop, "runs", "stop", run_id)
    lab3["gpu-c"].start_sshd()
    torchyard(desktop, "deploy")
    wait_until(lambda: [host["replicas"] for host in answer(desktop, "status")] == [{}, {}, {}])


def test_a_gpu_says_who_uses_it() -> None:
    gpu = {
        "index": 0,
        "name": "NVIDIA H100",
        "memory_mb": 81920,
        "memory_used_mb": 10240,
        "utilisation": 97,
        "problem": None,
    }
    ours = {
        "pid": 7,
        "user": "lee",
        "program": "python3",
        "memory_mb": 9000,
        "replica": "20261123-091502-3f9c/worker-0",
    }
    other = {"pid": 8, "user": "kim", "program": "jupyter", "memory_mb": None, "replica": None}
    lost = {
        **gpu,
        "index": 1,
        "memory_used_mb": None,
        "utilisation": None,
        "problem": "it has fallen off the bus",
        "processes": [],
    }
    sample = {
        "host": {"cpus": 16, "cpu": 12.5, "memory_mb": 131072, "memory_used_mb": 4096},
        "gpus": [{**gpu, "processes": [ours, other]}, lost],
        "replicas": {"20261123-091502-3f9c/worker-0": {}, "20261123-091502-3f9c/ps-0": {}},
    }
    assert [dict(zip(HEADINGS, row, strict=True)) for row in rows("gpu-a", sample)] == [
        {"HOST": "gpu-a", "GPU": "cpu", "MODEL": "16 CPUs", "MEMORY": "128 GB", "USED": "4.0 GB", "UTIL": "12 %",
         "BY": "20261123-091502-3f9c/ps-0"},
        {"HOST": "gpu-a", "GPU": "0", "MODEL": "NVIDIA H100", "MEMORY": "80 GB", "USED": "10 GB", "UTIL": "97 %",
         "BY": "20261123-091502-3f9c/worker-0, kim: jupyter (8)"},
        {"HOST": "gpu-a", "GPU": "1", "MODEL": "NVIDIA H100", "MEMORY": "80 GB", "USED": "?", "UTIL": "?",
         "BY": "it has fallen off the bus"},
    ]  # fmt: skip
