"""The processes that save and stop together: a worker group, or a single process that trains alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchyard_roles import script_checks
from torchyard_roles.coordination.graceful_stop import GracefulStop
from torchyard_roles.environment import Environment
from torchyard_roles.errors import RolesError

if TYPE_CHECKING:
    import torch

    from torchyard_roles.coordination.join_store_client import JoinStore
    from torchyard_roles.strategies.replaceable_group import ReplaceableGroup


class CheckpointGroup:
    """The group of processes with which this process saves and stops.

    Args:
        trains_alone: Whether the group consists of this process only.
        members: The connections of a group that continues without lost workers.
    """

    def __init__(
        self, environment: Environment, *, trains_alone: bool, members: ReplaceableGroup | None = None
    ) -> None:
        self._environment = environment
        self._trains_alone = trains_alone
        self._members = members
        self._store: JoinStore | None = None
        self.size = 1 if trains_alone else environment.group_size
        """The number of processes in the group."""

    def meet(self) -> JoinStore | None:
        """Returns the run's join store, or None if the run has none or this process trains alone.

        Raises StoreLost if the store cannot be reached.
        """
        environment = self._environment
        if self._store is None and environment.store and environment.key and not self._trains_alone:
            from torchyard_roles.coordination.join_store_client import JoinStore

            self._store = JoinStore.of(environment)
        return self._store

    def agree(self, model: torch.nn.Module, optimizer: Any, *, number: int = 0) -> None:
        """Compares the models that all trainers give to the `number`-th call of distribute().

        The models are not compared if there is no join store or this process trains alone.

        Raises:
            UsageProblem: This trainer's model differs from the chief's.
            StoreTimeout: A trainer did not call distribute() in time.
            StoreLost: The join store cannot be reached.
        """
        from torchyard_roles.coordination import model_consistency

        store = self.meet()
        if self._members is not None:
            self._members.settle()
        if store is not None:
            # A returning worker may run a different script, if the file was edited after the other workers started.
            more = {} if self._members is None else script_checks.versions()
            model_consistency.agree(
                store, self._environment, model_consistency.describe(model, optimizer, **more), number=number
            )

    def answer_sigterm(self, step: int) -> GracefulStop | None:
        """Starts handling SIGTERM, and returns the graceful stop that does so, or None if SIGTERM cannot be handled.

        SIGTERM can be handled if Torchyard started this process and, if the group has several processes, there is a
        join store. `step` is the number of finished steps.
        """
        environment = self._environment
        if not environment.is_torchyard or (self.size > 1 and self._store is None):
            return None
        rank = environment.group_rank if self.size > 1 else 0
        place = environment.gang, environment.generation, rank, self.size
        stopping = GracefulStop(self._store, *place, self._ranks, environment.stop_file, environment.stop_patience_s)
        return stopping if stopping.install(step) else None

    def wait_until_saved(self) -> None:
        """Waits until the first rank has saved its checkpoint, or until the time for a stop (`stop_grace_s`) is over.

        The first rank does not wait, but announces that its checkpoint is saved.
        """
        if self._store is None or self.size == 1:
            return
        environment = self._environment
        key = f"stop/{environment.gang}/{environment.generation}/saved"
        try:
            if environment.group_rank == self._ranks()[0]:
                self._store.set(key, b"1")
            else:
                self._store.get(key, environment.stop_grace_s)
        except RolesError:
            return  # The first rank has exited or is too slow, or the join store is lost.

    def _ranks(self) -> Sequence[int]:
        return self._members.ranks if self._members is not None else range(self.size)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
