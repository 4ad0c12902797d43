"""Chooses the cause among failures that happened almost simultaneously. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from torchyard_agent.keeper.decisions.state import Failure, Step
from torchyard_agent.protocol.run_states import RunState


def end_with_cause(step: Step) -> None:
    """Chooses the cause of the run's end from the collected failures, and records it."""
    step.set(chosen=True)
    step.record_run(RunState.STOPPING, most_likely_cause(step, step.run.failures).sentence)


def most_likely_cause(step: Step, failures: Iterable[Failure]) -> Failure:
    """Returns the most likely cause among `failures`.

    The order of preference is: a failure that is not a connection error, a recent failure of a server, the loss of
    a host, and the first connection error.
    """
    first = min(failures, key=lambda failure: failure.consequence)
    if not first.consequence:
        return first
    if roots := step.recent_roots():
        return roots[0].failure._replace(curable=True)
    silent = [host.name for host in step.run.hosts if not host.connected and not host.swept and not host.lost]
    return Failure(f"{silent[0]} was lost: the connection to its keeper broke") if silent else first
