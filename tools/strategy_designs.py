"""A sample topology for each strategy, and sample metrics of a run, for screenshots."""

from __future__ import annotations

from typing import Any

from torchyard_core.topology.model import StrategyKind, Topology

WORKERS = {"name": "workers", "role": "worker", "replicas": 11, "gpus": 1, "hosts": ["gpu-a", "gpu-b"]}
CHIEF = {"name": "chief", "role": "chief", "replicas": 1, "gpus": 1, "hosts": ["gpu-c"]}
EVAL = {"name": "eval", "role": "evaluator", "replicas": 1, "gpus": 2, "hosts": ["gpu-e"]}
SERVERS = {"name": "servers", "role": "ps", "replicas": 4, "hosts": ["cpu-g", "gpu-f"], "placement": "spread"}
REDUCERS = {"name": "reducers", "role": "reducer", "replicas": 4, "hosts": ["cpu-g", "gpu-f"], "placement": "spread"}

POOLS: dict[StrategyKind, list[dict[str, Any]]] = {
    StrategyKind.ALL_REDUCE: [CHIEF, WORKERS, EVAL],
    StrategyKind.SANDBLASTER: [CHIEF, WORKERS, SERVERS, EVAL],
    StrategyKind.REDUCTION_SERVER: [CHIEF, WORKERS, REDUCERS],
    StrategyKind.DOWNPOUR: [CHIEF, WORKERS, SERVERS, EVAL],
    StrategyKind.DILOCO: [WORKERS | {"replicas": 16, "hosts": ["gpu-a", "gpu-b", "gpu-c", "gpu-e"]}],
    StrategyKind.HOGWILD: [WORKERS | {"replicas": 16, "hosts": ["gpu-a", "gpu-b", "gpu-c", "gpu-e"]}],
}
SETTINGS: dict[StrategyKind, dict[str, Any]] = {
    StrategyKind.DOWNPOUR: {"worker_groups": 3, "push_every": 2},
    StrategyKind.DILOCO: {"worker_groups": 4},
    StrategyKind.HOGWILD: {"worker_groups": 8},
}

STEP = {"exchange_s": 0.142, "wait_s": 0.031, "staleness": 2.4, "dropped": 3.0}
"""Step metrics of the trainers in a sample run with parameter servers."""
SERVED = {"version": 5904.0, "clients": 12.0, "bytes_s": 118.2e6, "wait_s": 0.027, "staleness": 2.0, "dropped": 3.0}
"""Metrics of the parameter servers in a sample run."""


def design_of(kind: StrategyKind) -> Topology:
    """Returns a topology that shows the edges and groups of a strategy."""
    data = {
        "version": 1,
        "name": f"resnet-{kind.value.replace('_', '-')}",
        "strategy": {"kind": kind.value, **SETTINGS.get(kind, {})},
        "pools": POOLS.get(kind, [CHIEF, WORKERS, EVAL]),
        "program": {"script": "train.py"},
    }
    return Topology.model_validate(data, strict=False)
