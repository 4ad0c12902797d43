"""`torchyard run`: launches a topology and follows the run to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchyard_core.cli.context import CommandContext, command_context
from torchyard_core.cli.file_or_stdin import FILE, topology_of
from torchyard_core.cli.interrupts import Interrupts, choose_on_interrupt, counting_interrupts, raising_interrupts
from torchyard_core.cli.output import Json, discard_output, remark, say
from torchyard_core.cli.run_lookup import history_of, record_end
from torchyard_core.cli.views.run_progress import JsonView, PlainView, RunView
from torchyard_core.errors import RunFailed, TorchyardError, UsageError
from torchyard_core.text_sanitizer import printable

if TYPE_CHECKING:
    from torchyard_core.app.launch_run import LaunchCallbacks, LaunchUseCase
    from torchyard_core.cli.views.replica_logs import ChiefLog
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_core.launch.calendar_interface import BookingOptions
    from torchyard_core.launch.confirmations import Confirmation
    from torchyard_core.launch.launch import StartedRun

Event = dict[str, Any]


MAX_NAME = 100
"""Maximum length of a run's name in characters, the same as in a topology file."""


def run(
    context: typer.Context,
    file: Annotated[Path, FILE],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once the run has started.")] = False,
    name: Annotated[str | None, typer.Option(help="The run's name (default: the topology's).")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a value for this run: pools.workers.replicas=2."),
    ] = None,
    book: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Book its GPUs for this length, like 4h, until it ends.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start automatically at this time: +2h, tomorrow 9, 2026-11-23 09:00."),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Run on this cluster of the fleet file, as a job.")
    ] = None,
    booking: Annotated[
        str | None, typer.Option(metavar="ID", help="Use this booking of yours; if it has not begun, start with it.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Answer every question with yes.")] = False,
    as_json: Json = False,
) -> None:
    """Launch a topology and follow the run to its end.

    Checks the hosts, sends the working folder, starts the replicas, and shows their reports. Ctrl-C during the launch
    undoes it. During the run, Ctrl-C asks whether to stop the run or leave it running.

    GPUs that other users have booked are not used. A run with GPUs on several hosts needs a booking.

    Exit code 0: the run succeeded. 1: it failed or was stopped, or could not start. 3: a host could not be reached, or
    a cluster can never satisfy the run's request.

    Example: torchyard run examples/digits/three-hosts.yaml --set pools.workers.replicas=4
    """
    from torchyard_core.app.launch_run import LaunchRun

    chosen = command_context(context, yes=yes)
    with counting_interrupts() as interrupts:
        source = topology_of(file).with_overrides(set_ or [])
        inventory = chosen.inventory()
        wanted = booking_options(chosen, book, at, booking)
        with chosen.fleet(inventory.hosts) as fleet:
            view = view_for(as_json=as_json)
            launch = LaunchRun(
                chosen.desktop(fleet),
                source,
                callbacks_for(chosen, view, as_json=as_json),
                name=checked_name(name) if name is not None else "",
                on=on,
                booking=wanted,
                arguments=_again(file, name, set_ or [], on, detach=detach),
            )
            launch.prepare()
            remarks = [problem.printed(source.source) for problem in launch.problems]
            if names := launch.first_secrets:
                remarks.append(
                    f"This computer launches {file} as it is now for the first time; it sends the "
                    f"secret{'s' * (len(names) > 1)} {', '.join(names)} to the hosts."
                )
            launch_and_follow(launch, chosen, fleet, view, interrupts, remarks, detach=detach, as_json=as_json)


def _again(file: Path, name: str | None, settings_: Sequence[str], on: str | None, *, detach: bool) -> list[str]:
    """Returns the arguments that a suggested command needs to repeat this launch.

    The options --book, --at, --booking, -y and --json are omitted, because the suggested command sets them itself.
    """
    given = ["--name", name] if name is not None else []
    for setting in settings_:
        given += ["--set", setting]
    given += ["--on", on] if on is not None else []
    return [str(file), *given, *["-d"] * detach]


def booking_options(chosen: CommandContext, book: str | None, at: str | None, booking: str | None) -> BookingOptions:
    """Returns the options that concern the calendar. Raises Refused or UsageError if they are invalid."""
    from torchyard_core.booking.time_parser import length, moment
    from torchyard_core.cli.booking_lookup import find_booking
    from torchyard_core.launch.calendar_interface import BookingOptions

    if booking is not None and at is not None:
        raise UsageError("--booking and --at both say when it starts.", code="usage", hint="Give one of them.")
    now = datetime.now(UTC)
    start_at = moment(at, chosen.zone(), now) if at is not None else None
    if start_at is not None and start_at < now - timedelta(minutes=2):
        raise UsageError(f"--at {at}: that time is past.", code="past", hint="Leave --at out to start now.")
    if start_at is not None and start_at <= now:
        start_at = None
    used = find_booking(chosen, booking).id if booking is not None else None
    return BookingOptions(length(book) if book is not None else None, start_at, used)


def callbacks_for(chosen: CommandContext, view: RunView, *, as_json: bool) -> LaunchCallbacks:
    """Returns callbacks that show the progress of a launch in `view` and ask the user questions on the terminal."""
    from torchyard_core.app.launch_run import LaunchCallbacks

    return LaunchCallbacks(
        on_event=view.show,
        on_host_error=lambda error: remark(f"torchyard: {error.sentence()}"),
        on_calendar_error=lambda error: remark(f"torchyard: the calendar was not updated: {error.sentence()}"),
        on_unrecorded=lambda error: remark(
            f"the run could not be noted in this computer's history: {error.strerror}: {error.filename}"
        ),
        ask=lambda question: answer(question, chosen, view, as_json=as_json),
    )


def view_for(*, as_json: bool) -> RunView:
    """Returns the view for the output of a launch and its run."""
    return JsonView() if as_json else PlainView()


def launch_and_follow(
    launch: LaunchUseCase,
    chosen: CommandContext,
    fleet: Fleet,
    view: RunView,
    interrupts: Interrupts,
    remarks: list[str],
    *,
    detach: bool,
    as_json: bool,
    beside: Callable[[StartedRun], AbstractContextManager[object]] | None = None,
    complete: Callable[[StartedRun, Event], Event] = lambda started, ended: ended,
) -> None:
    """Launches a run, and follows it to its end unless `detach`.

    Args:
        beside: Returns a context manager that is entered while the run is followed.
        complete: Converts the run's last event to the event that is shown.

    Raises errors of the launch, or typer.Exit(1) if the run does not succeed or the output cannot be written.
    """
    from torchyard_core.cli.calendar_sync_messages import sync_calendar
    from torchyard_core.formatting import until
    from torchyard_core.launch.progress import Cancelled

    with view:
        for line in remarks:
            remark(line)
        try:
            with interrupts.calling(launch.cancel):
                started = launch.run()
        except Cancelled:
            raise RunFailed("the launch was undone; nothing is left on the hosts.", code="interrupted") from None
        except BrokenPipeError:
            discard_output()
            message = "the reader of this output has closed the pipe, so the launch was undone."
            raise RunFailed(message, code="unread", hint="Add --detach to start it and leave.") from None
        sync_calendar(chosen, fleet)  # The agents get the booking now, since desktops might not connect later.
        if started.reserved.start_at is not None and not as_json:
            when = until(datetime.now(UTC), started.reserved.start_at, chosen.zone())
            remark(f"It starts at {when} by itself; this computer need not be on then.")
        if detach:
            if not as_json:
                say(started.run_id)
                remark(f"Follow it with `torchyard runs logs -f {started.run_id}`.")
            return
        try:
            with beside(started) if beside is not None else nullcontext():
                ended = follow(started, fleet, view, interrupts, complete, as_json=as_json)
        except OSError as error:  # Errors of hosts are HostErrors, so an OSError concerns the command's own output.
            discard_output()
            gone = isinstance(error, BrokenPipeError)  # The program that reads the pipe has closed it, as `head` does.
            what = "The reader of this output has gone" if gone else f"This output cannot be written: {error.strerror}"
            remark(
                f"{what}. Run {started.run_id} continues: `torchyard runs show {started.run_id}` shows its state, "
                f"`torchyard runs stop {started.run_id}` stops it."
            )
            raise typer.Exit(1) from None
    if ended is not None:
        record_end(history_of(chosen), ended)
        sync_calendar(chosen, fleet)  # The synchronisation releases or shortens the run's booking.
        if ended["state"] != "succeeded":
            raise typer.Exit(1)


def answer(question: Confirmation, chosen: CommandContext, view: RunView, *, as_json: bool) -> bool | None:
    """Returns the user's answer to a question of the launch: true with -y, None with --json or without a terminal.

    Ctrl-C cancels the launch.
    """
    if chosen.yes:
        return True
    if as_json or not sys.stdin.isatty():
        return None
    with view.paused(), raising_interrupts():
        remark(f"{question.message[:1].upper()}{question.message[1:]}")
        return typer.confirm(printable(question.question), err=True)


def checked_name(name: str) -> str:
    """Returns the name given on the command line. Raises UsageError if it is empty, too long or not printable."""
    if 0 < len(name) <= MAX_NAME and name.isprintable():
        return name
    shown = ascii(name if len(name) <= 20 else name[:20] + "…")
    raise UsageError(
        f"--name must have 1 to {MAX_NAME} printable characters, not {shown}.", code="bad_name", hint="Choose another."
    )


def follow(
    started: StartedRun,
    fleet: Fleet,
    view: RunView,
    interrupts: Interrupts,
    complete: Callable[[StartedRun, Event], Event],
    *,
    as_json: bool,
) -> Event | None:
    """Shows the run until its end. Returns its last event, or None if the user left the run running."""
    from torchyard_core.cli.views.replica_logs import ChiefLog

    chief = started.shown_replica
    log = ChiefLog(started.run_id, chief, started.primary, fleet.link, lambda line: view.print_log(chief, line))
    with log:
        ended = follow_events(started, fleet, view, interrupts, log, as_json=as_json)
    log.raise_failure()
    if ended is not None:
        ended = complete(started, ended)
        view.show(ended)
    return ended


def follow_events(
    started: StartedRun, fleet: Fleet, view: RunView, interrupts: Interrupts, log: ChiefLog, *, as_json: bool
) -> Event | None:
    """Shows all events of a run except its last one, and returns the last one; None if the user left the run running.

    Raises RunFailed if the events end without an end of the run.
    """
    from torchyard_core.launch.runs.follower import Follower

    others = [link for host, link in started.links.items() if host != started.primary.host]
    follower = Follower(started.run_id, started.primary, fleet.link, others)
    stopping = False
    clock = JournalClock()
    for event in follower.events():
        if event is not None:
            clock.note(event)
            if event["event"] == "run_ended":
                return with_desktop_timings(event, started.timings, clock)
            view.show(event)
        log.raise_failure()
        if interrupts.take():
            stops_at_once = stopping or as_json or not sys.stdin.isatty()
            choice = "stop" if stops_at_once else choose_on_interrupt(view, follower.view)
            if choice == "detach":
                log.leave()
                remark(f"The run goes on. Follow it with `torchyard runs logs -f {started.run_id}`.")
                return None
            if choice == "stop":
                request_stop(started, fleet, force=stopping)
                stopping = True
                interrupts.take()
    raise RunFailed(f"the journal of run {started.run_id} ended without an end of the run.", code="journal")


def request_stop(started: StartedRun, fleet: Fleet, *, force: bool) -> None:
    """Asks the primary to stop the run. Prints an error of the request without raising it."""
    from torchyard_core.launch.runs.known_runs import stop_request

    try:
        link = fleet.link(started.primary.host)
        link.call("run.stop", stop_request(started.run_id, force=force, how="with Ctrl-C"))
        remark("Stopping. Ctrl-C again kills what is left at once." if not force else "Killing what is left.")
    except TorchyardError as error:
        remark(f"The stop could not be requested: {error.sentence()}")


class JournalClock:
    """The times of a run's start, first step and end since the first entry of its journal, in seconds.

    These times replace the times in the journal's last entry in two cases: the keeper that wrote the entry did not see
    the run's first start, because Slurm interrupted the run; or no keeper wrote the entry, because the run is that of a
    sweep on a cluster.
    """

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.was_interrupted = False
        self._first: datetime | None = None

    def note(self, event: Event) -> None:
        """Notes the time of an event. Events that are not entries of the journal are ignored."""
        if "epoch" not in event:
            return
        try:
            at = datetime.fromisoformat(event["time"]).astimezone(UTC)
        except ValueError:
            return
        self._first = self._first or at
        passed = round((at - self._first).total_seconds(), 3)
        if event["event"] == "run_state" and event["state"] == "running":
            self.times.setdefault("started_s", passed)
        elif event["event"] == "report" and event.get("first"):
            self.times.setdefault("first_step_s", passed)
        elif event["event"] == "interrupted":
            self.was_interrupted = True
        self.times["ended_s"] = passed


def with_desktop_timings(ended: Event, own: dict[str, float], clock: JournalClock) -> Event:
    """Returns the run's last event with its times relative to the start of the launch."""
    timings: dict[str, float | None] = dict(own)
    submitted = own["submitted_s"]
    del timings["submitted_s"]
    for name, known in ended.get("timings", {}).items():
        seconds = clock.times.get(name) if known is None or clock.was_interrupted else known
        timings[name] = None if seconds is None else round(submitted + seconds, 3)
    return {name: value for name, value in ended.items() if name not in ("epoch", "seq")} | {"timings": timings}
