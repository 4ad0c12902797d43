"""Predictions of recorded runs from this desktop's profiles, and corrections from the measurements of these runs.

This module contacts no host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchyard_core.advisor.candidates import layout_of
from torchyard_core.advisor.corrections import Correction, Ratios, Scope, corrections_of
from torchyard_core.advisor.fleet_hosts import advised_fleet
from torchyard_core.advisor.profile import ChosenProfiles, choose_profiles, program_name
from torchyard_core.advisor.profile_run import program_settings
from torchyard_core.advisor.run_comparison import PredictedStep, RunComparison, measured_step, predicted_step, ratios
from torchyard_core.app.profile_script import profile_cache
from torchyard_core.errors import FileProblem
from torchyard_core.fleet.inventory import Inventory
from torchyard_core.home import Home
from torchyard_core.launch.bandwidth_cache import BandwidthCache
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.launch.runs.known_runs import is_over
from torchyard_core.launch.runs.recorded_plan import recorded_plan
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Launcher, Program, Topology
from torchyard_core.topology.placement.planner import Slot
from torchyard_core.topology.replicas import replicas_of

CONSIDERED = 25
"""Maximum number of past runs from which corrections are derived. The newest runs are used."""

Links = tuple[Mapping[str, float], Mapping[tuple[str, str], float]]
"""Bandwidths in bytes per second: of hosts, from the fleet file, and of pairs of hosts, as measured by launches."""


def known_links(home: Home, inventory: Inventory) -> Links:
    """Returns the bandwidths in the fleet file, and those that launches from this desktop have measured."""
    stated = {host.name: host.bandwidth_gbps * 1e9 / 8 for host in inventory.hosts if host.bandwidth_gbps}
    return stated, BandwidthCache(home.caches / "bandwidth.json").all_pairs()


class RunPredictor:
    """Predicts recorded runs with the profiles of their scripts."""

    def __init__(self, home: Home, inventory: Inventory, facts: Sequence[HostFacts]):
        """Creates a predictor. `facts` contains the facts of the fleet's hosts."""
        self._home = home
        self._inventory = inventory
        self._facts = tuple(facts)

    def predict(self, record: RunRecord) -> PredictedStep | None:
        """Returns the prediction of a run's step without corrections.

        Returns None if the script was not profiled on the run's kinds of hosts, or if the run's reports cannot be
        compared with a prediction.
        """
        found = self._predicted(record)
        return None if found is None else found[0]

    def compare(
        self, record: RunRecord, replicas: Sequence[Mapping[str, Any]], metrics: Mapping[str, Mapping[str, Any]]
    ) -> RunComparison | None:
        """Returns the predicted and measured step of a run, or None if they cannot be compared.

        Args:
            replicas: The current states of the run's replicas.
            metrics: The last reports of the replicas.
        """
        found = self._predicted(record)
        measured = None if found is None else measured_step(found[0], replicas, metrics)
        if found is None or measured is None:
            return None
        predicted, profiles = found
        settings = _settings(record)
        is_same = all(
            profile.snapshot == record.code_root and profile.has_settings(settings)
            for profile in profiles.by_kind.values()
        )
        return RunComparison(predicted.median, measured, len(predicted.compute_s), is_same)

    def _predicted(self, record: RunRecord) -> tuple[PredictedStep, ChosenProfiles] | None:
        topology_and_places = _placed(record, self._facts)
        workdir = record.workdir or self._first_workdir(record)
        if topology_and_places is None:
            return None
        program = program_name(topology_and_places[0].program)
        profiles = profile_cache(self._home).find(Path(workdir) if workdir else None, program)
        if not profiles:
            return None
        chosen = choose_profiles(profiles, None, self._facts, datetime.now(UTC))
        predicted = _predict(*topology_and_places, chosen, known_links(self._home, self._inventory))
        return None if predicted is None else (predicted, chosen)

    def _first_workdir(self, record: RunRecord) -> str:
        """Returns the working folder of the first run in this run's chain of restarts; empty if unknown."""
        first = History(self._home.history).load(record.lineage) if record.lineage else None
        return first.workdir if first is not None else ""


def corrections_from_history(
    history: History,
    program: Program,
    snapshots: Collection[str | None],
    facts: Sequence[HostFacts],
    profiles: ChosenProfiles,
    links: Links,
) -> dict[Scope, Correction]:
    """Returns the corrections derived from past runs of a program.

    Args:
        program: Only runs with this program's script, arguments and environment are used.
        snapshots: Hashes of the profiled program files and of the current files of the working folder
            (`launch.snapshots.program_files`). Only runs whose program files have one of these hashes are used.
    """
    found: list[Ratios] = []
    for record in _ended_runs(history, snapshots):
        placed = _placed(record, facts)
        if placed is None or _essence(placed[0].program) != _essence(program):
            continue
        predicted = _predict(*placed, profiles, links)
        measured = None if predicted is None else measured_step(predicted, record.replicas, record.metrics)
        if predicted is not None and measured is not None:
            found.append(ratios(predicted, measured))
        if len(found) == CONSIDERED:
            break
    return corrections_of(found)


def _ended_runs(history: History, snapshots: Collection[str | None]) -> Iterator[RunRecord]:
    for record in history.records():
        if is_over(record.state) and record.metrics and record.code_root in snapshots and not record.sweep:
            yield record


def _settings(record: RunRecord) -> str:
    """Returns the hash of a run's arguments, environment and setup. The record's topology must be readable."""
    topology = topology_from_text(record.topology).topology
    return "" if topology is None else program_settings(topology)


def _essence(program: Program) -> tuple[object, ...]:
    """Returns the settings that determine a program's computation, in addition to its files."""
    return program.launcher, program_name(program), program.args, program.env


Placed = tuple[Topology, dict[str, str], tuple[HostFacts, ...]]
"""The topology of a run, the host of each replica, and the facts of these hosts."""


def _placed(record: RunRecord, facts: Sequence[HostFacts]) -> Placed | None:
    """Returns the placement of a run's replicas.

    Returns None if it is unknown, if a host is not in the fleet, or if the run's launcher is not `torch`.
    """
    try:
        found = recorded_plan(record.topology, record.planned, facts)
    except (FileProblem, KeyError, TypeError, AttributeError):  # The record is damaged.
        return None
    if found is None or found[0].topology.program.launcher is not Launcher.TORCH:
        return None
    plan, hosts = found
    if not {host.name for host in hosts} <= {host.name for host in facts}:
        return None
    places = {replica.name: replica.host for replica in plan.replicas if replica.host is not None}
    return plan.topology, places, hosts


def _predict(
    topology: Topology,
    places: Mapping[str, str],
    hosts: tuple[HostFacts, ...],
    profiles: ChosenProfiles,
    links: Links,
) -> PredictedStep | None:
    fleet = advised_fleet(hosts, profiles, *links)
    layout = layout_of(topology, {name: Slot(host, ()) for name, host in places.items()}, fleet)
    if layout is None:
        return None
    trainers = {
        replica.name: fleet.number(places[replica.name]) for replica in replicas_of(topology) if replica.role.trains
    }
    return predicted_step(layout, fleet.hosts, trainers, fleet.scope(layout.strategy.kind, layout.trainers))
