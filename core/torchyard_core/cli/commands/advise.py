"""`torchyard advise`: the predicted speed of every topology that the fleet can run, and recommendations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.cli.context import command_context
from torchyard_core.cli.file_or_stdin import FILE, SET, topology_of
from torchyard_core.cli.output import Json, print_json, remark, say, table
from torchyard_core.errors import TorchyardError, UsageError

if TYPE_CHECKING:
    from torchyard_core.advisor.recommendation import Advice, Alternative

HEADINGS = ("TOPOLOGY", "SPEED", "80 % INTERVAL", "STEP", "COMPUTE", "EXCHANGE", "WAIT")


def advise(
    context: typer.Context,
    file: Annotated[Path, FILE],
    profile: Annotated[
        list[Path] | None,
        typer.Option("--profile", metavar="PROFILE", help="Use this profile, not this computer's. Repeatable."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of a trainer's batch [default: profiled].")] = None,
    set_: Annotated[list[str] | None, SET] = None,
    apply: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH", help="Change the file to this recommendation: fastest, fewest, now, or a strategy's name."
        ),
    ] = None,
    without_history: Annotated[
        bool, typer.Option("--without-history", help="Ignore the measurements of past runs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict the speed of every topology that the fleet can run, and recommend some. Contacts no host.

    Every strategy is considered with every number of workers, servers, reducers and worker groups that fits. The
    command needs a profile of the script, from `torchyard profile` or --profile. Strategies that change the result of
    training are listed separately. If past runs of the same files were slower or faster than predicted, the prediction
    is corrected.

    Exit code 1: there is no profile, or no feasible topology.

    Example: torchyard advise examples/digits/three-hosts.yaml --apply fewest
    """
    from torchyard_core.advisor.profile import read_profile
    from torchyard_core.app.advise import AdviceOptions, advice_as_json, advise_topology, available_hosts

    chosen = command_context(context)
    if apply is not None and str(file) == "-":
        raise UsageError("--apply changes a file, and stdin is none.", code="usage", hint="Name the file.")
    source = topology_of(file).with_overrides(set_ or [])
    inventory = chosen.inventory()
    known = chosen.known(inventory)
    options = AdviceOptions(tuple(map(read_profile, profile or ())), batch, without_history)
    available = None
    if chosen.home.settings_file.exists() or chosen.home.bookings_file.exists():
        try:
            available = available_hosts(chosen.calendar(), chosen.zone(), known)
        except TorchyardError as error:
            remark(f"torchyard: bookings are not considered: {error.sentence()}")
    advice = advise_topology(source, chosen.home, inventory, known, available, options)
    for sentence in advice.remarks:
        remark(sentence)
    if as_json:
        print_json(advice_as_json(advice))
    else:
        _print(advice)
    if apply is not None:
        _apply(file, _chosen(advice, apply))


def _print(advice: Advice) -> None:
    from torchyard_core.formatting import count

    unit = "samples/s" if advice.has_samples else "steps/s of all trainers"
    headings = (*HEADINGS, "GPUS" if advice.has_gpus else "HOSTS", "BOTTLENECK")
    was = "1 topology was" if advice.candidates == 1 else f"{advice.candidates:,} topologies were"
    say(f"{was} considered.")
    say()
    table(headings, [_row(each, advice) for each in advice.same_result])
    if advice.other_result:
        say()
        say("These change the result of training, so compare the loss too:")
        table(headings, [_row(each, advice) for each in advice.other_result])
        _print_utilisation(advice)
    say()
    if advice.current is not None:
        say(f"As it is:   {_sentence(advice.current, unit)}")
    say(f"Fastest:    {_sentence(advice.fastest, unit)}")
    say(f"Fewest:     {_sentence(advice.fewest, unit)}")
    say(f"Available:  {_sentence(advice.available, unit) if advice.available else 'no trainer fits now'}")
    if advice.next_host is not None:
        sign = "+" if advice.next_host >= 0 else "-"
        say(f"Next host:  {sign}{count(abs(advice.next_host))} {unit}")
    for note in advice.fastest.prediction.notes:
        say(note)


def _print_utilisation(advice: Advice) -> None:
    from torchyard_core.formatting import percent

    found = next((each.prediction.utilisation for each in advice.other_result if each.prediction.utilisation), None)
    if not found:
        return
    say()
    say("DiLoCo: computing as a share of a step, by wire format and `inner_steps`:")
    steps = list(next(iter(found.values())))
    rows = [[wire, *(percent(100 * by_steps[each]) for each in steps)] for wire, by_steps in found.items()]
    table(("WIRE", *map(str, steps)), rows)


def _row(alternative: Alternative, advice: Advice) -> list[str]:
    from torchyard_core.formatting import count, seconds

    prediction = alternative.prediction
    parts = (prediction.step_s, prediction.compute_s, prediction.exchange_s, prediction.wait_s)
    return [
        alternative.title,
        f"{count(prediction.samples_s)}/s",
        f"{count(prediction.low)} to {count(prediction.high)}",
        *map(seconds, parts),
        str(alternative.size),
        prediction.bottleneck,
    ]


def _sentence(alternative: Alternative, unit: str) -> str:
    from torchyard_core.formatting import count

    where = f" on {', '.join(alternative.hosts)}" if len(alternative.hosts) <= 4 else ""
    return f"{alternative.title}{where}: {count(alternative.prediction.samples_s)} {unit}"


def _chosen(advice: Advice, which: str) -> Alternative:
    """Returns the recommendation named `which`. Raises UsageError for an unknown name or a missing recommendation."""
    named = {"fastest": advice.fastest, "fewest": advice.fewest, "now": advice.available}
    named |= {each.counts.kind.value: each for each in advice.alternatives}
    if which not in named:
        raise UsageError(f"--apply {which} is no recommendation.", code="usage", hint=f"There are {', '.join(named)}.")
    found = named[which]
    if found is None:
        raise UsageError("no trainer fits on what is available now.", code="not_feasible")
    return found


def _apply(file: Path, chosen: Alternative) -> None:
    """Changes the file in one edit, which preserves its comments and the order of its keys."""
    from torchyard_core.topology.document.topology_document import TopologyDocument

    document = TopologyDocument()
    document.open(file)
    if document.value == chosen.topology:
        remark(f"{file} already has this topology: {chosen.title}.")
        return
    document.replace(chosen.topology)
    document.save()
    remark(f"{file} was changed: {chosen.title}.")
