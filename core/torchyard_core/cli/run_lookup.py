"""Looks up the run that a command refers to, the run's hosts, and this desktop's history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchyard_core.app.run_links import links_of_run, reach
from torchyard_core.cli.context import CommandContext
from torchyard_core.cli.output import remark
from torchyard_core.errors import AgentMissing, Unreachable, UsageError
from torchyard_core.launch.runs.history import History, fields_at_end
from torchyard_core.launch.runs.known_runs import KnownRun, find_run, list_runs

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet


def history_of(chosen: CommandContext) -> History:
    """Returns the history of the runs that this desktop has launched."""
    return History(chosen.home.history)


def record_end(history: History, ended: dict[str, Any]) -> None:
    """Records a run's last event in this desktop's history. An error is printed but not raised."""
    try:
        history.update(ended["run_id"], **fields_at_end(ended))
    except OSError as error:
        remark(f"the run's end could not be noted in this computer's history: {error.strerror}: {error.filename}")


def find(chosen: CommandContext, fleet: Fleet, run_id: str) -> KnownRun:
    """Returns the run that `run_id` refers to (see `find_run`).

    Asks the hosts unless `run_id` is the complete ID of a run that this desktop has launched.

    Raises:
        UsageError: No run or several runs match.
        Unreachable: No run matches, and a host does not answer.
    """
    history = history_of(chosen)
    own = [run for run in list_runs({}, history) if run.run_id == run_id and fleet.knows(run.primary)]
    if own:
        return own[0]
    links, errors = reach(fleet, fleet.listing)
    silent = {name: error for name, error in errors.items() if not isinstance(error, AgentMissing)}
    try:
        return find_run(run_id, list_runs(links, history))
    except UsageError as error:
        if error.code == "no_run" and silent:
            first = next(iter(silent.values()))
            message = f"no run {run_id} is known to the hosts that answer, and not all do: {first.message}"
            raise Unreachable(first.host, message, hint=first.advice) from error
        raise


def links_of(fleet: Fleet, run: KnownRun) -> tuple[dict[str, DaemonClient], bool]:
    """Connects to the run's hosts, and prints the errors of hosts that do not answer.

    Returns:
        The links by host name, and whether all hosts answer.
    """
    links, errors = links_of_run(fleet, run)
    for error in errors.values():
        remark(f"torchyard: {error.sentence()}")
    return links, not errors
