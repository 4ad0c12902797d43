"""Which run a command is about, and which hosts can be asked about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchyard_core.cli.context import Settings
from torchyard_core.cli.output import remark
from torchyard_core.errors import AgentMissing, HostError, Unreachable, UsageError
from torchyard_core.launch.runs.history import History, ending
from torchyard_core.launch.runs.known_runs import KnownRun, find_run, list_runs

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import Link
    from torchyard_core.fleet.fleet import Fleet


def history_of(chosen: Settings) -> History:
    """What this desktop launched."""
    return History(chosen.home.history)


def note_end(history: History, ended: dict[str, Any]) -> None:
    """Notes a run's last event in this desktop's history; a full disk here changes nothing about the run."""
    try:
        history.update(ended["run_id"], **ending(ended))
    except OSError as error:
        remark(f"the run's end could not be noted in this computer's history: {error.strerror}: {error.filename}")


def reach(fleet: Fleet, names: Iterable[str]) -> tuple[dict[str, Link], dict[str, HostError]]:
    """(links to those hosts that answer and have an agent, what is in the way to the others). Nothing is installed."""
    found = fleet.links(names, install=False)
    links = {name: link for name, link in found.items() if not isinstance(link, HostError)}
    return links, {name: error for name, error in found.items() if isinstance(error, HostError)}


def find(chosen: Settings, fleet: Fleet, run_id: str) -> KnownRun:
    """The run that `run_id` names (see `find_run`); the hosts are asked unless this desktop knows it exactly.

    Raises UsageError where there is none, or several; Unreachable where there is none on the hosts that answer.
    """
    history = history_of(chosen)
    own = [run for run in list_runs({}, history) if run.run_id == run_id and run.primary in fleet.hosts]
    if own:
        return own[0]
    links, errors = reach(fleet, fleet.hosts)
    silent = {name: error for name, error in errors.items() if not isinstance(error, AgentMissing)}
    try:
        return find_run(run_id, list_runs(links, history))
    except UsageError as error:
        if error.code == "no_run" and silent:
            first = next(iter(silent.values()))
            raise Unreachable(
                first.host,
                f"no run {run_id} is known to the hosts that answer, and not all do: {first.message}",
                hint=first.hint,
            ) from error
        raise


def link_to_primary(fleet: Fleet, run: KnownRun) -> Link:
    """The link to the run's primary host. Raises a HostError."""
    if run.primary not in fleet.hosts:
        raise Unreachable(
            run.primary,
            f"the primary host {run.primary} of run {run.run_id} is not in the fleet file.",
            hint=f"Add it by that name: `torchyard hosts add {run.primary} --address …`.",
        )
    return fleet.link(run.primary, install=False)


def links_of(fleet: Fleet, run: KnownRun) -> tuple[dict[str, Link], bool]:
    """(links to those of the run's hosts that answer, whether all do). Those that do not are told."""
    known = [host for host in run.hosts if host in fleet.hosts]
    links, errors = reach(fleet, known)
    for error in errors.values():
        remark(f"torchyard: {error.sentence()}")
    for host in run.hosts:
        if host not in fleet.hosts:
            remark(f"torchyard: {host}, where a part of the run is, is not in the fleet file.")
    return links, len(links) == len(run.hosts)
