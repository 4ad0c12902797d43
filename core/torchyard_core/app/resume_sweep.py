"""The use case "resume a sweep": continue the study of an ended sweep as a new run."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

from torchyard_agent.protocol.run_states import RunState
from torchyard_core.app.desktop import Desktop
from torchyard_core.app.launch_run import LaunchCallbacks
from torchyard_core.app.launch_sweep import LaunchSweep
from torchyard_core.app.run_links import link_to_primary
from torchyard_core.errors import AgentRefused, RunFailed, TorchyardError
from torchyard_core.formatting import size
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun, ask_run, is_over, list_runs
from torchyard_core.launch.runs.sweep_copies import SweepCopies
from torchyard_core.launch.sweeps.sweep_launch import EndedSweep
from torchyard_core.next_steps import Advice, ResumeSweep, ShowSweep, StopSweep
from torchyard_core.sweeps.search_file import search_from_text
from torchyard_core.topology.file import topology_from_text

MAX_STUDY = 4 * 1024 * 1024
"""Maximum size in bytes of a compressed study, which is sent in one message."""


def resume_sweep(
    desktop: Desktop,
    ended: KnownRun,
    error: TorchyardError | None,
    callbacks: LaunchCallbacks | None = None,
    *,
    booking: BookingOptions | None = None,
    new_code: bool = False,
) -> LaunchSweep:
    """Returns the launch that continues a sweep. The copy of its study on this computer must be up to date.

    Args:
        error: The error that prevented an update of the copy of the study, or None.
        new_code: Whether to accept files of the working folder that have changed since the sweep began.

    Raises:
        TorchyardError: Another computer started the sweep, the sweep has not ended, all of its trials are done, another
            sweep continues it already, its study is too large, or `error` is given.
    """
    record = desktop.history.load(ended.run_id)
    if record is None or not record.sweep or not record.topology:
        message = f"sweep {ended.run_id} was not started from this computer, so its working folder is not known here."
        raise RunFailed(message, code="foreign_sweep", hint="Resume it where it was started.")
    next_one = _continuation(desktop, ended.run_id)
    if next_one is not None:
        # If this sweep were resumed again, its interrupted trials would be run twice.
        hint = ResumeSweep(next_one.run_id) if is_over(next_one.state) else ShowSweep(next_one.run_id)
        message = f"sweep {ended.run_id} was continued as sweep {next_one.run_id}."
        raise RunFailed(message, code="sweep_continued", hint=hint)
    if error is not None:
        # If an outdated copy were used, trials that ended after it was made would be repeated.
        raise error
    if not ended.has_ended:
        hints: Advice = ("There is nothing to resume.", ShowSweep(ended.run_id), StopSweep(ended.run_id))
        if ended.state == RunState.STOPPING.value:
            hints = ("Resume it once it has ended.", ShowSweep(ended.run_id))
        raise RunFailed(f"sweep {ended.run_id} is {ended.state}.", code="run_alive", hint=hints)
    copies = SweepCopies(desktop.home.sweeps)
    table, study = copies.table(ended.run_id), copies.study(ended.run_id)
    packed = "" if study is None else base64.b64encode(zlib.compress(study, 9)).decode()
    if len(packed) > MAX_STUDY:
        message = f"the study of sweep {ended.run_id} is too large to be continued: {size(len(packed))}."
        raise RunFailed(message, code="study_too_large", hint="Start a new sweep with a narrower search.")
    if table is not None and table.count("complete", "failed", "pruned") >= table.wanted:
        message = f"sweep {ended.run_id} has all its {table.wanted} trials."
        raise RunFailed(message, code="sweep_complete", hint="Start a new sweep for more trials.")
    folder = Path(record.topology_file).absolute().parent if record.topology_file else Path.cwd()
    return LaunchSweep(
        desktop,
        topology_from_text(record.topology, record.topology_file or record.name, folder),
        search_from_text(record.sweep, f"the search of sweep {ended.run_id}"),
        callbacks,
        name=record.name,
        booking=booking,
        arguments=("resume", ended.run_id),
        ended=EndedSweep(
            ended.run_id,
            packed,
            0 if table is None else table.count("complete", "failed", "pruned"),
            None if new_code else record.code_root,
        ),
        verb="sweeps",
    )


def _continuation(desktop: Desktop, run_id: str) -> RunRecord | None:
    """Returns the newest sweep in the chain of sweeps that continue the sweep `run_id`, or None if there is none.

    Raises HostError if it is not known whether a sweep of the chain has begun.
    """
    newest_first = desktop.history.records()
    by_predecessor = {record.restarted_from: record for record in reversed(newest_first) if record.sweep}
    found = None
    while (record := by_predecessor.pop(run_id, None)) is not None:
        if not record.is_confirmed and not _has_begun(desktop, record):
            break
        found, run_id = record, record.run_id
    return found


def _has_begun(desktop: Desktop, record: RunRecord) -> bool:
    """Asks the primary whether it knows a run whose start was not confirmed to this desktop."""
    run = next(run for run in list_runs({}, desktop.history) if run.run_id == record.run_id)
    try:
        ask_run(run, link_to_primary(desktop.fleet, run))
    except AgentRefused as refusal:
        if refusal.code == "no_run":
            return False
        raise
    return True
