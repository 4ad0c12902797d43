"""`torchyard runs`: runs that were launched from this desktop and from other desktops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchyard_core.app.run_links import link_to_primary, links_of_run, reach
from torchyard_core.cli.calendar_sync_messages import sync_calendar
from torchyard_core.cli.context import CommandContext, command_context
from torchyard_core.cli.output import Json, print_json, progress_bars, remark, say, table
from torchyard_core.cli.run_lookup import find, history_of, links_of, record_end
from torchyard_core.cli.views.replica_logs import FollowedLogs, LinePrinter, WaitingRemarks, print_logs
from torchyard_core.cli.views.run_details import print_run
from torchyard_core.errors import (
    AgentFailed,
    AgentMissing,
    AgentRefused,
    HostError,
    RunFailed,
    TorchyardError,
    UsageError,
)
from torchyard_core.formatting import since
from torchyard_core.launch.runs.follower import Follower
from torchyard_core.launch.runs.known_runs import (
    KnownRun,
    free_prepared,
    host_of,
    is_over,
    list_runs,
    show_record,
    show_run,
    stop_run,
)
from torchyard_core.launch.runs.logs import LogReader, log_readers
from torchyard_core.launch.runs.model_download import (
    fetch_model,
    find_model,
    model_sources,
    require_absent,
    target_of,
)
from torchyard_core.launch.runs.output_download import fetch_files, list_files
from torchyard_core.next_steps import StopRun

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_core.launch.runs.history import RunRecord

app = typer.Typer(help="Runs that were started: list, show, logs, stop, restart, grow, fetch.", no_args_is_help=True)

ID = typer.Argument(
    metavar="ID", help="A run's ID, its beginning or end, the run's name, or `last`.", show_default=False
)
STOP_WITHIN_S = 300.0
"""Maximum time in seconds to wait for the end of a run that is being stopped.

It is longer than the time that replicas are usually given to stop.
"""


@app.command("list")
def list_all(
    context: typer.Context,
    trials: Annotated[bool, typer.Option("--trials", help="Also list the trials of sweeps.")] = False,
    as_json: Json = False,
) -> None:
    """List the runs that are known to the hosts and to this desktop, newest first.

    Exit code 3: a host could not be reached; its runs are listed with their last known state.

    Example: torchyard runs list
    """
    chosen = command_context(context)
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        links, errors = reach(fleet, fleet.listing)
        runs = list_runs(links, history_of(chosen), lambda problem: remark(f"torchyard: {problem.sentence()}"))
        sync_calendar(chosen, fleet)
    runs = [run for run in runs if trials or not run.sweep_run]
    for error in errors.values():
        remark(f"torchyard: {error.sentence()}")
    if as_json:
        print_json([run.to_json() for run in runs])
    elif runs:
        rows = [
            [
                *(run.run_id, run.name, _state(run), since(run.submitted)),
                *(" ".join(run.hosts), run.restarted_from or "-", run.reason),
            ]
            for run in runs
        ]
        table(("ID", "NAME", "STATE", "SUBMITTED", "HOSTS", "RESTART OF", "REASON"), rows)
    else:
        say("No runs are known.")
    if any(not isinstance(error, AgentMissing) for error in errors.values()):
        raise typer.Exit(3)


@app.command("show")
def show(context: typer.Context, run_id: Annotated[str, ID], as_json: Json = False) -> None:
    """Show a run with its state, its replicas and their last reports.

    Exit code 0, however the run ended. 3: its primary's host could not be reached; the last known state is shown.

    Example: torchyard runs show last
    """
    chosen = command_context(context)
    unreachable: TorchyardError | None = None
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        run = find(chosen, fleet, run_id)
        try:
            shown = show_run(run, link_to_primary(fleet, run))
        except (HostError, AgentRefused) as error:
            record = history_of(chosen).load(run.run_id)
            if record is None:
                raise
            unreachable = error
            shown = show_record(run, record)
    record = history_of(chosen).load(run.run_id)
    if record is not None and not record.ended and shown["fresh"] and is_over(shown["state"]):
        record_end(history_of(chosen), {**shown, "time": shown["as_of"]})
    shown["comparison"] = None if record is None else _comparison(chosen, record, shown)
    if as_json:
        print_json(shown)
    else:
        print_run(shown)
    if unreachable is not None:
        remark(f"torchyard: {unreachable.sentence()} This is what was known here at {run.as_of}.")
        raise typer.Exit(unreachable.exit_code)


def _comparison(chosen: CommandContext, record: RunRecord, shown: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the predicted and measured step of a run, or None if they cannot be compared."""
    from torchyard_core.app.run_predictions import RunPredictor

    inventory = chosen.inventory()
    predictor = RunPredictor(chosen.home, inventory, chosen.known(inventory))
    found = predictor.compare(record, shown["replicas"], shown["metrics"])
    return None if found is None else found.as_json()


@app.command("logs")
def logs(
    context: typer.Context,
    run_id: Annotated[str, ID],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow new lines until the run ends.")] = False,
    replica: Annotated[str | None, typer.Option(help="Only this one, like worker-0.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Number of lines from the end of each log.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="On a terminal too, with control characters as printed.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="With the time of each line, in UTC.")] = False,
    as_json: Json = False,
) -> None:
    """Print the logs of a run's replicas.

    Several logs are merged by time, and each line begins with the replica's name. If the run waits, the reason is
    printed on stderr; -f waits for its start, and follows it through requeues on a cluster.

    With --json, each line is a line of JSON: {"replica", "local_rank", "line"}, and "time" with --timestamps.

    Example: torchyard runs logs last -f --replica worker-0
    """
    chosen = command_context(context)
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        run = find(chosen, fleet, run_id)
        shown = show_run(run, link_to_primary(fleet, run))
        if replica is not None:
            host_of(replica, shown)
        waiting = WaitingRemarks(shown, lambda: show_run(run, link_to_primary(fleet, run)))
        links, all_there = links_of(fleet, run)

        def reattach(host: str) -> DaemonClient:
            return fleet.link(host, install=False)

        def listed() -> list[LogReader]:
            return log_readers(shown, replica, links, reattach, tail)

        def all_to_come() -> list[LogReader]:
            first = [
                LogReader(run.run_id, found["name"], 0, links[found["host"]], reattach, tail)
                for found in shown["replicas"]
                if found["host"] in links and replica in (None, found["name"])
            ]
            for host in links:
                links[host] = fleet.link(host, install=False)
            waiting.look()
            return [*first, *listed()]

        if follow:
            several = replica is None and len(shown["replicas"]) > 1
            try:
                FollowedLogs(all_to_come, LinePrinter(several, as_json, raw, timestamps)).follow()
                waiting.finish()
            except KeyboardInterrupt:
                raise typer.Exit(0) from None  # Ctrl-C ends the output. The run continues.
        else:
            readers = listed()
            print_logs(readers, LinePrinter(len(readers) > 1, as_json, raw, timestamps))
    if not all_there:
        raise typer.Exit(3)


@app.command("stop")
def stop(
    context: typer.Context,
    run_id: Annotated[str, ID],
    force: Annotated[bool, typer.Option("--force", help="Kill it at once, without its grace period.")] = False,
    as_json: Json = False,
) -> None:
    """Stop a run on all its hosts, and wait for its end.

    Exit code 1: it had already ended.

    Example: torchyard runs stop last
    """
    chosen = command_context(context)
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        run = find(chosen, fleet, run_id)
        link = link_to_primary(fleet, run)
        shown = show_run(run, link)
        _require_alive(shown)
        try:
            stop_run(run, link, force=force)
        except AgentRefused as refusal:
            if refusal.code == "run_over":
                _require_alive(show_run(run, link))
            raise
        remark(f"Stopping {run.run_id} …")
        ended = _wait_for_the_end(run, link, fleet)
        if shown["state"] == "waiting":
            free_prepared(run, links_of(fleet, run)[0].values())
        record_end(history_of(chosen), ended)
        sync_calendar(chosen, fleet)  # The synchronisation releases or shortens the run's booking.
    if as_json:
        print_json({"run_id": run.run_id, "state": ended["state"], "reason": ended["reason"]})
    else:
        say(f"run {run.run_id} {ended['state']}{': ' + ended['reason'] if ended['reason'] else ''}")


@app.command("restart")
def restart(
    context: typer.Context,
    run_id: Annotated[str, ID],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once the run has started.")] = False,
    book: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Book its GPUs for this length, like 4h, until it ends.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME", help="Send this secret with a run that another computer launched."),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin at the first step, without the old run's checkpoints.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Answer every question with yes.")] = False,
    as_json: Json = False,
) -> None:
    """Launch an ended run again from its newest checkpoint, and follow it to its end.

    With --from-beginning it begins at the first step, and has checkpoints of its own.

    The new run has its own ID. It has the topology and the code of the old run, even if the file and the folder have
    changed since. Secrets are taken from this computer.

    For a run that was launched from another computer, the command, hosts and secrets are shown for confirmation, and
    only secrets named with --secret are sent.

    Exit code 0: the new run succeeded. 1: it failed, was stopped or could not start, or the old run has not ended.

    Example: torchyard runs restart last
    """
    from torchyard_core.app.restart_run import RestartRun
    from torchyard_core.booking.time_parser import length
    from torchyard_core.cli.commands.run import callbacks_for, launch_and_follow, view_for
    from torchyard_core.cli.interrupts import counting_interrupts
    from torchyard_core.launch.calendar_interface import BookingOptions

    chosen = command_context(context, yes=yes)
    with counting_interrupts() as interrupts, chosen.fleet(chosen.inventory().hosts) as fleet:
        ended = find(chosen, fleet, run_id)
        booking = BookingOptions(length(book) if book is not None else None)
        view = view_for(as_json=as_json)
        callbacks = callbacks_for(chosen, view, as_json=as_json)
        launch = RestartRun(
            chosen.desktop(fleet),
            ended,
            callbacks,
            secrets=secret or (),
            booking=booking,
            from_beginning=from_beginning,
        )
        launch.prepare()
        launch_and_follow(launch, chosen, fleet, view, interrupts, [], detach=detach, as_json=as_json)


@app.command("grow")
def grow(
    context: typer.Context,
    run_id: Annotated[str, ID],
    host: Annotated[str, typer.Option(metavar="NAME", help="The host of the new workers.", show_default=False)],
    replicas: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="The number of new workers.")] = 1,
    pool: Annotated[
        str | None, typer.Option(metavar="NAME", help="Their pool, where the run has several pools of workers.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add workers to a live run with `on_worker_loss: continue`.

    The new workers take parameters, optimizer state and position from the memory of another worker at a step boundary;
    the others train meanwhile. The host need not be a host of the run. Ctrl-C, and any failure before the workers have
    joined, leave the run as it was.

    Exit code 0: all of them have joined. 1: the run continues without them, or has ended. 3: a host could not be
    reached.

    Example: torchyard runs grow last --host gpu-d --replicas 2
    """
    from torchyard_core.app.grow_run import GrowRun
    from torchyard_core.cli.commands.run import callbacks_for, view_for
    from torchyard_core.cli.interrupts import counting_interrupts
    from torchyard_core.launch.progress import Cancelled

    chosen = command_context(context)
    with counting_interrupts() as interrupts, chosen.fleet(chosen.inventory().hosts) as fleet:
        run = find(chosen, fleet, run_id)
        view = view_for(as_json=False)
        callbacks = None if as_json else callbacks_for(chosen, view, as_json=False)
        growing = GrowRun(chosen.desktop(fleet), run, host, count=replicas, pool=pool, callbacks=callbacks)
        try:
            with interrupts.calling(growing.cancel):
                if as_json:
                    added = growing.run()
                else:
                    with view:
                        added = growing.run()
        except Cancelled:
            raise RunFailed(f"run {run.run_id} continues as it was.", code="interrupted") from None
    if as_json:
        about = {"step": added.step, "workers": added.workers, "planned": added.planned}
        print_json({"run_id": run.run_id, "host": host, "replicas": list(added.names), **about})
    else:
        verb = "has" if len(added.names) == 1 else "have"
        say(f"{' and '.join(added.names)} {verb} joined run {run.run_id}.")
        say(f"step {added.step}: {added.workers} of {added.planned} workers")


@app.command("fetch")
def fetch(
    context: typer.Context,
    run_id: Annotated[str, ID],
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="GLOB",
            help="Files of the run, like 'outputs/*.pt' [default: outputs, logs and what the run changed]. "
            "With --model, the file to write.",
            show_default=False,
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Target, with a folder per host [default: ./ID]; with --model, the file."),
    ] = None,
    model: Annotated[
        bool, typer.Option("--model", help="Only the model of the newest checkpoint, as one file [default: ID.pt].")
    ] = False,
    step: Annotated[
        int | None, typer.Option(min=0, help="With --model: the checkpoint of this step.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --model: replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Download a run's outputs from its hosts, or its model.

    With --model, the file contains the model's state_dict, which torch.load reads. A sharded model is put together by
    the host that has the checkpoint.

    Example: torchyard runs fetch last 'outputs/*.pt' -o models

    Example: torchyard runs fetch last --model model.pt
    """
    chosen = command_context(context)
    if model:
        if pattern and output is not None:
            raise UsageError(f"--model writes one file, and {pattern} and {output} are two.", code="two_files")
        named = output or (Path(pattern) if pattern else None)
        _fetch_model(chosen, run_id, named, step, force=force, as_json=as_json)
        return
    if step is not None or force:
        raise UsageError(f"{'--step' if step is not None else '--force'} needs --model.", code="needs_model")
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        run = find(chosen, fleet, run_id)
        target = output or Path(run.run_id)
        links, all_there = links_of(fleet, run)
        written, errors = _fetch(fleet, run, pattern, target, links)
    for error in errors:
        remark(f"torchyard: {error.sentence()}")
    if as_json:
        print_json({"run_id": run.run_id, "folder": str(target), "files": [str(path) for path in written]})
    else:
        for path in written:
            say(str(path))
    if errors or not all_there:
        raise typer.Exit(max([error.exit_code for error in errors], default=3))
    if not written:
        wanted = f"that matches {pattern}" if pattern else "to bring home"
        raise RunFailed(f"run {run.run_id} has no file {wanted}.", code="no_files")


def _fetch_model(
    chosen: CommandContext, run_id: str, named: Path | None, step: int | None, *, force: bool, as_json: bool
) -> None:
    """Downloads the model of a checkpoint to one file."""
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        run = find(chosen, fleet, run_id)
        file = target_of(named, run.run_id)
        if not force:
            require_absent(file)
        links, errors = links_of_run(fleet, run)
        sources = model_sources(run, history_of(chosen).load(run.run_id), links, fleet.interpreters(links))
        try:
            model = find_model(run, sources, links, step)
        except RunFailed:
            if errors:  # A host that does not answer may be the one that has the checkpoint.
                for error in errors.values():
                    remark(f"torchyard: {error.sentence()}")
            raise
        if model.newer_incomplete:
            remark(f"torchyard: {model.newer_incomplete} The model is that of step {model.step}.")
        if model.is_sharded:
            remark(f"{model.host} puts the model of step {model.step} together …")
        with progress_bars() as bars:
            task = None if bars is None else bars.add_task(model.host, total=None)

            def note(host: str, done: int, total: int) -> None:
                if bars is not None and task is not None:
                    bars.update(task, completed=done, total=total)

            try:
                size = fetch_model(run.run_id, model, sources[model.host], file, links[model.host], note)
            except OSError as error:
                message = f"{error.filename or file} cannot be written: {error.strerror}."
                raise TorchyardError(message, code="unwritable", hint="Name another file with -o.") from error
    if as_json:
        print_json({"run_id": run.run_id, "step": model.step, "host": model.host, "file": str(file), "bytes": size})
    else:
        say(str(file))


def _fetch(
    fleet: Fleet, run: KnownRun, pattern: str, target: Path, links: dict[str, DaemonClient]
) -> tuple[list[Path], list[TorchyardError]]:
    """Downloads files from all hosts in parallel. Returns the written files and the errors."""
    files, problems = list_files(run.run_id, pattern, run.hosts, links)
    with progress_bars() as bars:
        tasks = {} if bars is None else {host: bars.add_task(host, total=None) for host in files}

        def note(host: str, done: int, total: int) -> None:
            if bars is not None:
                bars.update(tasks[host], completed=done, total=total)

        def one(host: str) -> list[Path] | TorchyardError:
            try:
                return fetch_files(run.run_id, files[host], target, links[host], note)
            except TorchyardError as error:
                return error
            except OSError as error:
                place = error.filename or target
                message = f"{place} cannot be written: {error.strerror}."
                return TorchyardError(message, code="unwritable", hint="Name another folder with -o.")

        found = fleet.each(files, one)
    whole = [path for answer in found.values() if isinstance(answer, list) for path in answer]
    written = [target / path.relative_to(target.resolve()) for path in whole]
    return written, [*problems.values(), *(one for one in found.values() if isinstance(one, TorchyardError))]


def _wait_for_the_end(run: KnownRun, link: DaemonClient, fleet: Fleet) -> dict[str, Any]:
    """Waits for the run's last event and returns it.

    Raises RunFailed after STOP_WITHIN_S, or AgentFailed if the connection to the primary's host is lost.
    """
    follower = Follower(run.run_id, link, lambda host: fleet.link(host, install=False))
    reason = ""
    for event in follower.events(STOP_WITHIN_S):
        if event is not None and event["event"] == "run_state" and event["state"] == "stopping":
            if reason and event.get("reason", reason) != reason:
                # The reason differs from the previous one only if it names processes that could not be killed.
                remark(f"{event['reason']}.")
            reason = event.get("reason", reason)
        if event is not None and event["event"] == "run_ended":
            return event
        if event is not None and event["event"] == "connection" and event["state"] == "lost":
            raise AgentFailed(event["host"], f"the connection to {event['host']} was lost; it was asked to stop.")
    message = f"run {run.run_id} has not ended within {STOP_WITHIN_S:.0f} s."
    raise RunFailed(message, code="still_stopping", hint=StopRun(run.run_id, ("--force",)))


def _require_alive(shown: dict[str, Any]) -> None:
    if is_over(shown["state"]):
        reason = f" ({shown['reason']})" if shown["reason"] else ""
        raise RunFailed(f"run {shown['run_id']} is over: it {_PAST[shown['state']]}{reason}.", code="run_over")


_PAST = {"succeeded": "succeeded", "failed": "failed", "stopped": "was stopped"}


def _state(run: KnownRun) -> str:
    return f"{run.state} (as of {since(run.as_of)})" if run.is_stale else run.state
