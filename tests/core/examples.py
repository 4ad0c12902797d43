"""Topologies and hosts for several planning tests."""

from __future__ import annotations

from collections.abc import Mapping

from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Topology

EVERY_KEY = """\
version: 1
name: digits-downpour
strategy:
  kind: downpour
  worker_groups: 2
  server_groups: 1
  push_every: 1
  pull_every: 1
  sync_every: 8
  max_staleness: 16
  backup_workers: 0
  warm_start_steps: 0
  reduction_order: rank
  on_nan: fail
  bucket_mb: 64
pools:
  - {name: chief,   role: chief,  replicas: 1, gpus: 1}
  - {name: workers, role: worker, replicas: 4, min_replicas: 2, gpus: 1, hosts: [gpu-a, gpu-b], placement: spread}
  - {name: servers, role: ps,     replicas: 2, machine: n1-highmem-8, cpus: 4, memory_gb: 16}
  - {name: eval,    role: evaluator, replicas: 1, gpus: 1, gpu_model: "A100", gpu_memory_gb: 40,
     labels: {rack: r1}, env: {}, args: []}
pins: {worker-3: "gpu-b:2"}
program:
  launcher: torch
  script: train.py
  args: ["--epochs", "2"]
  workdir: .
  exclude: ["data/"]
  setup: ["module load cuda/12.4", "source .venv/bin/activate"]
  python: /opt/venv/bin/python
  env: {OMP_NUM_THREADS: "1"}
  secrets: [WANDB_API_KEY]
  checkpoint_dir: null
  checkpoint_every_s: 600
  max_restarts: 2
  ends_with: trainers
  notify: ./notify.sh
  tf_master_name: chief
  gpu_ids: uuid
  stop_grace_s: 30
  failure_grace_s: 2
  host_wait_s: 600
layout: {nodes: {chief-0: [10, 20.5]}, notes: ["1e3", yes]}
"""
"""A topology file with most keys of each block, and with a layout."""


def topology(
    *pools: str, strategy: str = "{kind: all_reduce}", program: str = "{script: train.py}", pins: str = "{}"
) -> Topology:
    """Returns a topology with the given pools, which are written in YAML's flow style."""
    lines = "".join(f"  - {pool}\n" for pool in pools)
    text = f"version: 1\nname: example\nstrategy: {strategy}\npools:\n{lines}pins: {pins}\nprogram: {program}\n"
    read = topology_from_text(text)
    assert read.topology is not None, read.problems
    return read.topology


def host(
    name: str,
    gpus: int = 0,
    *,
    model: str = "NVIDIA A100-SXM4-40GB",
    memory_mb: int = 40536,
    cpus: int = 64,
    memory_gb: float = 250.0,
    busy: tuple[int, ...] = (),
    labels: Mapping[str, str] | None = None,
    address: str | None = None,
) -> HostFacts:
    """Returns a host that has been checked. Its GPUs have UUIDs such as `GPU-b-0` for GPU 0 of host b."""
    return HostFacts(
        name=name,
        address=address or f"{name}.example",
        labels=labels or {},
        cpus=cpus,
        memory_gb=memory_gb,
        gpus=tuple(Gpu(index, f"GPU-{name}-{index}", model, memory_mb) for index in range(gpus)),
        checked=True,
        busy_gpus=frozenset(f"GPU-{name}-{index}" for index in busy),
    )
