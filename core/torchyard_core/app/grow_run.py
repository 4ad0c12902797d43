"""The use case "add workers to a live run": starts workers on one host with the run's topology and code."""

from __future__ import annotations

from torchyard_core.app.desktop import Desktop
from torchyard_core.app.launch_run import LaunchCallbacks
from torchyard_core.app.run_links import links_of_run
from torchyard_core.errors import RunFailed, UsageError
from torchyard_core.launch.growth import AddedWorkers, Growth
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun, ask_run, is_over, run_details
from torchyard_core.next_steps import AddHost


class GrowRun:
    """Adds workers to a live run that this desktop has launched.

    `cancel` undoes the addition, and may be called on any thread.
    """

    def __init__(
        self,
        desktop: Desktop,
        run: KnownRun,
        host: str,
        *,
        count: int = 1,
        pool: str | None = None,
        callbacks: LaunchCallbacks | None = None,
    ):
        """Creates the use case.

        Args:
            host: The host on which the workers are started. It need not be a host of the run.
            count: The number of workers.
            pool: The name of the pool of workers to extend. It may be None if the run has a single pool of workers.
        """
        self._desktop = desktop
        self._run = run
        self._host = host
        self._count = count
        self._pool = pool
        self._callbacks = callbacks or LaunchCallbacks()
        self._growth: Growth | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Asks `run()` to stop and to leave the run as it was. Has no effect once the workers have joined the run."""
        self._is_cancelled = True
        if self._growth is not None:
            self._growth.cancel()

    def run(self) -> AddedWorkers:
        """Adds the workers, waits until they have joined the run, and records them.

        Raises:
            Cancelled, TorchyardError: Not all workers joined. The run continues as before.
        """
        desktop, run, callbacks = self._desktop, self._run, self._callbacks
        if run.primary not in desktop.fleet.hosts and desktop.fleet.knows(run.primary):
            message = f"run {run.run_id} is on a cluster, where Slurm allocates all nodes of its job at its start."
            hint = "Launch its topology with more replicas, or another run beside it."
            raise UsageError(message, code="on_cluster", hint=hint)
        own = self._own_record()
        if self._host not in desktop.fleet.hosts:
            message = f"the fleet has no host `{self._host}`."
            raise UsageError(message, code="unknown_host", hint=AddHost(self._host))
        links, errors = links_of_run(desktop.fleet, run)
        if run.primary in errors:
            raise errors[run.primary]
        for error in errors.values():
            callbacks.on_host_error(error)
        shown = ask_run(run, links[run.primary])
        state = run_details(run, shown)["state"]
        if is_over(state):
            raise RunFailed(f"run {run.run_id} is over: it has {state}.", code="run_over")
        self._growth = growth = Growth(
            *(own, shown, self._host, self._count, self._pool, desktop.fleet, dict(links)),
            *(callbacks.on_event, callbacks.on_check, callbacks.on_progress),
        )
        if self._is_cancelled:
            growth.cancel()
        try:
            return growth.run()
        finally:
            if growth.changes:
                try:
                    desktop.history.update(run.run_id, **growth.changes)
                except OSError as error:
                    callbacks.on_unrecorded(error)

    def _own_record(self) -> RunRecord:
        own = self._desktop.history.load(self._run.run_id)
        if own is None or not own.tells_what_ran:
            message = f"this computer did not launch run {self._run.run_id}, so it does not add hosts to it."
            raise RunFailed(message, code="foreign_run", hint="Add them from the computer that launched it.")
        return own
