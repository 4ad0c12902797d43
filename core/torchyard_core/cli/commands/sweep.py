"""`torchyard sweep`: starts a sweep and follows its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.cli.commands.run import (
    Event,
    booking_options,
    callbacks_for,
    checked_name,
    launch_and_follow,
)
from torchyard_core.cli.context import CommandContext, command_context
from torchyard_core.cli.file_or_stdin import FILE, topology_of
from torchyard_core.cli.interrupts import Interrupts, counting_interrupts
from torchyard_core.cli.output import Json, as_called, remark
from torchyard_core.cli.study_updates import StudyUpdates
from torchyard_core.cli.views.run_progress import PlainView, RunView
from torchyard_core.cli.views.trial_events import SweepJsonView
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.launch.runs.sweep_copies import SweepCopies
from torchyard_core.next_steps import ShowSweep

if TYPE_CHECKING:
    from torchyard_core.app.launch_run import LaunchUseCase
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_core.launch.launch import StartedRun
    from torchyard_core.sweeps.trial_table import SweepTable

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
    on: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Run on this cluster of the fleet file, as an array of jobs.")
    ] = None,
    booking: Annotated[
        str | None, typer.Option(metavar="ID", help="Use this booking of yours; if it has not begun, start with it.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Answer every question with yes.")] = False,
    as_json: Json = False,
) -> None:
    """Search hyperparameters: run trials of a topology with different arguments.

    Optuna chooses the trials; it must be installed for the Python of the primary. The trials run on GPUs that the sweep
    holds until it ends, and continue if this computer disconnects. On a cluster, each trial is a job of an array.
    Ctrl-C asks whether to stop the sweep or leave it running.

    Exit code 0: all trials have ended, and at least one is complete. 1: the sweep failed or was stopped, or could not
    start; a sweep fails if none of its trials is complete. 3: a host could not be reached, or a cluster can never
    satisfy the request of a trial.

    Example: torchyard sweep topology.yaml search.yaml
    """
    from torchyard_core.app.launch_sweep import LaunchSweep
    from torchyard_core.sweeps.search_file import are_swapped, read_search

    chosen = command_context(context, yes=yes)
    with counting_interrupts() as interrupts:
        source, settings = topology_of(file), read_search(search)
        if are_swapped(source.document, settings.document):
            message = f"{file} is a search file and {search} a topology: they are in the wrong order."
            raise UsageError(message, code="usage", hint="Name the topology first.")
        source = source.with_overrides(set_ or [])
        inventory = chosen.inventory()
        wanted = booking_options(chosen, book, at, booking)
        again = [str(file), str(search), *(["--name", name] if name is not None else [])]
        again += [word for setting in set_ or [] for word in ("--set", setting)]
        again += ["--on", on] if on is not None else []
        with chosen.fleet(inventory.hosts) as fleet:
            view = view_for_sweep(as_json=as_json)
            launch = LaunchSweep(
                chosen.desktop(fleet),
                source,
                settings,
                callbacks_for(chosen, view, as_json=as_json),
                name=checked_name(name) if name is not None else "",
                on=on,
                booking=wanted,
                arguments=[*again, *["-d"] * detach],
            )
            launch.prepare()
            remarks = [problem.printed(source.source) for problem in launch.problems]
            launch_and_follow_sweep(*(launch, chosen, fleet, view, interrupts, remarks), detach=detach, as_json=as_json)


def view_for_sweep(*, as_json: bool) -> RunView:
    """Returns the view for the output of the launch of a sweep and its trials."""
    return SweepJsonView() if as_json else PlainView()


def launch_and_follow_sweep(
    launch: LaunchUseCase,
    chosen: CommandContext,
    fleet: Fleet,
    view: RunView,
    interrupts: Interrupts,
    remarks: list[str],
    *,
    detach: bool,
    as_json: bool,
) -> None:
    """Launches a sweep, and follows it to its end unless `detach`. Raises the errors of `launch_and_follow`."""
    updates = StudyUpdates(chosen, fleet)

    @contextmanager
    def beside(started: StartedRun) -> Iterator[None]:
        def read() -> SweepTable | None:
            return SweepCopies.read_table(started.run_id, fleet.link(started.primary.host))

        of_trials = view.following(started.run_id, read) if isinstance(view, SweepJsonView) else nullcontext()
        with updates.following(started), of_trials:
            yield

    launch_and_follow(
        *(launch, chosen, fleet, view, interrupts, remarks),
        detach=detach,
        as_json=as_json,
        beside=beside,
        complete=with_results(updates, view if isinstance(view, SweepJsonView) else None),
    )


def with_results(updates: StudyUpdates, view: SweepJsonView | None = None) -> Callable[[StartedRun, Event], Event]:
    """Returns a function that copies an ended sweep's study, and adds the results to the sweep's last event as `sweep`.

    The function also prints the last events of the trials in `view`, if `view` is given.
    """
    from torchyard_core.cli.views.sweep_results import next_steps

    def complete(started: StartedRun, ended: Event) -> Event:
        try:
            table = updates.read_last(started, ended["state"])
        except (TorchyardError, OSError) as error:
            why = error.sentence() if isinstance(error, TorchyardError) else f"{error.strerror}: {error.filename}."
            step = ShowSweep(started.run_id).sentence()
            remark(f"torchyard: the trials of sweep {started.run_id} could not be read: {why} {step}")
            return {**ended, "sweep": None}
        if table is None:
            return {**ended, "sweep": None}
        if view is not None:
            view.show_trials(table, is_last=True)
        results = table.results()
        steps = [
            as_called(f"`{step.command_line()}`").strip("`")
            for step in next_steps(results, started.run_id, ended["state"])
        ]
        return {**ended, "sweep": {"metric": table.metric, **results, "next": steps}}

    return complete
