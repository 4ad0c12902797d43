"""Runs cases on lab hosts, and predicts their speed from a profile and from the bandwidths that launches measure.

For fleets, the advisor's recommendation is measured beside the best topology of every other strategy with the same
result, and beside all-reduce on all hosts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from tests.end_to_end.advisor_proof.cases import MOST_HOSTS, SPREAD, Case, Choice
from tests.lab import Desktop, Lab
from torchyard_core.advisor.fleet_hosts import advised_fleet
from torchyard_core.advisor.prediction import AdvisedHost, Layout, Prediction, predict
from torchyard_core.advisor.profile import ChosenProfiles, Profile, host_kind, read_profile
from torchyard_core.advisor.recommendation import advise
from torchyard_core.advisor.trainer_compute import trainer_compute
from torchyard_core.launch.bandwidth_cache import BandwidthCache
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Strategy, StrategyKind

MANY_STEPS = 100_000


@dataclass(frozen=True)
class Outcome:
    """A case with its prediction and measurement, in steps/s of all trainers together."""

    case: Case
    prediction: Prediction
    measured: float

    @property
    def error(self) -> float:
        """The relative error of the predicted speed."""
        return self.prediction.samples_s / self.measured - 1

    @property
    def is_inside(self) -> bool:
        return self.prediction.low <= self.measured <= self.prediction.high


@dataclass(frozen=True)
class Measured:
    """A topology of a choice, with its predicted and measured speed in steps/s of all trainers together."""

    title: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class ChoiceOutcome:
    """The measured topologies of a choice. The first one is recommended."""

    choice: Choice
    found: tuple[Measured, ...]

    @property
    def shortfall(self) -> float:
        """The part of the best measured speed by which the recommended topology was slower."""
        return 1 - self.found[0].measured / max(each.measured for each in self.found)


class CaseRunner:
    """Launches cases with `torchyard run` on hosts that each run an sshd."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self._folder = folder
        self._lab = lab
        self._desktop = Desktop(folder / "desktop", lab)
        self._place = folder / "program"
        self._place.mkdir()
        shutil.copy(Path(__file__).with_name("paced.py"), self._place)
        self._profiles: dict[tuple[float, float, bool], Profile] = {}

    def close(self) -> None:
        self._desktop.close()

    def run(self, case: Case) -> Outcome:
        """Runs a case; returns its measured and predicted speed."""
        profile = self._profile(case)
        with self._shaped(case.rates_mbit):
            measured = self._measure(self._file(case), case.workers)
        return Outcome(case, self._predict(case, profile), measured)

    def choose(self, choice: Choice) -> ChoiceOutcome:
        """Measures the recommended topology of a fleet, and others that give the same result."""
        hosts = len(choice.rates_mbit)
        ring = Case(choice.number, "all_reduce", hosts, 0, choice.megabytes, choice.compute_s, choice.rates_mbit)
        profile = self._profile(ring)
        with self._shaped(choice.rates_mbit):
            # The launch of all-reduce on all hosts measures the links, which the advice needs.
            first = self._measure(self._file(ring, choice.steps), hosts)
            facts = tuple(
                HostFacts(host.name, cpus=os.cpu_count(), memory_gb=8.0, labels={"computer": "the lab"}, checked=True)
                for host in self._lab.hosts[:hosts]
            )
            measured = BandwidthCache(self._desktop.bandwidths).all_pairs()
            fleet = advised_fleet(facts, ChosenProfiles({host_kind(facts[0]): profile}, ()), {}, measured)
            file = self._file(ring, choice.steps)
            topology = topology_from_text(file.read_text(encoding="utf-8")).topology
            assert topology is not None
            advice = advise(topology, fleet)
            assert advice.current is not None
            found: dict[str, Measured] = {}
            for each in (advice.fastest, *advice.same_result, advice.current):
                if each.title in found:
                    continue
                speed = first
                if each.counts != advice.current.counts:
                    data = each.topology.model_dump(mode="json", exclude_unset=True)
                    for pool in data["pools"]:  # The lab has more hosts than the fleet.
                        pool.setdefault("hosts", [host.name for host in facts])
                    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
                    speed = self._measure(file, each.counts.trainers)
                found[each.title] = Measured(each.title, each.prediction.samples_s, speed)
        return ChoiceOutcome(choice, tuple(found.values()))

    @contextmanager
    def _shaped(self, rates_mbit: Sequence[int]) -> Iterator[None]:
        """Limits the rates of the first hosts' links, and forgets measured bandwidths."""
        hosts = self._lab.hosts[: len(rates_mbit)]
        for host, rate in zip(hosts, rates_mbit, strict=True):
            host.shape(f"{rate}mbit")
        self._desktop.bandwidths.unlink(missing_ok=True)
        try:
            yield
        finally:
            for host in hosts:
                host.unshape()

    @property
    def measured_mbit(self) -> list[int]:
        """The bandwidths that the last launch measured between hosts, in Mbit/s."""
        return sorted(round(rate * 8e-6) for rate in BandwidthCache(self._desktop.bandwidths).all_pairs().values())

    def _predict(self, case: Case, profile: Profile) -> Prediction:
        rates: dict[str, float] = {}
        for pair, rate in BandwidthCache(self._desktop.bandwidths).all_pairs().items():
            for name in pair:
                rates[name] = max(rate, rates.get(name, 0.0))
        compute = trainer_compute(profile)
        # A run on a single host measures no bandwidth and needs none.
        hosts = [
            AdvisedHost(host.name, compute, rates.get(host.name, 1e9), cores=os.cpu_count(), computer="the lab")
            for host in self._lab.hosts[: case.workers + case.servers]
        ]
        workers = tuple(range(case.workers))
        is_asynchronous = case.kind in ("downpour", "hogwild", "diloco")
        groups = tuple((number,) for number in workers) if is_asynchronous else (workers,)
        strategy = Strategy(kind=StrategyKind(case.kind), **case.settings)
        servers = tuple(range(case.workers, case.workers + case.servers))
        return predict(Layout(strategy, groups, servers), hosts, steps=case.steps)

    def _profile(self, case: Case) -> Profile:
        key = (case.megabytes, case.compute_s, case.is_busy)
        if key not in self._profiles:
            file = self._topology(case, [_pool("worker", 1, [self._lab.hosts[0].name])], MANY_STEPS, "all_reduce", {})
            kept = self._folder / "profile.json"
            done = self._desktop.torchyard("profile", file, "-o", kept, timeout=240)
            assert done.returncode == 0, done.stderr
            self._profiles[key] = read_profile(kept)
        return self._profiles[key]

    def _file(self, case: Case, steps: int | None = None) -> Path:
        """Returns the topology file of a case."""
        names = [host.name for host in self._lab.hosts]
        pools = [_pool("worker", case.workers, names[: case.workers])]
        if case.servers:
            role = "reducer" if case.kind == "reduction_server" else "ps"
            pools.append(_pool(role, case.servers, names[case.workers : case.workers + case.servers]))
        return self._topology(case, pools, steps or case.steps, case.kind, case.settings)

    def _measure(self, file: Path, workers: int) -> float:
        """Runs a topology; returns the steps/s of all trainers together."""
        done = self._desktop.torchyard("run", file, "--json", timeout=600)
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        run_id = next(event["run_id"] for event in events if event["event"] == "run_submitted")
        out = self._folder / f"out-{run_id}"
        fetched = self._desktop.torchyard("runs", "fetch", run_id, "figures-*.json", "-o", out)
        assert fetched.returncode == 0, fetched.stderr
        found = [json.loads(path.read_text()) for path in sorted(out.rglob("figures-*.json"))]
        assert len(found) == workers
        return sum(1 / fmean(steps) for steps in found)

    def _topology(
        self, case: Case, pools: Sequence[dict[str, Any]], steps: int, kind: str, settings: dict[str, Any]
    ) -> Path:
        spread = SPREAD * case.compute_s
        sizes = ["--megabytes", case.megabytes, "--compute", case.compute_s, "--spread", spread]
        sizes += ["--busy"] if case.is_busy else []
        counts = ["--seed", case.number, "--steps", steps, "--warm-up", case.warm_up]
        data = {
            "version": 1,
            "name": "paced",
            "strategy": {"kind": kind, **settings},
            "pools": list(pools),
            "program": {
                "script": "paced.py",
                "args": [str(each) for each in (*sizes, *counts)],
                "env": {"OMP_NUM_THREADS": "1"},
                "warm_spares": False,
            },
        }
        file = self._place / "topology.yaml"
        file.write_text(yaml.safe_dump(data, sort_keys=False))
        return file


def _pool(role: str, count: int, hosts: list[str]) -> dict[str, Any]:
    pool = {"name": role, "role": role, "replicas": count, "hosts": hosts}
    return pool | ({"placement": "spread"} if count > 1 else {})


def open_lab(folder: Path) -> Lab:
    """Returns a lab with enough hosts for the largest case. Its hosts boot when the caller enters its context."""
    return Lab(MOST_HOSTS, directory=folder / "lab")
