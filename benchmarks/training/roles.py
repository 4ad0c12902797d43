"""Benchmark of the training roles: compared with plain DDP, the ring, theoretical bounds, and PyTorch's RPC servers.

Every arm is a run that `torchyard run` launches on hosts of the lab. The hosts are connected by virtual cables, whose
bandwidth is limited if a result is compared with a bound. All hosts share the cores of this machine.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.lab import Desktop, Lab
from tests.lab.hosts.host import LabHost

from benchmarks.harness import Promise, record, show

PROGRAMS = Path(__file__).parent / "programs"
MEGABYTES = 60.0
ROUNDS = 5


@dataclass(frozen=True)
class Steps:
    """Durations of steps: for each step and trainer, the seconds of the backward pass and of the whole step."""

    ranks: list[list[list[float]]]

    @property
    def whole(self) -> list[float]:
        """The durations of the slowest trainer's steps, including gradients, exchange and optimizer."""
        return [max(whole for _, whole in step) for step in self.ranks]

    @property
    def backward(self) -> list[float]:
        """The durations of the slowest trainer's backward passes.

        With reducers or a ring, they include the exchange.
        """
        return [max(backward for backward, _ in step) for step in self.ranks]


class Arms:
    """Launches a run for each arm in a lab, and reads the measurements that its trainers write."""

    def __init__(self, folder: Path, lab: Lab, setup: Sequence[str] = ()) -> None:
        """Prepares the launches.

        Args:
            setup: Shell lines that run before each replica.
        """
        self._folder = folder
        self._setup = list(setup)
        self._lab = lab
        self._desktop = Desktop(folder / "desktop", lab)
        self._place = folder / "programs"
        shutil.copytree(PROGRAMS, self._place)

    @property
    def hosts(self) -> list[LabHost]:
        return self._lab.hosts

    def run(self, script: str, strategy: Mapping[str, Any], roles: Mapping[str, int], *args: object) -> dict[str, Any]:
        """Launches a run, and returns the measurements of each trainer by replica.

        Args:
            roles: Number of replicas of each role. They are placed on the hosts in this order, one per host.
        """
        found = self.files("figures-*.json", script, strategy, roles, *args)
        return {path.stem.removeprefix("figures-"): json.loads(path.read_text()) for path in found}

    def files(
        self,
        pattern: str,
        script: str,
        strategy: Mapping[str, Any],
        roles: Mapping[str, int],
        *args: object,
        **program: object,
    ) -> list[Path]:
        """Launches a run, and returns the files that match a pattern in the folders of the run's hosts.

        Args:
            program: More settings of the topology's `program`.
        """
        hosts = iter(host.name for host in self._lab.hosts)
        pools = [
            {"name": role, "role": role, "replicas": count, "hosts": [next(hosts) for _ in range(count)]}
            | ({"placement": "spread"} if count > 1 else {})
            | ({"min_replicas": 1} if strategy.get("on_worker_loss") == "continue" else {})
            for role, count in roles.items()
        ]
        topology = {
            "version": 1,
            "name": "roles",
            "strategy": dict(strategy),
            "pools": pools,
            "program": {
                "script": script,
                "args": [str(one) for one in args],
                "env": {"OMP_NUM_THREADS": "1"},
                "setup": self._setup,
                **program,
            },
        }
        file = self._place / "topology.yaml"
        file.write_text(yaml.safe_dump(topology, sort_keys=False))
        done = self._desktop.torchyard("run", file, "--json", timeout=900)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        run_id = next(event["run_id"] for event in events if event["event"] == "run_submitted")
        out = self._folder / f"out-{run_id}"
        fetched = self._desktop.torchyard("runs", "fetch", run_id, pattern, "-o", out)
        assert fetched.returncode == 0, fetched.stderr
        return sorted(out.rglob(pattern))

    def steps(self, strategy: Mapping[str, Any], roles: Mapping[str, int], *args: object) -> Steps:
        figures = self.run("steps.py", strategy, roles, *args)
        return Steps([list(step) for step in zip(*figures.values(), strict=True)])

    def shape(self, rate: str) -> None:
        for host in self._lab.hosts:
            host.shape(rate)

    def close(self) -> None:
        self._desktop.close()


def on_lab(count: int, measure: Any, setup: Sequence[str] = ()) -> Any:
    """Calls `measure` with `Arms` in a new lab of `count` hosts; returns its result."""
    with tempfile.TemporaryDirectory() as folder, Lab(count, directory=Path(folder) / "lab") as lab:
        arms = Arms(Path(folder), lab, setup)
        try:
            return measure(arms)
        finally:
            arms.close()


def by_round(found: Mapping[str, list[float]], one: str, other: str) -> float:
    """Returns the median over all rounds of the ratio between two arms.

    The arms of a round run one after the other, so that variations of the machine's speed cancel out.
    """
    return statistics.median(a / b for a, b in zip(found[one], found[other], strict=True))


def overhead(arms: Arms) -> list[Promise]:
    """Measures the overhead of `distribute` over plain DDP, and of two workers over two single processes."""

    def summed(model: str, rounds: int, steps: int) -> dict[str, list[float]]:
        figures = arms.run(
            "phases.py", {"kind": "all_reduce"}, {"chief": 1, "worker": 1},
            *("--model", model, "--rounds", rounds, "--steps", steps),
        )  # fmt: skip
        ranks = list(figures.values())
        return {name: [sum(turn) for turn in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}

    found = summed("compute", 12, 5)
    show("Two workers on two cores, compute-bound, samples/s of both", found, "/s")
    arms.shape("200mbit")
    bound_by_cable = summed("communication", 5, 5)
    show("The same with little arithmetic and 8 MB to exchange at 200 Mbit/s", bound_by_cable, "/s")
    promises = [
        Promise("plain DDP's throughput over distribute's", by_round(found, "plain DDP", "distribute"), 1 / 0.98),
        Promise("two independent processes over two workers", by_round(found, "alone", "distribute"), 1 / 0.93),
    ]
    cable = {f"8 MB at 200 Mbit/s: {name}": values for name, values in bound_by_cable.items()}
    record("roles_overhead", found | cable, promises)
    return promises


def exchanges(arms: Arms, name: str = "roles_exchange_4") -> list[Promise]:
    """Measures the exchange of 60 MB among 4 workers at 200 Mbit/s.

    The arms are the ring, reducers, reducers together with the workers, and parameter servers.
    """
    arms.shape("200mbit")
    bound = MEGABYTES * 8 / 200
    reducers = {"kind": "reduction_server"}
    ring = arms.steps({"kind": "all_reduce"}, {"worker": 4})
    alone = arms.steps(reducers, {"worker": 4, "reducer": 4})
    mixed = arms.steps(reducers, {"worker": 4, "reducer": 2})
    served = arms.steps({"kind": "sandblaster"}, {"worker": 4, "ps": 4})
    found = {
        "ring (DDP), a step": ring.whole,
        "4 reducers, a step": alone.whole,
        "4 reducers, gradients and their exchange": alone.backward,
        "2 reducers and the workers mixed, a step": mixed.whole,
        "sandblaster, 4 servers, a step": served.whole,
    }
    show(f"60 MB among 4 workers at 200 Mbit/s (M/B = {bound:.1f} s)", found)
    middle = statistics.median
    promises = [
        Promise("4 reducers: a step, of the ring's", middle(alone.whole) / middle(ring.whole), 1 / 1.35),
        Promise("4 reducers: gradients and exchange, over the bound", middle(alone.backward) / bound, 1.12),
        Promise("2 reducers mixed: a step, of the ring's", middle(mixed.whole) / middle(ring.whole), 1 / 1.15),
        Promise("sandblaster, 4 servers: a step, over the bound", middle(served.whole) / bound, 1.15),
    ]
    record(name, found, promises)
    return promises


def exchanges_of_eight(arms: Arms) -> list[Promise]:
    """Measures the exchange of 60 MB among 8 workers at 100 Mbit/s."""
    arms.shape("100mbit")
    bound = MEGABYTES * 8 / 100
    ring = arms.steps({"kind": "all_reduce"}, {"worker": 8}, "--steps", ROUNDS)
    alone = arms.steps({"kind": "reduction_server"}, {"worker": 8, "reducer": 8}, "--steps", ROUNDS)
    found = {
        "ring (DDP), a step": ring.whole,
        "8 reducers, a step": alone.whole,
        "8 reducers, gradients and their exchange": alone.backward,
    }
    show(f"60 MB among 8 workers at 100 Mbit/s (M/B = {bound:.1f} s)", found)
    middle = statistics.median
    promises = [
        Promise("8 reducers: a step, of the ring's", middle(alone.whole) / middle(ring.whole), 1 / 1.55),
        Promise("8 reducers: gradients and exchange, over the bound", middle(alone.backward) / bound, 1.15),
    ]
    record("roles_exchange_8", found, promises)
    return promises


def overlap(arms: Arms) -> list[Promise]:
    """Measures downpour while a sleep simulates an accelerator and hides the exchange.

    With S = 2 servers, the cable's bandwidth B, a step of t = 1 s and M = 10 MB, the servers can support N* = S·B·t/M =
    5 workers; the benchmark has up to N = 4 workers.
    """
    arms.shape("200mbit")
    sleep_s, megabytes = 1.0, 10.0
    found = {
        f"{groups} workers, 2 servers": arms.steps(
            {"kind": "downpour", "worker_groups": groups},
            {"worker": groups, "ps": 2},
            *("--megabytes", megabytes, "--compute", sleep_s, "--steps", 8),
        ).whole
        for groups in (2, 4)
    }
    show("A step of downpour with 10 MB at 200 Mbit/s that computes for 1 s", found)
    worst = max(statistics.median(values) for values in found.values())
    promises = [Promise("downpour overlapped: a step over its computing", worst / sleep_s, 1.10)]
    record("roles_overlap", found, promises)
    return promises


def overlap_with_python(arms: Arms) -> list[Promise]:
    """Measures downpour with 118 ms of small torch operations and 10 MB to exchange, over cables without a bandwidth
    limit.
    """
    found = arms.run("overlapped.py", {"kind": "downpour", "worker_groups": 2}, {"worker": 2, "ps": 1})
    first = found["worker-0"]
    show("118 ms of small torch operations, 10 MB to exchange", first)
    alone, computing, step = first  # The program writes its measurements in this order.
    promises = [
        Promise(
            "downpour: computing with an exchange behind it, over computing", by_round(first, computing, alone), 1.08
        ),
        Promise("downpour: a step that exchanges, over its computing", by_round(first, step, alone), 1.08),
    ]
    record("roles_overlap_python", first, promises)
    return promises


def against_rpc(arms: Arms) -> list[Promise]:
    """Measures the MNIST network with 4 workers and a server, in steps per second of all workers."""

    def rates(figures: Mapping[str, list[float]]) -> float:
        return sum(rate for (rate,) in figures.values())

    found: dict[str, list[float]] = {"torch.distributed.rpc": [], "sandblaster": [], "downpour": []}
    for _ in range(ROUNDS):
        found["torch.distributed.rpc"].append(rates(arms.run("rpc_served.py", {"kind": "none"}, {"worker": 5})))
        for kind in ("sandblaster", "downpour"):
            found[kind].append(rates(arms.run("served.py", {"kind": kind}, {"worker": 4, "ps": 1})))
    show("MNIST's network, 4 workers and a server, steps/s of all workers", found, "/s")
    middle = {name: statistics.median(values) for name, values in found.items()}
    promises = [
        Promise(f"RPC's steps/s over {kind}'s", middle["torch.distributed.rpc"] / middle[kind], 1 / 3)
        for kind in ("sandblaster", "downpour")
    ]
    record("roles_rpc", found, promises)
    return promises


def main() -> list[Promise]:
    return [
        *on_lab(2, overhead),
        *on_lab(8, exchanges),
        *on_lab(16, exchanges_of_eight),
        *on_lab(6, overlap),
        *on_lab(3, overlap_with_python),
        *on_lab(5, against_rpc),
    ]


if __name__ == "__main__":
    main()
