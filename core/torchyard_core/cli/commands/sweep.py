"""`torchyard sweep`: starts a sweep and follows its trials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.cli.commands.run import (
    Event,
    booking_options,
    callbacks_for,
    checked_name,
    launch_and_follow,
    view_for,
)
from torchyard_core.cli.context import command_context
from torchyard_core.cli.file_arguments import FILE, topology_of
from torchyard_core.cli.interrupts import counting_interrupts
from torchyard_core.cli.output import Json, as_called, remark
from torchyard_core.cli.study_updates import StudyUpdates
from torchyard_core.errors import TorchyardError
from torchyard_core.next_steps import ShowSweep

if TYPE_CHECKING:
    from torchyard_core.launch.launch import StartedRun

SEARCH = typer.Argument(metavar="SEARCH", help="The search file.", show_default=False)


def sweep(
    context: typer.Context,
    file: Annotated[Path, FILE],
    search: Annotated[Path, SEARCH],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once the sweep has started.")] = False,
    name: Annotated[str | None, typer.Option(help="The sweep's name (default: that of the search file).")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a value for this sweep: pools.workers.replicas=2."),
    ] = None,
    book: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Book its GPUs for this length, like 4h, until it ends.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start automatically at this time: +2h, 2026-11-23 09:00.")
    ] = None,
    booking: Annotated[
        str | None, typer.Option(metavar="ID", help="Use this booking of yours; if it has not begun, start with it.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Answer every question with yes.")] = False,
    as_json: Json = False,
) -> None:
    """Search hyperparameters: run trials of a topology with other arguments.

    The trials are chosen by Optuna, which the primary's Python needs. They run on GPUs that the sweep holds until its
    end, and go on without this computer. Ctrl-C asks whether to stop the sweep or leave it running.

    Exit code 0: all trials have ended, and at least one is complete. 1: the sweep failed or was stopped, or could not
    start; a sweep fails if none of its trials is complete. 3: a host could not be reached.

    Example: torchyard sweep topology.yaml search.yaml
    """
    from torchyard_core.app.launch_sweep import LaunchSweep
    from torchyard_core.sweeps.search_file import read_search

    chosen = command_context(context, yes=yes)
    with counting_interrupts() as interrupts:
        source = topology_of(file).with_overrides(set_ or [])
        settings = read_search(search)
        inventory = chosen.inventory()
        wanted = booking_options(chosen, book, at, booking)
        again = [str(file), str(search), *(["--name", name] if name is not None else [])]
        again += [word for setting in set_ or [] for word in ("--set", setting)]
        with chosen.fleet(inventory.hosts) as fleet:
            view = view_for(as_json=as_json)
            launch = LaunchSweep(
                chosen.desktop(fleet),
                source,
                settings,
                callbacks_for(chosen, view, as_json=as_json),
                name=checked_name(name) if name is not None else "",
                booking=wanted,
                arguments=[*again, *["-d"] * detach],
            )
            launch.prepare()
            remarks = [problem.printed(source.source) for problem in launch.problems]
            updates = StudyUpdates(chosen, fleet)
            launch_and_follow(
                *(launch, chosen, fleet, view, interrupts, remarks),
                detach=detach,
                as_json=as_json,
                beside=updates.following,
                complete=with_results(updates),
            )


def with_results(updates: StudyUpdates) -> Callable[[StartedRun, Event], Event]:
    """Returns a function that adds the results of a sweep to its last event, as `sweep`, and copies its study."""
    from torchyard_core.cli.views.sweep_results import next_steps

    def complete(started: StartedRun, ended: Event) -> Event:
        try:
            table = updates.read_last(started)
        except (TorchyardError, OSError) as error:
            why = error.sentence() if isinstance(error, TorchyardError) else f"{error.strerror}: {error.filename}."
            step = ShowSweep(started.run_id).sentence()
            remark(f"torchyard: the trials of sweep {started.run_id} could not be read: {why} {step}")
            return {**ended, "sweep": None}
        if table is None:  # The sweep ended before its coordinator began.
            return {**ended, "sweep": None}
        results = table.results()
        steps = [as_called(f"`{step.command_line()}`").strip("`") for step in next_steps(results, started.run_id)]
        return {**ended, "sweep": {"metric": table.metric, **results, "next": steps}}

    return complete
