"""What every strategy offers to `Cluster`, which knows no strategy by name."""

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
    """One way to train a model on several processes. Lives from join() to leave().

    The calls of one trainer, all in the training's own thread:

        start → share → distribute → restore (where there is a checkpoint) → at_boundary(s) → step s+1 →
        at_boundary(s+1) → … → flush and save (the chief alone saves; right after at_boundary, now and then) → … →
        finish → leave

    A *boundary* is passed once between two optimizer steps, when the script asks for its next batch or runs the
    model again: all that it does after `optimizer.step()`, such as `scheduler.step()`, is done by then.
    """

    needs_optimizer = False
    """Whether the strategy takes the optimizer's steps itself, so that a script cannot update parameters by hand."""

    trains_alone = False
    """Whether this process's model is its own: it saves and stops by itself, and meets nobody."""

    @abstractmethod
    def start(self, device: torch.device) -> None:
        """Meet the others; returns when all are there."""

    @abstractmethod
    def share(self) -> DataShare:
        """The part of the training data that is this process's own."""

    @abstractmethod
    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """What the script's loop uses in their place. The model is on `device` already.

        Called for each optimizer of the script, before the first step, in the same order on all ranks.
        """

    @abstractmethod
    def leave(self) -> None:
        """Part from the others after the last step. Not called by a process that dies of an exception."""

    def finish(self) -> bool:
        """Training is done, and the last checkpoint is about to be saved: bring the final parameters into the model.

        Whether they are others than after the last step, so that a checkpoint of that step is saved anew. Called once
        before leave(), on every trainer, and not where a run is stopped: that has no time to wait.
        """
        return False

    def flush(self, step: int) -> None:  # noqa: B027  # by default nothing
        """Bring out what this process holds back of steps that are done, such as gradients that are not pushed yet.

        Called on every trainer of a group where `step` is about to be saved or is the last before a stop, with the
        same step on all of them, maybe twice; a trainer that hears of a save too late calls it a few steps later. By
        default nothing. Raises RolesError where it cannot be.
        """

    def save(self, folder: Path, step: int) -> None:  # noqa: B027  # by default nothing
        """What a checkpoint of `step` needs and this process does not hold, such as the shards of servers.

        Called on the chief alone, at the boundary after `step`, before its model and optimizer are copied: so a
        strategy may bring newer parameters into the model here. `folder` is the checkpoints' (TORCHYARD_CHECKPOINTS);
        what a server keeps goes to `parts/<replica>/` in its own folder of that name, by
        `torchyard_roles.checkpoints.files.write_part(folder, replica, step, state)`. Returns when all of it is safe on
        disk; raises RolesError or OSError where it cannot be: then there is no checkpoint of this step, a line is
        printed, and training goes on. By default nothing: the chief's `model.state_dict()` and
        `optimizer.state_dict()` say all.
        """

    def restore(self, folder: Path, step: int) -> None:  # noqa: B027  # by default nothing
        """Bring back what save() has put away for `step`: `files.read_part(folder, replica, step)`, None if missing.

        Called on every trainer of the chief's group at the end of its Cluster.distribute(), only where a checkpoint
        is resumed from; model and optimizer are the checkpoint's already. Trainers of other groups get it with the
        step of their own group. By default nothing.
        """

    @property
    def ends_last(self) -> bool:
        """Whether finish() waits for other groups, which may take hours: what is done by then is saved before."""
        return False

    def before_forward(self) -> None:  # noqa: B027  # by default nothing
        """A forward of the model, or of one of its parts, is about to record gradients."""

    def abandon(self) -> None:  # noqa: B027  # by default nothing
        """End this strategy's threads: an exception has ended the script. Says goodbye to nobody and waits for nobody.

        A thread that is inside torch when the interpreter ends would abort the process, and hide the exception's code.
        """

    def clip_gradients(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        """Scale the gradients that the next step uses so that their norm is at most `max_norm`; the norm before.

        By default what torch does with the gradients here, which is exact where they are the averages already.
        """
        import torch

        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def clip_values(self, parameters: Sequence[torch.Tensor], value: float) -> None:
        """Bring each element of the gradients that the next step uses to between -`value` and `value`.

        By default what torch does with the gradients here, which is exact where they are the averages already. Raises
        UsageProblem where they are not.
        """
        import torch

        torch.nn.utils.clip_grad_value_(parameters, value)

    def accumulating(self) -> AbstractContextManager[None]:
        """A context whose backward passes add to the gradients without exchanging them. By default nothing: where
        gradients are exchanged by the optimizer's step(), no backward pass exchanges any."""
        return nullcontext()

    def statistics(self) -> dict[str, float]:
        """Numbers of the last step for the desktop, by the names in `protocol.report.METRICS`: exchange_s and wait_s
        (seconds that the step took longer for the exchange, and for others being late), staleness, dropped, skipped.
        What is left of the step counts as compute_s. Asked only when a report is due (≤ 5 a second); must cost
        nothing."""
        return {}

    def at_boundary(self, step: int) -> None:  # noqa: B027  # by default nothing
        """`step` is done, and all the script does after it; the next has not begun.

        Called on every trainer, before it may save or stop there. May raise RolesError where training cannot go on.
        """
