"""Connections to the hosts of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchyard_core.errors import HostError, RunFailed, Unreachable
from torchyard_core.launch.runs.history import History
from torchyard_core.launch.runs.known_runs import KnownRun, list_runs
from torchyard_core.next_steps import AddHost

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_core.sweeps.trial_table import Trial


def reach(fleet: Fleet, names: Iterable[str]) -> tuple[dict[str, DaemonClient], dict[str, HostError]]:
    """Connects to hosts without installing agents.

    Returns:
        The links to the hosts that answer and have an agent, and the errors of the other hosts, both by host name.
    """
    found = fleet.links(names, install=False)
    links = {name: link for name, link in found.items() if not isinstance(link, HostError)}
    return links, {name: error for name, error in found.items() if isinstance(error, HostError)}


def links_of_run(fleet: Fleet, run: KnownRun) -> tuple[dict[str, DaemonClient], dict[str, HostError]]:
    """Connects to the hosts of a run without installing agents.

    Returns:
        The links to the hosts that answer and have an agent, and the errors of the other hosts, both by host name.
    """
    links, errors = reach(fleet, [host for host in run.hosts if fleet.knows(host)])
    for host in (run.primary, *run.hosts):
        if not fleet.knows(host):
            errors.setdefault(host, _not_in_fleet(host, run))
    return links, errors


def link_to_primary(fleet: Fleet, run: KnownRun) -> DaemonClient:
    """Returns the link to the run's primary host. Raises HostError if the host cannot be used."""
    if not fleet.knows(run.primary):
        raise _not_in_fleet(run.primary, run)
    return fleet.link(run.primary, install=False)


def find_trial(fleet: Fleet, sweep: KnownRun, trial: Trial, history: History) -> KnownRun:
    """Returns the run of a sweep's trial. Raises HostError, or RunFailed if the host that is asked has no such run.

    For a trial on a cluster, the sweep's primary is asked, because there are no links to the nodes of the trial's job.
    """
    is_on_cluster = fleet.knows(sweep.primary) and sweep.primary not in fleet.hosts
    host = sweep.primary if is_on_cluster or not trial.hosts else trial.hosts[0]
    if not fleet.knows(host):
        message = f"the host {host} of trial {trial.trial} is not in the fleet file."
        raise Unreachable(host, message, hint=("Add it by that name.", AddHost(host)))
    known = list_runs({host: fleet.link(host, install=False)}, history)
    found = next((run for run in known if run.run_id == trial.run_id), None)
    if found is None:
        raise RunFailed(f"the run of trial {trial.trial} is not known on {host}.", code="no_run")
    return found


def _not_in_fleet(host: str, run: KnownRun) -> Unreachable:
    role = "primary host" if host == run.primary else "host"
    message = f"the {role} {host} of run {run.run_id} is not in the fleet file."
    return Unreachable(host, message, hint=("Add it by that name.", AddHost(host)))
