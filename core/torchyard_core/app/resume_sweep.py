"""The use case "resume a sweep": continue the study of an ended sweep as a new run."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

from torchyard_core.app.desktop import Desktop
from torchyard_core.app.launch_run import LaunchCallbacks
from torchyard_core.app.launch_sweep import LaunchSweep
from torchyard_core.errors import RunFailed, TorchyardError
from torchyard_core.formatting import size
from torchyard_core.launch.calendar_port import BookingOptions
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.launch.runs.sweep_results import SweepCopies
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
        error: The error that prevented an update of the copy of the study, if any.
        new_code: Whether the working folder may have changed since the sweep began.

    Raises:
        TorchyardError: The sweep has not ended, its study is not known here, or another computer started it.
    """
    if error is not None:
        # If an outdated copy were used, trials that ended after it was made would be repeated.
        raise error
    record = desktop.history.load(ended.run_id)
    if record is None or not record.sweep or not record.topology:
        message = f"sweep {ended.run_id} was not started from this computer, so its working folder is not known here."
        raise RunFailed(message, code="foreign_sweep", hint="Resume it where it was started.")
    if not ended.has_ended:
        raise RunFailed(f"sweep {ended.run_id} has not ended.", code="run_alive", hint="Stop it first.")
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
        study=packed,
        same_code_as=None if new_code else record.snapshot,
        verb="sweeps",
    )
