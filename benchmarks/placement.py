"""Benchmark of placing 1,000 replicas on 256 hosts with 8 GPUs each. Promise: at most 0.5 s.

The four cases are: packed; spread; with constraints on models, CPUs, memory and labels; and replicas with eight GPUs.
Not all replicas fit in the last two cases, so these cases include the search for the reasons why replicas do not fit.
"""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Promise, record, show, timed
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Topology

HOSTS, GPUS_OF_EACH = 256, 8
LIMIT_S = 0.5
TRIES = 5
SHAPES = {
    "packed": "gpus: 1",
    "spread": "gpus: 1, placement: spread",
    "wishes": "gpus: 2, gpu_model: H100, gpu_memory_gb: 80, cpus: 8, memory_gb: 64, labels: {rack: r1}",
    "too many": "gpus: 8",
}
"""Requirements of the workers' pool. In the cases `wishes` and `too many`, not all replicas fit."""


def fleet() -> tuple[HostFacts, ...]:
    """Returns hosts in two racks of equal size. A quarter of the hosts have H100s, and a quarter have no GPU."""
    hosts = []
    for number in range(HOSTS):
        model, memory = (("NVIDIA H100", 81_559), ("NVIDIA A100", 40_960))[number % 4 > 0]
        count = 0 if number % 4 == 3 else GPUS_OF_EACH
        gpus = tuple(Gpu(index, f"GPU-{number}-{index}", model, memory) for index in range(count))
        hosts.append(
            HostFacts(
                f"host-{number:03}",
                labels={"rack": f"r{number // 128}"},
                cpus=64,
                memory_gb=512.0,
                gpus=gpus,
                checked=True,
            )
        )
    return tuple(hosts)


def design(wishes: str) -> Topology:
    """Returns a topology with 1,000 replicas: a chief, 899 workers and 100 parameter servers."""
    topology = topology_from_text(
        "version: 1\nname: large\nstrategy: {kind: downpour}\npools:\n"
        "  - {name: chief, role: chief, replicas: 1, gpus: 1}\n"
        f"  - {{name: workers, role: worker, replicas: 899, {wishes}}}\n"
        "  - {name: servers, role: ps, replicas: 100, cpus: 4, memory_gb: 16}\n"
        "program: {script: train.py}\n"
    ).topology
    assert topology is not None
    return topology


def main() -> list[Promise]:
    hosts = fleet()
    promises: list[Promise] = []
    figures: dict[str, list[float]] = {}
    for name, wishes in SHAPES.items():
        topology = design(wishes)
        figures[name] = [timed(partial(plan, topology, hosts)) for _ in range(TRIES)]
        promises.append(Promise(f"1,000 replicas on 256 hosts, {name}", max(figures[name]), LIMIT_S, "s"))
    show("1,000 replicas on 256 hosts of 8 GPUs", figures)
    record("placement", figures, promises)
    return promises


if __name__ == "__main__":
    main()
