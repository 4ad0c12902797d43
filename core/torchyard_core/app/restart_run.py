"""The use case "restart a run": launch an ended run again with its recorded code, optionally from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchyard_core.app.desktop import Desktop
from torchyard_core.app.launch_run import LaunchCallbacks, LaunchUseCase
from torchyard_core.app.run_links import links_of_run
from torchyard_core.errors import RunFailed
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.confirmations import settle
from torchyard_core.launch.restart import allowed_secrets, confirm_foreign_run, confirm_foreign_secrets, load_ended_run
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.next_steps import ResumeSweep, WriteTrial


class RestartRun(LaunchUseCase):
    """Launches an ended run as a new run with the same topology and code."""

    def __init__(
        self,
        desktop: Desktop,
        ended: KnownRun,
        callbacks: LaunchCallbacks | None = None,
        *,
        secrets: Sequence[str] | None = None,
        booking: BookingOptions | None = None,
        from_beginning: bool = False,
    ):
        """Creates the use case.

        Args:
            secrets: Names of the secrets to send with a run that was launched from another desktop. None means that the
                user is asked.
            from_beginning: Whether to begin at the first step instead of the newest checkpoint.
        """
        super().__init__(desktop, callbacks, booking)
        self._ended = ended
        self._secrets = secrets
        self._from_beginning = from_beginning
        self._own_record = desktop.history.load(ended.run_id)

    def prepare(self) -> None:
        """Reads the run's record from its hosts.

        Raises RunFailed if the run cannot be restarted, and HostError if a host cannot be used.
        """
        _refuse_sweeps(self._ended)
        ask = self.callbacks.ask
        links, errors = links_of_run(self.desktop.fleet, self._ended)
        for error in errors.values():
            self.callbacks.on_host_error(error)
        if not links:
            raise errors[self._ended.primary]
        again = load_ended_run(self._ended, links, self._own_record)
        again = replace(again, from_beginning=self._from_beginning)
        settle(confirm_foreign_run(again), ask)
        names = self._secrets
        if names is None:
            question = confirm_foreign_secrets(again)
            settle(question, ask)
            names = again.topology.program.secrets if question is not None else ()
        arguments = (self.topology_file or again.source.source,)
        self._make_launch(again.source, again.name, allowed_secrets(again, names), arguments, again)

    @property
    def topology_file(self) -> str:
        return self._own_record.topology_file if self._own_record is not None else ""


def _refuse_sweeps(run: KnownRun) -> None:
    """Raises RunFailed for a sweep and for a trial, which cannot be restarted like a run."""
    if run.is_sweep:
        message = f"run {run.run_id} is a sweep, which is resumed and not restarted."
        raise RunFailed(message, code="is_sweep", hint=ResumeSweep(run.run_id))
    if run.sweep_run:
        number = run.run_id.removeprefix(f"{run.sweep_run}.").partition("-")[0]
        message = f"run {run.run_id} is trial {number} of sweep {run.sweep_run}, which alone restarts its trials."
        again = WriteTrial(run.sweep_run, ("--trial", number))
        raise RunFailed(
            message, code="is_trial", hint=("To repeat it as a run of its own, launch its topology.", again)
        )
