"""Runs cases on lab hosts, and predicts their speed from a profile and from the bandwidths that launches measure."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from tests.end_to_end.advisor_proof.cases import MOST_HOSTS, SPREAD, Case
from tests.lab import Desktop, Lab
from torchyard_core.advisor.prediction import AdvisedHost, Layout, Prediction, predict
from torchyard_core.advisor.profile import Profile, read_profile
from torchyard_core.advisor.trainer_compute import trainer_compute
from torchyard_core.launch.bandwidth_cache import BandwidthCache
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


class CaseRunner:
    """Launches cases with `torchyard run` on hosts that each run an sshd."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self._folder = folder
        self._lab = lab
        self._desktop = Desktop(folder / "desktop", lab)
        self._place = folder / "program"
        self._place.mkdir()
        shutil.copy(Path(__file__).with_name("paced.py"), self._place)
        self._profiles: dict[tuple[float, float], Profile] = {}

    def close(self) -> None:
        self._desktop.close()

    def run(self, case: Case) -> Outcome:
        """Runs a case; returns its measured and predicted speed."""
        profile = self._profile(case)
        hosts = self._lab.hosts[: case.workers + case.servers]
        for host, rate in zip(hosts, case.rates_mbit, strict=True):
            host.shape(f"{rate}mbit")
        self._desktop.bandwidths.unlink(missing_ok=True)
        try:
            figures = self._measure(case)
        finally:
            for host in hosts:
                host.unshape()
        measured = sum(1 / fmean(steps) for steps in figures)
        return Outcome(case, self._predict(case, profile), measured)

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
        key = (case.megabytes, case.compute_s)
        if key not in self._profiles:
            file = self._topology(case, [_pool("worker", 1, [self._lab.hosts[0].name])], MANY_STEPS, "all_reduce", {})
            kept = self._folder / "profile.json"
            done = self._desktop.torchyard("profile", file, "-o", kept, timeout=240)
            assert done.returncode == 0, done.stderr
            self._profiles[key] = read_profile(kept)
        return self._profiles[key]

    def _measure(self, case: Case) -> list[list[float]]:
        names = [host.name for host in self._lab.hosts]
        pools = [_pool("worker", case.workers, names[: case.workers])]
        if case.servers:
            role = "reducer" if case.kind == "reduction_server" else "ps"
            pools.append(_pool(role, case.servers, names[case.workers : case.workers + case.servers]))
        file = self._topology(case, pools, case.steps, case.kind, case.settings)
        done = self._desktop.torchyard("run", file, "--json", timeout=600)
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        run_id = next(event["run_id"] for event in events if event["event"] == "run_submitted")
        out = self._folder / f"out-{run_id}"
        fetched = self._desktop.torchyard("runs", "fetch", run_id, "figures-*.json", "-o", out)
        assert fetched.returncode == 0, fetched.stderr
        found = [json.loads(path.read_text()) for path in sorted(out.rglob("figures-*.json"))]
        assert len(found) == case.workers
        return found

    def _topology(
        self, case: Case, pools: Sequence[dict[str, Any]], steps: int, kind: str, settings: dict[str, Any]
    ) -> Path:
        spread = SPREAD * case.compute_s
        sizes = ["--megabytes", case.megabytes, "--compute", case.compute_s, "--spread", spread]
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
