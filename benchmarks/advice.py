"""Benchmark of the advice about all strategies on 64 hosts. Promise: at most 2 s.

The fleets are: hosts without GPUs; hosts with 8 GPUs each; and hosts with 4 GPUs of two kinds and unequal links.
"""

from __future__ import annotations

from functools import partial

from tests.core.advisor.samples import MEGABIT, profile

from benchmarks.harness import Promise, record, show, timed
from torchyard_core.advisor.fleet_hosts import AdvisedFleet, advised_fleet
from torchyard_core.advisor.profile import ChosenProfiles
from torchyard_core.advisor.recommendation import advise
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Topology

HOSTS = 64
LIMIT_S = 2.0
TRIES = 5
KINDS = ("NVIDIA H100", "NVIDIA A100")


def fleet(gpus: int, kinds: int) -> AdvisedFleet:
    """Returns hosts with GPUs of one or two kinds; with two kinds, every fourth link is slower."""
    facts, rates = [], {}
    for number in range(HOSTS):
        model = KINDS[number % kinds]
        name = f"host-{number:02}"
        found = tuple(Gpu(index, f"GPU-{number}-{index}", model, 81_559) for index in range(gpus))
        facts.append(HostFacts(name, cpus=64, memory_gb=512.0, gpus=found, checked=True))
        rates[name] = (2_500 if kinds > 1 and number % 4 == 3 else 10_000) * MEGABIT
    profiles = {
        kind: profile(kind=kind, compute_s=0.3 * (number + 1), megabytes=500, spread_s=0.02, is_gpu=True, gradients=200)
        for number, kind in enumerate(KINDS)
    }
    profiles["64 CPUs"] = profile(kind="64 CPUs", spread_s=0.05)
    return advised_fleet(facts, ChosenProfiles(profiles, ()), rates, {})


def design(gpus: int) -> Topology:
    wish = "gpus: 1, " if gpus else ""
    topology = topology_from_text(
        "version: 1\nname: large\nstrategy: {kind: all_reduce}\npools:\n"
        f"  - {{name: workers, role: worker, {wish}replicas: 8}}\nprogram: {{script: train.py}}\n"
    ).topology
    assert topology is not None
    return topology


def main() -> list[Promise]:
    figures: dict[str, list[float]] = {}
    for name, gpus, kinds in (("without GPUs", 0, 1), ("8 GPUs each", 8, 1), ("4 GPUs of two kinds", 4, 2)):
        on = fleet(gpus, kinds)
        figures[name] = [timed(partial(advise, design(gpus), on)) for _ in range(TRIES)]
    show("Advice about all strategies on 64 hosts", figures)
    promises = [Promise(f"advice for 64 hosts, {name}", max(found), LIMIT_S, "s") for name, found in figures.items()]
    record("advice", figures, promises)
    return promises


if __name__ == "__main__":
    main()
