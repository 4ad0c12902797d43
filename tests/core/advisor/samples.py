"""Profiles and fleets of hosts for the advisor's tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tests.core.examples import host
from torchyard_core.advisor.fleet_hosts import AdvisedFleet, advised_fleet
from torchyard_core.advisor.prediction import AdvisedHost
from torchyard_core.advisor.profile import ChosenProfiles, Duration, Gradient, Profile, StepSize, host_kind
from torchyard_core.advisor.trainer_compute import trainer_compute
from torchyard_core.topology.host_facts import HostFacts

MEGABIT = 1e6 / 8
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def profile(
    *,
    compute_s: float = 0.5,
    spread_s: float = 0.0,
    megabytes: float = 60.0,
    kind: str = "64 CPUs",
    optimizer_s: float = 0.01,
    batch: int | None = 32,
    snapshot: str | None = "root",
    black_box: bool = False,
    is_gpu: bool = False,
    gradients: int = 16,
) -> Profile:
    """Returns a profile: a fifth of `compute_s` is the forward pass, the rest the backward pass."""
    size = int(megabytes * 1e6)
    forward, backward = (0.0, 0.0) if black_box else (compute_s / 5, compute_s * 4 / 5)
    return Profile(
        format=1,
        program="train.py",
        snapshot=snapshot,
        host="gpu-a",
        host_kind=kind,
        measured_at="2026-11-28T11:00:00Z",
        black_box=black_box,
        torch="2.13.0",
        device="cpu",
        parameter_bytes={"float32": size},
        gradient_bytes={"float32": size},
        optimizer_bytes=size,
        gradients=()
        if black_box
        else tuple(
            Gradient(bytes=size // gradients, ready_s=backward * (number + 1) / gradients)
            for number in range(gradients)
        ),
        sizes=(
            StepSize(
                batch=batch,
                steps=20,
                step=Duration(mean=compute_s + optimizer_s, spread=spread_s),
                forward=Duration(mean=forward),
                backward=Duration(mean=backward),
                optimizer=Duration(mean=optimizer_s),
                other=Duration(mean=compute_s if black_box else 0.0),
            ),
        ),
        peak_bytes=4 * size,
        memory_bytes_s=5e9,
        to_gpu_bytes_s=12e9 if is_gpu else None,
        from_gpu_bytes_s=12e9 if is_gpu else None,
    )


def advised(count: int, *, mbit: float | Sequence[float] = 200.0, of: Profile | None = None) -> list[AdvisedHost]:
    """Returns hosts with links of the given speeds."""
    rates = [mbit] * count if isinstance(mbit, (int, float)) else list(mbit)
    compute = trainer_compute(of or profile())
    return [AdvisedHost(f"host-{number}", compute, rate * MEGABIT) for number, rate in enumerate(rates)]


def cpu_hosts(count: int) -> tuple[HostFacts, ...]:
    return tuple(host(f"host-{number}") for number in range(count))


def fleet(hosts: Sequence[HostFacts], *profiles: Profile, mbit: float = 200.0) -> AdvisedFleet:
    """Returns a fleet with links of equal speed."""
    by_kind = {each.host_kind: each for each in profiles or (profile(kind=host_kind(hosts[0])),)}
    return advised_fleet(hosts, ChosenProfiles(by_kind, ()), {each.name: mbit * MEGABIT for each in hosts}, {})
