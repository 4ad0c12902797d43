"""Tests that the batch program replaces the placeholders in a run's plan."""

from __future__ import annotations

from typing import Any

from torchyard_agent.protocol.messages import Prepared
from torchyard_agent.slurm import run_plan


def prepared(address: str, interface: str, ports: list[int]) -> Prepared:
    return Prepared(pid=1, address=address, interface=interface, ports=ports, gang_port=9, run_dir="/r", checkpoint="")


def test_placeholders_are_replaced_and_ports_become_numbers() -> None:
    slots = {"hpc.1": prepared("10.0.0.1", "ib0", [5, 6]), "hpc.2": prepared("10.0.0.2", "", [7])}
    content: dict[str, Any] = {
        "masters": {"trainers": {"replica": "worker-0", "port": "@port:hpc.1:1@"}},
        "replicas": [
            {
                "address": "@address:hpc.2@:@port:hpc.2:0@",
                "gpus": ["@gpu:hpc.2:1@"],
                "env": {
                    "CUDA_VISIBLE_DEVICES": "@gpu:hpc.2:0@,@gpu:hpc.2:1@",
                    "NCCL_SOCKET_IFNAME": "@interface:hpc.2@",
                },
                "argv": ["python", "a@b.c", "@run_dir:hpc.2@/x", 3, None],
            }
        ],
    }
    filled = run_plan.fill(content, slots, {"hpc.2": ["GPU-a", "GPU-b"]})
    assert filled["masters"]["trainers"]["port"] == 6
    (replica,) = filled["replicas"]
    assert replica["address"] == "10.0.0.2:7"
    assert replica["gpus"] == ["GPU-b"]
    assert replica["env"] == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert replica["argv"] == ["python", "a@b.c", "/r/x", 3, None]
