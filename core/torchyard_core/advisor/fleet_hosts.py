"""The hosts of a fleet with the compute times and link bandwidths that predictions use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torchyard_core.advisor.corrections import Correction, Scope
from torchyard_core.advisor.prediction import AdvisedHost
from torchyard_core.advisor.profile import ChosenProfiles, host_kind
from torchyard_core.advisor.trainer_compute import trainer_compute
from torchyard_core.errors import UsageError
from torchyard_core.formatting import bandwidth, counted
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import StrategyKind

ASSUMED_BYTES_S = 1e9 / 8
"""Bandwidth, in bytes per second, assumed for a link that was neither measured nor stated in the fleet file."""
COMPUTER_LABEL = "computer"
"""Label that has the same value on all hosts, such as containers, that share the cores of one computer."""
MIB = 2**20


@dataclass(frozen=True)
class AdvisedFleet:
    """The hosts of a fleet, in the order of `facts`.

    `remarks` tells the user which bandwidths are assumed and which hosts cannot train because they were not profiled.
    """

    facts: tuple[HostFacts, ...]
    hosts: tuple[AdvisedHost, ...]
    remarks: tuple[str, ...]
    corrections: Mapping[Scope, Correction] = field(default_factory=dict)

    def number(self, name: str) -> int:
        return next(number for number, host in enumerate(self.hosts) if host.name == name)

    def scope(self, kind: StrategyKind, trainers: Iterable[int]) -> Scope:
        """Returns the scope of predictions with a strategy and with trainers on the given hosts."""
        return Scope.of(kind, (host_kind(self.facts[number]) for number in trainers))

    def correction(self, kind: StrategyKind, trainers: Iterable[int]) -> Correction:
        """Returns the correction for a strategy with trainers on the given hosts. Without past runs, factors are 1."""
        return self.corrections.get(self.scope(kind, trainers), Correction()) if self.corrections else Correction()


def advised_fleet(
    facts: Sequence[HostFacts],
    profiles: ChosenProfiles,
    stated: Mapping[str, float],
    measured: Mapping[tuple[str, str], float],
    batch: int | None = None,
) -> AdvisedFleet:
    """Returns the hosts of a fleet with their compute times and link bandwidths.

    The bandwidth of a host's link is the highest bandwidth measured between the host and another host, or else the
    value in the fleet file, or else `ASSUMED_BYTES_S`.

    Args:
        stated: Bandwidths of hosts in the fleet file, in bytes per second.
        measured: Bandwidths between two hosts, as measured by launches, in bytes per second.
        batch: Number of samples in a trainer's batch; by default the profile's batch size.

    Raises:
        UsageError: Times for `batch` cannot be derived, since a profile has measurements of fewer than two batch sizes.
    """
    rates: dict[str, float] = {}
    for pair, rate in measured.items():
        for name in pair:
            rates[name] = max(rate, rates.get(name, 0.0))
    assumed: list[str] = []
    hosts = []
    for host in facts:
        rate = rates.get(host.name) or stated.get(host.name) or ASSUMED_BYTES_S
        if host.name not in rates and host.name not in stated:
            assumed.append(host.name)
        profile = profiles.of(host)
        try:
            compute = None if profile is None else trainer_compute(profile, batch)
        except ValueError as problem:
            raise UsageError(
                f"times of batches of {counted(batch or 0, 'sample')} are not known: {problem}.",
                code="one_batch_size",
                hint="Use `cluster.loader` in the script and measure it again, or leave out --batch.",
            ) from None
        memory = host.memory_gb * 2**30 if host.checked and host.memory_gb is not None else None
        gpu = min((gpu.memory_mb for gpu in host.gpus), default=0) * MIB
        cores = float(host.cpus) if host.cpus else None
        computer = host.labels.get(COMPUTER_LABEL, "")
        hosts.append(AdvisedHost(host.name, compute, rate, memory, float(gpu) if gpu else None, cores, computer))
    remarks = list(profiles.remarks)
    largest = max((size.batch or 0 for each in profiles.by_kind.values() for size in each.sizes), default=0)
    if batch is not None and largest < batch:
        remarks.append(
            f"Batches of {counted(batch, 'sample')} were not measured, only of at most {largest}: their times are "
            "extrapolated, and the intervals do not include the error of this."
        )
    if assumed and len(facts) > 1:
        which = assumed[0] if len(assumed) == 1 else f"{assumed[0]} and {counted(len(assumed) - 1, 'other host')}"
        remarks.append(
            f"The bandwidth of {which} is not known: {bandwidth(ASSUMED_BYTES_S)} is assumed. A launch on several "
            "hosts measures it, or `bandwidth_gbps` in the fleet file states it."
        )
    missing: dict[str, list[str]] = {}
    for host, found in zip(facts, hosts, strict=True):
        if found.compute is None:
            missing.setdefault(host_kind(host), []).append(host.name)
    for kind, names in missing.items():
        listed = ", ".join(names[:5]) + ("" if len(names) <= 5 else f" and {len(names) - 5} more")
        remarks.append(f"Hosts of the kind {kind} were not profiled and train nothing here: {listed}.")
    return AdvisedFleet(tuple(facts), tuple(hosts), tuple(remarks))
