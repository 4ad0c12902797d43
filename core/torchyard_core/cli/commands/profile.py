"""`torchyard profile`: measures the parts of a script's steps, for `torchyard advise`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.atomic_write import write_atomically
from torchyard_core.cli.commands.run import answer, view_for
from torchyard_core.cli.context import command_context
from torchyard_core.cli.file_or_stdin import FILE, SET, topology_of
from torchyard_core.cli.interrupts import counting_interrupts
from torchyard_core.cli.output import Json, print_json, remark, table
from torchyard_core.errors import UsageError

if TYPE_CHECKING:
    from torchyard_core.advisor.profile import Profile

HEADINGS = ("HOST", "KIND", "BATCH", "STEP", "FORWARD", "BACKWARD", "OPTIMIZER", "OTHER", "GRADIENTS", "MEMORY")


def profile(
    context: typer.Context,
    file: Annotated[Path, FILE],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Measure on this host [default: one of each kind]. Repeatable."),
    ] = None,
    set_: Annotated[list[str] | None, SET] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the profile to this file, for a repository.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Answer every question with yes.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the parts of the script's steps on one host of each kind, for at most a minute on each.

    The script runs alone and unchanged, and is ended after enough steps: the code after its training loop is not run.
    With `cluster.loader`, half and a quarter of its batches are measured too. A script that does not call distribute()
    is measured as a black box.

    The profile is kept on this computer, and used by `torchyard advise`.

    Example: torchyard profile examples/digits/three-hosts.yaml --host gpu-a -o profile.json
    """
    from torchyard_core.app.launch_run import LaunchCallbacks
    from torchyard_core.app.profile_script import ProfileScript

    chosen = command_context(context, yes=yes)
    with counting_interrupts() as interrupts:
        source = topology_of(file).with_overrides(set_ or [])
        view = view_for(as_json=False)
        with chosen.fleet(chosen.inventory().hosts) as fleet:
            callbacks = LaunchCallbacks(
                on_host_error=lambda error: remark(f"torchyard: {error.sentence()}"),
                ask=lambda question: answer(question, chosen, view, as_json=as_json),
            )
            measuring = ProfileScript(chosen.desktop(fleet), source, host or (), callbacks, remark)
            with interrupts.calling(measuring.cancel):
                profiles = measuring.run()
    if output is not None:
        if len(profiles) > 1:
            raise UsageError(
                f"there are {len(profiles)} profiles, of hosts of different kinds, for one file.",
                code="usage",
                hint="Choose one with --host.",
            )
        write_atomically(output, profiles[0].as_text())
    for found in profiles:
        if found.black_box:
            remark(
                f"{found.program} does not call distribute(), so it was measured as a black box: whole steps and "
                f"optimizer. Its trainers exchange gradients of {_gradients(found)} in each step."
            )
    if as_json:
        print_json([found.model_dump(mode="json") for found in profiles])
    else:
        table(HEADINGS, [row for found in profiles for row in _rows(found)])


def _rows(profile: Profile) -> list[list[str]]:
    from torchyard_core.formatting import seconds, size

    rows = []
    for number, each in enumerate(profile.sizes):
        parts = (each.step, each.forward, each.backward, each.optimizer, each.other)
        times = [f"{seconds(part.mean)} ±{seconds(part.spread)}" for part in parts]
        if profile.black_box:
            times[1:3] = ["-", "-"]
        whole = [_gradients(profile), size(profile.peak_bytes)] if number == 0 else ["", ""]
        names = [profile.host, profile.host_kind] if number == 0 else ["", ""]
        rows.append([*names, "-" if each.batch is None else str(each.batch), *times, *whole])
    return rows


def _gradients(profile: Profile) -> str:
    from torchyard_core.formatting import size

    return size(profile.model_bytes)
