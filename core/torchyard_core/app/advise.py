"""The use case "advise": computes advice from the profiles, hosts, links and bookings that a desktop knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from torchyard_core.advisor.corrections import correction_remarks
from torchyard_core.advisor.fleet_hosts import advised_fleet
from torchyard_core.advisor.profile import Profile, choose_profiles, program_name
from torchyard_core.advisor.profile_run import program_settings
from torchyard_core.advisor.recommendation import Advice, Alternative, advise
from torchyard_core.app.launch_run import InvalidTopology
from torchyard_core.app.profile_script import profile_cache, program_root, workdir_of
from torchyard_core.app.run_predictions import corrections_from_history, known_links
from torchyard_core.booking.launch_booking import LaunchBooking
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.errors import RunFailed
from torchyard_core.fleet.cluster import require_hosts
from torchyard_core.fleet.inventory import Inventory
from torchyard_core.home import Home
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.runs.history import History
from torchyard_core.next_steps import ProfileScript
from torchyard_core.problems import has_errors
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts


@dataclass(frozen=True)
class AdviceOptions:
    """The user's options for a prediction: profiles, batch size, and use of past runs."""

    profiles: tuple[Profile, ...] = ()
    """Profiles from files, which replace those that this desktop has measured."""
    batch: int | None = None
    without_history: bool = False
    """Whether to ignore the measurements of past runs."""


def advise_topology(
    source: TopologyFile,
    home: Home,
    inventory: Inventory,
    facts: Sequence[HostFacts],
    available: Sequence[HostFacts] | None = None,
    options: AdviceOptions | None = None,
) -> Advice:
    """Returns the advice for a topology on a fleet, without contacting a host.

    Args:
        facts: The hosts of the fleet. The current use of their GPUs is ignored.
        available: The same hosts, without GPUs that other users use or have booked. If None, there is no advice about
            what is available now.

    Raises:
        InvalidTopology: The file has errors.
        RunFailed: There is no profile, or no feasible topology.
        UsageError: The speed of the topology cannot be predicted.
    """
    options = options or AdviceOptions()
    if source.topology is None or has_errors(source.problems):
        raise InvalidTopology(source.problems, source.source)
    topology = source.topology
    require_hosts(
        topology,
        inventory.clusters,
        "speed is predicted for runs",
        "Name no hosts in its pools for advice about the fleet; `run --on` still runs it on the cluster.",
    )
    workdir = workdir_of(source)
    profiles = options.profiles or profile_cache(home).find(workdir, program_name(topology.program))
    if not profiles:
        message = f"{program_name(topology.program) or 'the program'} was never profiled on this computer."
        raise RunFailed(message, code="no_profile", hint=ProfileScript(source.source))
    snapshot = program_root(source, home)
    settings = program_settings(topology) if any(pool.role.trains for pool in topology.pools) else ""
    chosen = choose_profiles(profiles, snapshot, facts, datetime.now(UTC), settings)
    links = known_links(home, inventory)
    corrections = {}
    if not options.without_history:
        snapshots = {snapshot, *(profile.snapshot for profile in chosen.by_kind.values())}
        history = History(home.history)
        corrections = corrections_from_history(history, topology.program, snapshots, facts, chosen, links)
    fleet = replace(advised_fleet(facts, chosen, *links, options.batch), corrections=corrections)
    free = None
    if available is not None:
        free = replace(advised_fleet(available, chosen, *links, options.batch), corrections=corrections)
    advice = advise(
        topology,
        fleet,
        free,
        is_black_box=any(profile.black_box for profile in chosen.by_kind.values()),
        has_samples=options.batch is not None or all(profile.batch for profile in chosen.by_kind.values()),
    )
    return replace(advice, remarks=(*advice.remarks, *correction_remarks(corrections)))


def available_hosts(calendar: Calendar, zone: str, known: Sequence[HostFacts]) -> Sequence[HostFacts]:
    """Returns the hosts without the GPUs that other users have booked now. Raises the errors of the calendar."""
    return LaunchBooking(calendar, zone, BookingOptions()).choices(known)[-1]


def advice_as_json(advice: Advice) -> dict[str, Any]:
    """Returns the output of `torchyard advise --json`."""
    return {
        "current": _as_json(advice.current),
        "fastest": _as_json(advice.fastest),
        "fewest_gpus": _as_json(advice.fewest),
        "available_now": _as_json(advice.available),
        "same_result": [_as_json(each) for each in advice.same_result],
        "other_result": [_as_json(each) for each in advice.other_result],
        "curve": [vars(point) for point in advice.curve],
        "next_host_samples_s": advice.next_host,
        "unit": "samples/s" if advice.has_samples else "steps/s",
        "candidates": advice.candidates,
        "remarks": list(advice.remarks),
    }


def _as_json(alternative: Alternative | None) -> dict[str, Any] | None:
    if alternative is None:
        return None
    counts, prediction = alternative.counts, alternative.prediction
    return {
        "strategy": counts.kind.value,
        "trainers": counts.trainers,
        "servers": counts.servers,
        "groups": counts.groups,
        "hosts": list(alternative.hosts),
        "gpus": alternative.gpus,
        "changes_result": alternative.changes_result,
        "step_s": prediction.step_s,
        "samples_s": prediction.samples_s,
        "samples_s_80": [prediction.low, prediction.high],
        "bound_s": prediction.bound_s,
        "parts": {
            "compute_s": prediction.compute_s,
            "exchange_s": prediction.exchange_s,
            "wait_s": prediction.wait_s,
        },
        "bytes_per_step": {name: list(both) for name, both in prediction.bytes_by_host.items()},
        "trainer_bytes": prediction.trainer_bytes,
        "server_bytes": prediction.server_bytes,
        "bottleneck": prediction.bottleneck,
        "notes": list(prediction.notes),
        "utilisation": {wire: dict(by_steps) for wire, by_steps in prediction.utilisation.items()},
    }
