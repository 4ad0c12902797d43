"""Connections to the hosts of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchyard_core.errors import HostError, Unreachable
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.next_steps import AddHost

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet


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


def _not_in_fleet(host: str, run: KnownRun) -> Unreachable:
    role = "primary host" if host == run.primary else "host"
    message = f"the {role} {host} of run {run.run_id} is not in the fleet file."
    return Unreachable(host, message, hint=("Add it by that name.", AddHost(host)))
