"""Sample plans of various sizes, which are computed by the real planner."""

from __future__ import annotations

import random

from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import PlacementRule, Pool, Program, Role, Strategy, StrategyKind, Topology
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState

H100, A100 = ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA A100-SXM4-40GB", 40960)


def host(name: str, gpus: int = 0, kind: tuple[str, int] = H100, cpus: int = 96, checked: bool = True) -> HostFacts:
    found = tuple(Gpu(index, f"GPU-{name}-{index}", *kind) for index in range(gpus))
    return HostFacts(name, cpus=cpus, memory_gb=4.0 * cpus, gpus=found, checked=checked)


def topology(
    *pools: Pool, kind: StrategyKind = StrategyKind.ALL_REDUCE, pins: dict[str, str] | None = None
) -> Topology:
    return Topology(
        version=1,
        name="sample",
        strategy=Strategy(kind=kind),
        pools=pools,
        pins=pins or {},
        program=Program(script="train.py"),
    )


def pool(name: str, role: Role, replicas: int, gpus: int = 0, *hosts: str) -> Pool:
    return Pool(name=name, role=role, replicas=replicas, gpus=gpus, hosts=hosts)


def six_hosts() -> list[HostFacts]:
    busy = host("gpu-d", 4, A100, 64)
    return [
        host("gpu-a", 8),
        host("gpu-b", 8),
        host("gpu-c", 4, A100, 64),
        HostFacts(
            "gpu-d",
            cpus=64,
            memory_gb=256,
            gpus=busy.gpus,
            checked=True,
            busy_gpus=frozenset(gpu.uuid for gpu in busy.gpus),
        ),
        host("cpu-e", cpus=64),
        host("cpu-f", cpus=64, checked=False),
    ]


def drawn_example(pins: dict[str, str] | None = None) -> tuple[Plan, list[HostFacts]]:
    """Returns a plan with 16 workers, a chief, an evaluator with two GPUs and four servers, and the plan's hosts."""
    hosts = six_hosts()
    design = topology(
        pool("chief", Role.CHIEF, 1, 1, "gpu-c"),
        pool("workers", Role.WORKER, 16, 1, "gpu-a", "gpu-b"),
        pool("eval", Role.EVALUATOR, 1, 2, "gpu-c"),
        pool("servers", Role.PS, 4, 0, "cpu-e", "cpu-f"),
        # Pins and the pools' hosts determine the placement, so it does not depend on the planner. Workers 0 to 7 are on
        # gpu-a.
        pins={
            **{f"worker-{number}": f"gpu-a:{number}" for number in range(8)},
            **{"ps-0": "cpu-e", "ps-1": "cpu-e", "evaluator-0": "gpu-c:2-3"},
            **(pins or {}),
        },
    )
    return plan(design, hosts), hosts


def live_example() -> tuple[dict[str, ReplicaLiveState], dict[str, HostLiveState]]:
    chance = random.Random(7)
    states = {}
    for number in range(16):
        use = chance.uniform(0.88, 0.98)
        states[f"worker-{number}"] = ReplicaLiveState("running", use, f"{use:.0%}".replace("%", " %"))
    states["worker-13"] = ReplicaLiveState("running", 0.61, "61 %", "wait", "1.8×")
    states["chief-0"] = ReplicaLiveState("running", 0.91, "91 %")
    states["evaluator-0"] = ReplicaLiveState("failed", 0.0, "", "fail", "out of memory, 14:02")
    states["ps-0"] = states["ps-1"] = ReplicaLiveState("running", None, "412 pushes/s")
    states["ps-2"] = states["ps-3"] = ReplicaLiveState("running", None, "", stale_since="14:21")
    hosts = {
        "cpu-f": HostLiveState("unknown", "14:21"),
        "gpu-d": HostLiveState(
            holders={0: "vision\nto 18:00", 1: "vision\nto 18:00", 2: "vision\nto 18:00", 3: "speech"}
        ),
    }
    return states, hosts


def many(hosts: int, replicas: int, gpus_each: int = 8, spread: bool = False) -> tuple[Plan, list[HostFacts]]:
    fleet = [host(f"n{number:03}", gpus_each) for number in range(hosts)]
    rule = PlacementRule.SPREAD if spread else PlacementRule.PACK
    workers = Pool(name="workers", role=Role.WORKER, replicas=replicas, gpus=1, placement=rule)
    return plan(topology(workers), fleet), fleet


def many_states(names: list[str], seed: int = 3) -> dict[str, ReplicaLiveState]:
    chance = random.Random(seed)
    states = {}
    for name in names:
        use = chance.uniform(0.3, 1.0)
        states[name] = ReplicaLiveState("running", use, f"{round(use * 100)} %")
    return states
