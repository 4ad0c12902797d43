"""`torchyard sweeps`: sweeps that were started, and their trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchyard_core.app.run_links import link_to_primary, reach
from torchyard_core.app.team_studies import TeamStudies
from torchyard_core.cli.commands import runs
from torchyard_core.cli.context import CommandContext, command_context
from torchyard_core.cli.file_or_stdin import text_of
from torchyard_core.cli.output import Json, print_document, print_json, remark, say, table
from torchyard_core.cli.run_lookup import find, history_of
from torchyard_core.cli.study_updates import share_study
from torchyard_core.cli.views.sweep_results import best_text, trials_text
from torchyard_core.errors import AgentMissing, AgentRefused, HostError, RunFailed, TorchyardError, UsageError
from torchyard_core.formatting import counted, since
from torchyard_core.launch.runs.known_runs import KnownRun, ask_run, list_runs, show_run
from torchyard_core.launch.runs.sweep_copies import SweepCopies
from torchyard_core.sweeps.trial_table import SweepTable, Trial, topology_of_trial

if TYPE_CHECKING:
    from torchyard_agent.protocol.sweep_messages import ParameterValue
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_core.interop.remarks import Remark

app = typer.Typer(
    help="Sweeps that were started: list, show, stop, resume, best; import, export.", no_args_is_help=True
)
LIST_SWEEPS = "'torchyard sweeps list' shows all sweeps."
ID = typer.Argument(metavar="ID", help="The ID of the sweep's run, its beginning or end, or its name.")
OUTPUT = typer.Option("-o", "--output", metavar="PATH", help="Write a file; default: stdout.")


@app.command("list")
def list_all(context: typer.Context, as_json: Json = False) -> None:
    """List the sweeps that are known to the hosts and to this computer, newest first.

    Exit code 3: a host could not be reached; its sweeps are listed with their last known state.

    Example: torchyard sweeps list
    """
    chosen = command_context(context)
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        links, errors = reach(fleet, fleet.listing)
        known = list_runs(links, history_of(chosen), lambda problem: remark(f"torchyard: {problem.sentence()}"))
        found = [run for run in known if run.is_sweep]
        tables = {run.run_id: _table(chosen, fleet, run)[0] for run in found}
    for error in errors.values():
        remark(f"torchyard: {error.sentence()}")
    if as_json:
        print_json([{**run.to_json(), "trials": _results(tables[run.run_id])} for run in found])
    elif found:
        rows = [
            [run.run_id, run.name, run.state, since(run.submitted), *_cells(tables[run.run_id]), run.reason]
            for run in found
        ]
        table(("ID", "NAME", "STATE", "SUBMITTED", "TRIALS", "FAILED", "INTERRUPTED", "BEST", "REASON"), rows)
    else:
        say("No sweeps are known.")
    if any(not isinstance(error, AgentMissing) for error in errors.values()):
        raise typer.Exit(3)


@app.command("show")
def show(context: typer.Context, run_id: Annotated[str, ID], as_json: Json = False) -> None:
    """Show a sweep with its trials, the best one so far, and the importance of its parameters.

    Also copies the study to this computer: `optuna-dashboard sqlite:///FILE` opens the file that is named. If a team's
    database holds the calendar, the study is copied there, too.

    Exit code 3: its primary's host could not be reached; the last known state is shown.

    Example: torchyard sweeps show last
    """
    chosen = command_context(context)
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        run = _find(chosen, fleet, run_id)
        found, error = _table(chosen, fleet, run)
        if found is None and error is None:
            of_run = run.run_id, run.name, run.state, _recorded(chosen, fleet, run, "sweep"), run.restarted_from
            found = SweepCopies(chosen.home.sweeps).table_before_trials(*of_run)
    if found is None:
        raise error or RunFailed(f"the search of sweep {run.run_id} cannot be read by this version.", code="no_search")
    study, shared = SweepCopies(chosen.home.sweeps).study_file(run.run_id), TeamStudies(chosen.home)
    share_study(shared, found)
    team = shared.url_of_copy(run.run_id)
    if as_json:
        about = {"run": run.to_json(), "study_file": str(study) if study.exists() else None, "team_study": team or None}
        print_json({**found.to_json(), **about, "fresh": error is None})
    else:
        _print(found, run, study, team)
    if error is not None:
        remark(f"torchyard: {error.sentence()} This is what was known here.")
        raise typer.Exit(error.exit_code)


@app.command("stop")
def stop(
    context: typer.Context,
    run_id: Annotated[str, ID],
    trial: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Stop only this trial, which then counts as failed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Kill it at once, without its grace period.")] = False,
    as_json: Json = False,
) -> None:
    """Stop a sweep with all its trials, or one trial, and wait for its end.

    Exit code 1: it had already ended.

    Example: torchyard sweeps stop last --trial 3
    """
    chosen = command_context(context)
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        run = _find(chosen, fleet, run_id)
        stopped = run.run_id
        if trial is not None:
            found, error = _table(chosen, fleet, run)
            if error is not None:
                raise error
            chosen_trial = _trial(found, trial, run)
            if not chosen_trial.can_be_stopped:
                message = f"trial {trial} of sweep {run.run_id} is not running: it is {chosen_trial.state}."
                raise RunFailed(message, code="run_over")
            stopped = chosen_trial.run_id
    runs.stop(context, stopped, force=force, as_json=as_json)


@app.command("best")
def best(
    context: typer.Context,
    run_id: Annotated[str, ID],
    trial: Annotated[str | None, typer.Option(metavar="NUMBER", help="A trial other than the best one.")] = None,
    output: Annotated[Path | None, OUTPUT] = None,
    as_json: Json = False,
) -> None:
    """Print the topology of the best trial, with its parameters in the arguments.

    Exit code 1: no trial has completed yet.

    Example: torchyard sweeps best last -o best.yaml
    """
    from torchyard_core.atomic_write import write_atomically
    from torchyard_core.topology.file import dump, topology_from_text

    chosen = command_context(context)
    with chosen.fleet(chosen.inventory().hosts) as fleet:
        run = _find(chosen, fleet, run_id)
        found, error = _table(chosen, fleet, run)
        text = _recorded(chosen, fleet, run, "topology")
    if error is not None:
        remark(f"torchyard: {error.sentence()} This is what was known here.")
    wanted = _trial(found, trial, run) if trial is not None else found.best if found is not None else None
    if wanted is None:
        raise RunFailed(f"no trial of sweep {run.run_id} has completed.", code="no_best")
    topology = topology_from_text(text, run.name).topology
    if topology is None:
        raise RunFailed(f"the topology of sweep {run.run_id} cannot be read by this version.", code="no_topology")
    document = dump(topology_of_trial(topology, wanted))
    if output is not None:
        write_atomically(output, document)
    if as_json:
        answer = {"trial": wanted.trial, "value": wanted.value, "params": dict(wanted.params), "topology": document}
        print_json(answer)
    elif output is None:
        print_document(document)
    else:
        say(f"trial {wanted.trial} was written to {output}")


@app.command("resume")
def resume(
    context: typer.Context,
    run_id: Annotated[str, ID],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once the sweep has started.")] = False,
    book: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Book its GPUs for this length, like 4h, until it ends.")
    ] = None,
    new_code: Annotated[
        bool, typer.Option("--new-code", help="Accept that the files of the working folder have changed.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Answer every question with yes.")] = False,
    as_json: Json = False,
) -> None:
    """Continue an ended sweep, with its study, until it has all its trials.

    Trials that were interrupted when the sweep ended are run again, as new trials. The sweep continues as a run of its
    own, and must have been started from this computer.

    Exit code 0: all trials have ended. 1: the sweep failed, was stopped or could not start, or has not ended yet.

    Example: torchyard sweeps resume last
    """
    from torchyard_core.app.resume_sweep import resume_sweep
    from torchyard_core.cli.commands.run import booking_options, callbacks_for
    from torchyard_core.cli.commands.sweep import launch_and_follow_sweep, view_for_sweep
    from torchyard_core.cli.interrupts import counting_interrupts

    chosen = command_context(context, yes=yes)
    with counting_interrupts() as interrupts, chosen.fleet(chosen.inventory().hosts) as fleet:
        run = _find(chosen, fleet, run_id)
        view = view_for_sweep(as_json=as_json)
        launch = resume_sweep(
            chosen.desktop(fleet),
            run,
            _table(chosen, fleet, run)[1],
            callbacks_for(chosen, view, as_json=as_json),
            booking=booking_options(chosen, book, None, None),
            new_code=new_code,
        )
        launch.prepare()
        launch_and_follow_sweep(*(launch, chosen, fleet, view, interrupts, []), detach=detach, as_json=as_json)


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The tuning job, as YAML or JSON; - reads it from stdin.")
    ],
    output: Annotated[Path | None, OUTPUT] = None,
    as_json: Json = False,
) -> None:
    """Convert the studySpec of a Vertex AI HyperparameterTuningJob into a search file.

    What the search cannot express is listed on stderr. `torchyard import vertex` converts its trialJobSpec.

    Example: torchyard sweeps import job.yaml -o search.yaml
    """
    from torchyard_core.interop.formats import vertex_study
    from torchyard_core.sweeps.search_file import dump_search

    text, source = text_of(file)
    imported = vertex_study.read(text, source)
    document = dump_search(imported.search)
    data = imported.search.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    _print_document(document, {"search": data}, imported.remarks, source, output, as_json=as_json)


@app.command("export")
def export(
    search: Annotated[Path, typer.Argument(metavar="SEARCH", help="The search file.")],
    output: Annotated[Path | None, OUTPUT] = None,
    form: Annotated[str, typer.Option("--as", metavar="FORM", help="yaml or json.")] = "yaml",
    as_json: Json = False,
) -> None:
    """Print a search file as a Vertex AI HyperparameterTuningJob, without its trialJobSpec.

    Exit code 1: the search has errors.

    Example: torchyard sweeps export search.yaml -o job.yaml
    """
    from torchyard_core.app.launch_sweep import InvalidSearch
    from torchyard_core.interop.formats import vertex_study
    from torchyard_core.problems import has_errors
    from torchyard_core.sweeps.search_file import read_search

    read = read_search(search)
    problems = read.check()
    if read.search is None or has_errors(problems):
        raise InvalidSearch(problems, read.source)
    exported = vertex_study.write(read.search, form)
    _print_document(exported.text, {"text": exported.text}, exported.remarks, read.source, output, as_json=as_json)


def _print_document(
    text: str, answer: dict[str, Any], remarks: Sequence[Remark], source: str, output: Path | None, *, as_json: bool
) -> None:
    """Prints or writes a converted document, and its remarks on stderr."""
    from torchyard_core.atomic_write import write_atomically

    if output is not None:
        write_atomically(output, text)
    if as_json:
        print_json({**answer, "remarks": [one.to_json() for one in remarks]})
        return
    if output is None:
        print_document(text)
    for one in remarks:
        remark(one.printed(source))


def _find(chosen: CommandContext, fleet: Fleet, run_id: str) -> KnownRun:
    """Returns the sweep that `run_id` refers to; `last` is the newest sweep. Raises UsageError if there is none."""
    if run_id == "last":
        links, _ = reach(fleet, fleet.listing)
        sweeps = [run for run in list_runs(links, history_of(chosen)) if run.is_sweep]
        if not sweeps:
            raise UsageError("no sweep is known.", code="no_run", hint=LIST_SWEEPS)
        return _at_present(fleet, sweeps[0])
    try:
        run = _at_present(fleet, find(chosen, fleet, run_id))
    except UsageError as error:
        if error.code != "no_run":
            raise
        raise UsageError(error.message.replace("no run ", "no sweep ", 1), code="no_run", hint=LIST_SWEEPS) from None
    if not run.is_sweep:
        raise UsageError(f"run {run.run_id} is not a sweep.", code="no_sweep", hint=LIST_SWEEPS)
    return run


def _at_present(fleet: Fleet, run: KnownRun) -> KnownRun:
    """Returns the run in its current state or, if its primary does not answer, in the last known state."""
    if run.is_fresh:
        return run
    try:
        shown = show_run(run, link_to_primary(fleet, run))
    except (HostError, AgentRefused):
        return run
    known = {name: shown[name] for name in ("state", "reason", "as_of")}
    return replace(run, **known, is_fresh=shown["fresh"], reported_by="")


def _table(chosen: CommandContext, fleet: Fleet, run: KnownRun) -> tuple[SweepTable | None, TorchyardError | None]:
    """Returns the trials from the sweep's primary, or the last known trials and the primary's error."""
    copies = SweepCopies(chosen.home.sweeps)
    try:
        return copies.update(run.run_id, link_to_primary(fleet, run)), None
    except (HostError, AgentRefused) as error:
        return copies.table(run.run_id), error


def _recorded(chosen: CommandContext, fleet: Fleet, run: KnownRun, key: Literal["topology", "sweep"]) -> str:
    """Returns the text of the topology or the search in this computer's history, or else in the primary's record."""
    record = history_of(chosen).load(run.run_id)
    known = "" if record is None else str(getattr(record, key))
    if known:
        return known
    about: dict[str, Any] = ask_run(run, link_to_primary(fleet, run))["record"].get("record", {})
    return str(about.get(key, ""))


def _trial(found: SweepTable | None, number: str, run: KnownRun) -> Trial:
    trial = found.trial(number) if found is not None else None
    if trial is None:
        count = len(found.trials) if found is not None else 0
        message = f"sweep {run.run_id} has no trial {number}."
        raise UsageError(message, code="no_trial", hint=f"It has {counted(count, 'trial')}, from 1.")
    return trial


def _results(found: SweepTable | None) -> dict[str, Any] | None:
    return None if found is None else found.results()


def _cells(found: SweepTable | None) -> list[str]:
    if found is None:
        return ["-"] * 4
    best = found.best
    shown = "-" if best is None else f"{found.metric} {best.value:g} (trial {best.trial})"
    done = found.count("complete", "failed", "pruned")
    return [f"{done} of {found.wanted}", str(found.count("failed")), str(found.count("interrupted")), shown]


def _print(found: SweepTable, run: KnownRun, study: Path, team: str) -> None:
    say(f"{run.run_id}  {run.name}")
    results = found.results()
    if run.reason:
        say(f"{run.state}: {run.reason}")
        say(trials_text(results))
    else:
        say(f"{run.state}, {trials_text(results)}")
    if results["best"] is not None:
        say(best_text(results, found.metric))
    if found.importances:
        say("importance: " + ", ".join(f"{name} {value:.0%}" for name, value in found.importances.items()))
    if found.lost:
        say(f"lost: {', '.join(found.lost)}")
    if study.exists():
        say(f"study: {study}")
    if team:
        say(f"team's study: {team}")
    if found.trials:
        say()
        has_jobs = any(trial.job for trial in found.trials)
        job = ("JOB",) if has_jobs else ()
        headings = ("TRIAL", *job, "STATE", found.metric.upper(), *found.parameters, "HOSTS", "RUN", "CAUSE")
        table(headings, [_row(found, trial, has_jobs=has_jobs) for trial in found.trials])


def _row(found: SweepTable, trial: Trial, *, has_jobs: bool) -> list[str]:
    value = trial.value if trial.value is not None else trial.values[-1][1] if trial.values else None
    params = [_parameter(trial.params[name]) if name in trial.params else "-" for name in found.parameters]
    job = [trial.job or "-"] if has_jobs else []
    shown = "-" if value is None else f"{value:g}"
    return [trial.trial, *job, trial.state, shown, *params, " ".join(trial.hosts), trial.run_id, trial.cause]


def _parameter(value: ParameterValue) -> str:
    """Formats a parameter for the table, in which a number has at most 4 significant digits unless it is whole."""
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"
