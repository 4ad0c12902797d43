"""Strategy: the interface between `Cluster` and the strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch

    from torchyard_roles.data_loader import DataShare


class Strategy(ABC):
    """One way to train a model on several processes. An instance exists from join() to leave().

    The calls on one trainer, all in the training thread:

        start → share → distribute → restore (if there is a checkpoint) → at_boundary(s) → step s+1 →
        at_boundary(s+1) → … → flush and save (at some boundaries; save on the chief only) → … →
        finish → leave

    A *boundary* is passed once between two optimizer steps, when the script requests its next batch or runs the model
    again. Code after `optimizer.step()`, such as `scheduler.step()`, has run by then.
    """

    needs_optimizer = False
    """Whether the strategy runs the optimizer's steps, so that a script cannot update parameters by hand."""

    trains_alone = False
    """Whether this process trains its own model, and saves and stops independently."""

    @abstractmethod
    def start(self, device: torch.device) -> None:
        """Connect to the other processes, and wait for all of them."""

    @abstractmethod
    def share(self) -> DataShare:
        """This process's share of the training data."""

    @abstractmethod
    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Prepare a model, which is on `device`, and its optimizer; returns what the script uses in their place.

        Called for each optimizer before the first step, in the same order on all ranks.
        """

    @abstractmethod
    def leave(self) -> None:
        """Disconnect after the last step. Not called after an exception."""

    def finish(self) -> bool:
        """Load the final parameters into the model, before the last checkpoint.

        Called once before leave() on every trainer, but not in a stopped run.

        Returns:
            Whether the parameters differ from those after the last step, so that its checkpoint is saved again.
        """
        return False

    def flush(self, step: int) -> None:  # noqa: B027  # by default nothing
        """Complete pending work of finished steps, such as gradients that are not pushed yet.

        Called on every trainer of a group before `step` is saved or the run stops after it, with the same step on all,
        possibly twice. A trainer that receives the announcement of a save too late calls it a few steps later. Raises
        RolesError.
        """

    def save(self, folder: Path, step: int) -> None:  # noqa: B027  # by default nothing
        """Save state for the checkpoint of `step` that this process does not have, such as the shards of servers.

        Called on the chief only, at the boundary after `step`, before its model and optimizer are copied, so that a
        strategy may load newer parameters into the model. Servers save their state in their own checkpoint folder with
        `torchyard_roles.checkpoints.files.write_part(folder, replica, step, state)`.

        Args:
            folder: of the checkpoints (TORCHYARD_CHECKPOINTS).
            step: the number of finished steps.

        Raises:
            RolesError, OSError: there is no checkpoint of this step; training continues.
        """

    def restore(self, folder: Path, step: int) -> None:  # noqa: B027  # by default nothing
        """Restore the state that save() stored for `step`, with `files.read_part(folder, replica, step)`.

        Called on every trainer at the end of Cluster.distribute() in a resumed run, when model and optimizer are
        restored already. Trainers of other groups than the chief's get the step of their own group.
        """

    @property
    def ends_last(self) -> bool:
        """Whether finish() waits for other groups, possibly for hours, so that a checkpoint is saved before."""
        return False

    def before_forward(self) -> None:  # noqa: B027  # by default nothing
        """Called before a forward of the model, or of a part of it, that records gradients."""

    def abandon(self) -> None:  # noqa: B027  # by default nothing
        """End this strategy's threads after an exception, without waiting for other processes.

        A thread that runs torch code during the interpreter's shutdown would abort the process and change its exit
        code.
        """

    def clip_gradients(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        """Scale the gradients of the next step to a norm of at most `max_norm`; returns the norm before.

        The default clips the local gradients, which is correct if they are averages already.
        """
        import torch

        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def clip_values(self, parameters: Sequence[torch.Tensor], value: float) -> None:
        """Clip each element of the next step's gradients to between -`value` and `value`.

        The default clips the local gradients, which is correct if they are averages already.
        """
        import torch

        torch.nn.utils.clip_grad_value_(parameters, value)

    def accumulating(self) -> AbstractContextManager[None]:
        """A context in which backward passes accumulate gradients without exchanging them.

        The default does nothing, which suits strategies that exchange gradients in the optimizer's step().
        """
        return nullcontext()

    def statistics(self) -> dict[str, float]:
        """Metrics of the last step, by the names in `metrics_report.METRICS`.

        exchange_s and wait_s are the seconds by which the exchange and late peers extended the step; the rest of the
        step is reported as compute_s. Also staleness, dropped and skipped. Called at most 5 times a second; must be
        cheap.
        """
        return {}

    def at_boundary(self, step: int) -> None:  # noqa: B027  # by default nothing
        """Called on every trainer at the boundary after `step`, before a save or stop there. May raise RolesError."""
