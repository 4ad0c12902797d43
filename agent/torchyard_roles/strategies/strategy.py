"""The interface between `Cluster` and the strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch

    from torchyard_roles.checkpoints.sharded_saving import ShardedSaving
    from torchyard_roles.data_loader import DataShare
    from torchyard_roles.strategies.replaceable_group import ReplaceableGroup


class Strategy(ABC):
    """One method of training a model on several processes. An instance is created by join() and used until leave().

    On each trainer, the main methods are called in this order, all in the training thread:

        start → prepare → distribute → restore (if there is a checkpoint) → at_boundary(s) → step s+1 →
        at_boundary(s+1) → … → flush and save (at some boundaries; save on the chief only, unless the model is
        sharded) → … → finish → leave

    share() is called for each loader.

    A *boundary* is passed once between two optimizer steps, when the script requests its next batch or runs the model
    again. By that time, code after `optimizer.step()`, such as `scheduler.step()`, has run.
    """

    needs_optimizer = ""
    """The reason why a script must use an optimizer, as a clause, or "" if it may update parameters by hand."""

    sharded_saving: ShardedSaving | None = None
    """The object that saves and loads a model sharded over the ranks, or None if the model is not sharded."""

    trains_alone = False
    """Whether this process trains its own model, and saves and stops independently."""

    members: ReplaceableGroup | None = None
    """The connections of a group that continues without lost workers, or None if a loss ends the group."""

    samples = 0
    """The number of samples in the batches of this process's finished steps, which Cluster sets at each boundary.

    It is 0 if the script has no loader of the cluster.
    """

    @property
    def expects_stop(self) -> bool:
        """Whether another group has stopped, so that this group is likely to be asked to stop at this boundary."""
        return False

    @property
    def first_rank(self) -> int:
        """The rank that saves checkpoints: the first rank that is not lost."""
        return self.members.ranks[0] if self.members is not None else 0

    @abstractmethod
    def start(self, device: torch.device) -> None:
        """Connects to the processes that must be connected before distribute(), and waits until they are running."""

    @abstractmethod
    def share(self) -> DataShare:
        """Returns this process's share of the training data."""

    def prepare(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
    ) -> None:
        """Moves the models and optimizers of one call of Cluster.distribute() to `device`.

        This method is called before a checkpoint is loaded into the models, in the same order on all ranks.
        """
        from torchyard_roles.devices import move_optimizer

        for model in models:
            model.to(device)
        for optimizer in optimizers:
            move_optimizer(optimizer, device)

    @abstractmethod
    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Prepares a model on `device` and its optimizer, and returns both.

        The script keeps using its own objects, so they must be changed in place. This method is called for each
        optimizer before the first step, in the same order on all ranks.
        """

    @abstractmethod
    def leave(self) -> None:
        """Disconnects after the last step. This method is not called after an exception."""

    def finish(self) -> bool:
        """Loads the final parameters into the model before the last checkpoint is saved.

        This method is called on every trainer once before leave(), unless the run is stopped or the script has not
        called distribute().

        Returns:
            Whether this call has changed the parameters since the last step. If so, the checkpoint of that step is
            saved again.
        """
        return False

    def flush(self, step: int) -> None:  # noqa: B027  # By default, this method does nothing.
        """Completes the pending work of finished steps, such as pushing the remaining gradients.

        This method is called on every trainer of a group, with the same step, before that step is saved or the run
        stops after it. It may be called twice for a step. If a trainer receives the announcement of a save too late,
        this method is called a few steps later on that trainer. Raises RolesError if the exchange fails.
        """

    def save(self, folder: Path, step: int) -> None:  # noqa: B027  # By default, this method does nothing.
        """Saves the state of other processes, such as the shards of servers, for the checkpoint of `step`.

        This method is called on the chief (or, with `sharded_saving`, on all trainers) at the boundary after `step`.
        The model and optimizer are copied after this call, so a strategy may load newer parameters during this call.
        Servers save their state in their own checkpoint folder with
        `torchyard_roles.checkpoints.checkpoint_files.write_part(folder, replica, step, state)`.

        Args:
            folder: The checkpoint folder (TORCHYARD_CHECKPOINTS).
            step: The number of finished steps.

        Raises:
            RolesError, OSError: The checkpoint of this step cannot be saved. Training continues.
        """

    def restore(self, folder: Path, step: int) -> None:  # noqa: B027  # By default, this method does nothing.
        """Restores the state that save() stored for `step`. `checkpoint_files.read_part()` reads one replica's part.

        This method is called on every trainer at the end of Cluster.distribute() in a resumed run, after the model and
        optimizer have been restored. Trainers outside the chief's group receive the step of their own group.
        """

    def exchange_state(self) -> dict[str, Any]:
        """Returns the state of the gradient exchange for a returning worker. Called only if `members` is set."""
        return {}

    def load_exchange_state(self, state: dict[str, Any], step: int) -> None:  # noqa: B027  # Does nothing by default.
        """Sets the state that exchange_state() returned on another worker after the step `step`."""

    def want_save(self) -> None:  # noqa: B027  # By default, this method does nothing.
        """Requests a save of a sharded model. Called on the chief if `sharded_saving` is set."""

    def is_save_due(self, step: int) -> bool:
        """Returns whether all ranks save a sharded model at this boundary.

        Called at each boundary on all ranks, and returns the same result on all of them.
        """
        return False

    @property
    def ends_last(self) -> bool:
        """Whether finish() may wait for other groups for hours.

        If so, a checkpoint is saved before finish() is called.
        """
        return False

    def before_forward(self) -> None:  # noqa: B027  # By default, this method does nothing.
        """Called before each forward pass, of the model or of one of its modules, that records gradients."""

    def abandon(self) -> None:  # noqa: B027  # By default, this method does nothing.
        """Ends the strategy's threads after an exception, without waiting for other processes.

        A thread that runs torch code during the interpreter's shutdown would abort the process and change its exit
        code.
        """

    def clip_gradients(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        """Scales the gradients of the next step to a norm of at most `max_norm`, and returns the norm before scaling.

        The default implementation clips the local gradients, which is correct if they have already been averaged.
        """
        import torch

        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def clip_values(self, parameters: Sequence[torch.Tensor], value: float) -> None:
        """Clips each element of the next step's gradients to the interval from -`value` to `value`.

        The default implementation clips the local gradients, which is correct if they have already been averaged.
        """
        import torch

        torch.nn.utils.clip_grad_value_(parameters, value)

    def accumulating(self) -> AbstractContextManager[None]:
        """Returns a context in which backward passes accumulate gradients without exchanging them.

        The default implementation has no effect, which is correct if gradients are exchanged in the optimizer's step().
        """
        return nullcontext()

    def statistics(self) -> dict[str, float]:
        """Returns metrics of the last step by name: names from `metrics_report.METRICS`, or the strategy's own.

        `exchange_s` and `wait_s` are the times in seconds that the step spent on the exchange and on waiting for late
        peers. The remaining time of the step is reported as `compute_s`. Other metrics are `staleness`, `dropped` and
        `skipped`. This method is called for each report and must be fast.
        """
        return {}

    def at_boundary(self, step: int) -> None:  # noqa: B027  # By default, this method does nothing.
        """Called at the boundary after `step` on every trainer, before a checkpoint is saved or training stops there.

        May raise RolesError.
        """


class GroupedStrategy(Strategy):
    """A strategy for worker groups, in each of which the strategy `_inside` averages the gradients of the ranks."""

    _inside: Strategy

    def before_forward(self) -> None:
        self._inside.before_forward()

    def accumulating(self) -> AbstractContextManager[None]:
        return self._inside.accumulating()

    def clip_gradients(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        return self._inside.clip_gradients(parameters, max_norm)

    def clip_values(self, parameters: Sequence[torch.Tensor], value: float) -> None:
        self._inside.clip_values(parameters, value)

    def want_save(self) -> None:
        self._inside.want_save()

    def is_save_due(self, step: int) -> bool:
        return self._inside.is_save_due(step)
