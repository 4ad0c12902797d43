"""Those that save and stop together, as one of them has them: its worker group, or itself where it trains alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchyard_roles.coordination.graceful_stop import GracefulStop
from torchyard_roles.environment import Environment
from torchyard_roles.errors import RolesError

if TYPE_CHECKING:
    import torch

    from torchyard_roles.coordination.join_store_client import JoinStore


class CheckpointGroup:
    """`goes_its_own_way`: this process's model is its own, and it meets nobody."""

    def __init__(self, environment: Environment, *, goes_its_own_way: bool) -> None:
        self._environment = environment
        self._goes_its_own_way = goes_its_own_way
        self._store: JoinStore | None = None
        self.size = 1 if goes_its_own_way else environment.group_size
        """In processes."""

    def meet(self) -> JoinStore | None:
        """The run's join store; None where there is none, or nobody to meet in it. Raises StoreLost."""
        environment = self._environment
        if self._store is None and environment.store and environment.key and not self._goes_its_own_way:
            from torchyard_roles.coordination.join_store_client import JoinStore

            self._store = JoinStore.of(environment)
        return self._store

    def agree(self, model: torch.nn.Module, optimizer: Any, *, number: int = 0) -> None:
        """Raises UsageProblem where another trainer has another model in its call `number` of distribute(). Without a
        store torch has to find out."""
        from torchyard_roles.coordination import model_consistency

        store = self.meet()
        if store is not None:
            model_consistency.agree(
                store, self._environment, model_consistency.describe(model, optimizer), number=number
            )

    def answer_sigterm(self, step: int) -> GracefulStop | None:
        """Only where a stop can be in good order: Torchyard started this, and who stops together can agree."""
        environment = self._environment
        if not environment.is_torchyard or (self.size > 1 and self._store is None):
            return None
        rank = environment.group_rank if self.size > 1 else 0
        stopping = GracefulStop(self._store, environment.gang, environment.generation, rank, self.size)
        return stopping if stopping.install(step) else None

    def wait_until_saved(self) -> None:
        """All leave after the first one's save, so that who ends with 0 has left a checkpoint behind."""
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
            return  # the first rank is gone, or too slow: nothing is left to wait for

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
