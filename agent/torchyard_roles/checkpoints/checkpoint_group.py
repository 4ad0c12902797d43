"""The processes that save and stop together: a worker group, or a single process that trains alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchyard_roles.coordination.graceful_stop import GracefulStop
from torchyard_roles.environment import Environment
from torchyard_roles.errors import RolesError

if TYPE_CHECKING:
    import torch

    from torchyard_roles.coordination.join_store_client import JoinStore


class CheckpointGroup:
    """The group of processes with which this process saves and stops.

    Args:
        trains_alone: Whether the group consists of this process only.
    """

    def __init__(self, environment: Environment, *, trains_alone: bool) -> None:
        self._environment = environment
        self._trains_alone = trains_alone
        self._store: JoinStore | None = None
        self.size = 1 if trains_alone else environment.group_size
        """The number of processes."""

    def meet(self) -> JoinStore | None:
        """Return the run's join store; None if the run has no store or this process trains alone. Raises StoreLost."""
        environment = self._environment
        if self._store is None and environment.store and environment.key and not self._trains_alone:
            from torchyard_roles.coordination.join_store_client import JoinStore

            self._store = JoinStore.of(environment)
        return self._store

    def agree(self, model: torch.nn.Module, optimizer: Any, *, number: int = 0) -> None:
        """Compare the models of all trainers in call `number` of distribute(). Raises UsageProblem.

        If there is no join store, the models are not compared.
        """
        from torchyard_roles.coordination import model_consistency

        store = self.meet()
        if store is not None:
            model_consistency.agree(
                store, self._environment, model_consistency.describe(model, optimizer), number=number
            )

    def answer_sigterm(self, step: int) -> GracefulStop | None:
        """Install the graceful stop if Torchyard started this process and the group can coordinate the stop.

        A group of several processes needs a join store for this.
        """
        environment = self._environment
        if not environment.is_torchyard or (self.size > 1 and self._store is None):
            return None
        rank = environment.group_rank if self.size > 1 else 0
        stopping = GracefulStop(self._store, environment.gang, environment.generation, rank, self.size)
        return stopping if stopping.install(step) else None

    def wait_until_saved(self) -> None:
        """Wait until the first rank has saved its checkpoint, so that exit code 0 implies a saved checkpoint."""
        if self._store is None or self.size == 1:
            return
        environment = self._environment
        key = f"stop/{environment.gang}/{environment.generation}/saved"
        try:
            if environment.group_rank == 0:
                self._store.set(key, b"1")
            else:
                self._store.get(key, environment.options.stop_grace_s)
        except RolesError:
            return  # The first rank has ended or is too slow.

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
