"""What a training script holds: its place among the others, and the four calls that make it one of them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from torchyard_roles import checks
from torchyard_roles.environment import Environment
from torchyard_roles.errors import RolesError, UsageProblem
from torchyard_roles.progress import Progress
from torchyard_roles.reporting import Reporter
from torchyard_roles.team import Team

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.utils.data import DataLoader, Dataset

    from torchyard_roles.checkpoints.restoring import Resumed
    from torchyard_roles.checkpoints.saving import Saving
    from torchyard_roles.sharding import ShareLoader
    from torchyard_roles.stopping import Stopping
    from torchyard_roles.strategies.strategy import Strategy

REPORT_WAIT_S = 0.2
"""How long the first and the last report may wait for a keeper that is busy; all others never wait."""


class Cluster:
    """The run as this process sees it. Made by join()."""

    def __init__(self, environment: Environment, strategy: Strategy, device: torch.device) -> None:
        self._environment = environment
        self._strategy = strategy
        self._device = device
        self._team = Team(environment, goes_its_own_way=strategy.trains_alone)
        self._progress = Progress()
        self._reporter = Reporter(environment)
        self._process = os.getpid()
        self._left = False
        self._optimizer: torch.optim.Optimizer | None = None
        self._stopping: Stopping | None = None
        self._saving: Saving | None = None
        self._resumed: Resumed | None = None
        self._in_step = False
        self._boundary_of = -1
        """The step whose boundary the strategy was told of last."""

    @property
    def role(self) -> str:
        """`chief`, `worker` or `evaluator`."""
        return self._environment.role

    @property
    def index(self) -> int:
        """This replica's number among those of its role."""
        return self._environment.index

    @property
    def rank(self) -> int | None:
        """This process's number among the trainers; None for an evaluator."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """How many processes train, for an evaluator too."""
        return self._environment.world_size

    @property
    def is_chief(self) -> bool:
        """Whether this is the one trainer that saves and prints for all: rank 0."""
        return self._environment.trains and self._environment.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes: model and batches are brought there."""
        return self._device

    @property
    def has_left(self) -> bool:
        return self._left

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """The model and optimizer to train with from here on; all trainers start from the chief's parameters, or
        from the newest complete checkpoint where there is one.

        Called once, before the first step. Raises UsageProblem where it cannot be meant like that, and for the
        checkpoint of another model.
        """
        from torchyard_roles import devices

        if self._optimizer is not None:
            raise UsageProblem(
                "distribute() was called a second time.",
                "Call it once; put several models into one torch.nn.ModuleDict with one optimizer.",
            )
        checks.check_trainable(model, optimizer)
        model.to(self._device)
        devices.move_optimizer(optimizer, self._device)
        if not self._environment.trains:
            self._optimizer = optimizer
            return model, optimizer
        self._team.agree(model, optimizer)
        self._open_checkpoints()
        plain, fingerprint = model, self._restore(model, optimizer)
        model, optimizer = self._strategy.distribute(model, optimizer, self._device)
        self._optimizer = optimizer
        step = 0
        if self._resumed is not None:
            step = self._resumed.step
            self._resumed.into(optimizer, self._device)
            self._progress.resume(step)
            assert self._saving is not None
            self._strategy.restore(self._saving.root, step)
            for number, loader in enumerate(self._saving.loaders):
                self._resumed.place(number, loader, self._go_on)
        if self._saving is not None:
            self._saving.start(plain, optimizer, fingerprint, step)
        self._stopping = self._team.answer_sigterm(step)
        optimizer.register_step_pre_hook(self._about_to_step)
        optimizer.register_step_post_hook(self._stepped)
        model.register_forward_pre_hook(self._about_to_compute)
        return model, optimizer

    def checkpoint(self, *, now: bool = False, **stateful: Any) -> None:
        """Save and restore more than model and optimizer: `cluster.checkpoint(scheduler=scheduler)`.

        Each object has state_dict() and load_state_dict(). Called after distribute(), before the loop, by
        all trainers alike; in a resumed run it restores them at once. `now=True` saves at the next step boundary that
        all trainers can meet at. A script run by hand is checkpointed from the first call on, if TORCHYARD_CHECKPOINTS
        names a folder; else this does nothing. Raises UsageProblem for what cannot be saved.
        """
        from torchyard_roles.checkpoints.plain import copied

        if self._optimizer is None:
            raise UsageProblem("checkpoint() was called before distribute().", "Call it after distribute().")
        for name, each in stateful.items():
            if not hasattr(each, "state_dict") or not hasattr(each, "load_state_dict"):
                raise UsageProblem(
                    f"checkpoint({name}=…) got a {type(each).__name__}, which has no state_dict().",
                    "Give it objects with state_dict() and load_state_dict().",
                )
            copied(each.state_dict(), name)
        if self._saving is None:
            return
        self._saving.automatic = True
        self._saving.stateful.update(stateful)
        if self._resumed is not None:
            for name, each in stateful.items():
                if name in self._resumed.stateful:
                    each.load_state_dict(self._resumed.stateful[name])
        if now:
            self._saving.ask()

    def evaluations(self, model: torch.nn.Module) -> Iterator[int]:
        """For an evaluator: the step of each new checkpoint, loaded into `model`, each once, until training ends.

        Yields nothing in the other roles, so that a script may say `for step in cluster.evaluations(model):` before
        its training loop. What is reported while one is scored carries its step.
        """
        if self.role != "evaluator" or not self._environment.checkpoints:
            return
        from pathlib import Path

        from torchyard_roles.checkpoints import evaluations

        model.to(self._device)
        root = Path(self._environment.checkpoints)
        for step in evaluations.evaluations(root, model, self._environment.run_id):
            self._progress.resume(step)
            yield step

    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int = 64,
        shuffle: bool = True,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> DataLoader[Any]:
        """This worker's share of the data, in batches of `batch_size` of its own, on its device.

        `seed` fixes the order, which changes with every epoch; without one several workers take 0, and a single
        process takes torch's generator as any DataLoader does. `options` are DataLoader's.
        """
        from torchyard_roles import sharding

        loader = sharding.make_loader(
            dataset,
            self._strategy.share(),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            device=self._device,
            progress=self._progress,
            options=options,
            asked=self._asked_by_loader,
        )
        if self._environment.trains:
            self._open_checkpoints()
        if self._saving is not None:
            self._saving.loaders.append(loader)
            if self._resumed is not None:
                self._resumed.place(len(self._saving.loaders) - 1, loader, self._go_on)
        return loader

    def clip_gradients(self, max_norm: float) -> torch.Tensor:
        """Scale all gradients down so that their norm is at most `max_norm`; returns the norm before, one number.

        Called by all trainers alike, right before `optimizer.step()` (with a GradScaler after its `unscale_`). In
        every strategy it is the norm of the gradients that the step uses: the mean over all workers, in asynchronous
        kinds over the worker group. With parameter servers that is something else than
        `torch.nn.utils.clip_grad_norm_`, which sees the worker's own gradients before they are averaged; there too the
        gradients here stay as they are, and the norm is NaN on a worker whose own are not finite or came too late.
        Where not every step is pushed and pulled (`push_every`, `pull_every`) each worker clips its own.
        """
        if self._optimizer is None:
            raise UsageProblem("clip_gradients() was called before distribute().", "Call it after distribute().")
        if not max_norm > 0:
            raise UsageProblem(f"clip_gradients({max_norm}) leaves no gradient.", "Give it a norm above 0.")
        parameters = [each for group in self._optimizer.param_groups for each in group["params"]]
        return self._strategy.clip_gradients(parameters, max_norm)

    def report(self, **metrics: Any) -> None:
        """Tell the desktop numbers such as `loss=loss`; tensors of one number may be given as they are.

        Costs nothing to speak of in every step: at most 5 a second are sent, and only those read a tensor.
        Optional: steps and samples a second are counted by themselves.
        """
        self._progress.note(metrics)
        self._send_if_due(at_step=False)

    def leave(self) -> None:
        """Save what is not saved yet, send the last report and part from the others. Done by itself when the script
        ends."""
        if self._left or os.getpid() != self._process:
            return
        self._left = True
        saving = self._saving if self._optimizer is not None else None
        if saving is not None and saving.automatic and self._strategy.ends_last:
            saving.save(self._progress.steps, last=True)
        anew = self._strategy.finish() if self._optimizer is not None else False
        if saving is not None and saving.automatic:
            saving.save(self._progress.steps, last=True, final=True, anew=anew)
        self._part()

    def _part(self) -> None:
        self._left = True
        self._send_last()
        if self._stopping is not None:
            self._stopping.uninstall()
        self._strategy.leave()
        self._team.close()

    # Between two steps

    def _boundary(self, *, more: bool = True) -> None:
        """What happens between two steps: save and stop, where all have agreed to.

        `more` is False where the next step isn't begun yet. Raises SystemExit(0) where all leave.
        """
        if self._in_step or self._optimizer is None or self._left:
            return
        step = self._progress.steps
        if step != self._boundary_of:
            self._boundary_of = step
            self._strategy.at_boundary(step)
        if self._stopping is not None and not self._stopping.may_begin(step, begin=more):
            self._stop(step)
        if self._saving is not None:
            self._saving.at_boundary(step)
        self._in_step = more

    def _stop(self, step: int) -> None:
        word = "nothing was saved"
        try:
            self._strategy.flush(step)
        except RolesError as error:
            print(f"torchyard: {error}", flush=True)  # all that can be saved still is
        if self._saving is not None and self._saving.automatic:
            saved = self._saving.save(step, last=True)
            word = "a checkpoint is saved" if saved else "it could not be saved"
            self._team.wait_until_saved()
        print(f"torchyard: stopped after step {step}; {word}.", flush=True)
        self._part()
        raise SystemExit(0)

    def _asked_by_loader(self, loader: ShareLoader, more: bool) -> None:
        if self._saving is not None and loader in self._saving.loaders:
            self._saving.active = self._saving.loaders.index(loader)
        self._boundary(more=more)

    def _about_to_compute(self, *_: Any) -> None:
        import torch

        if torch.is_grad_enabled():
            self._begin_step()

    def _about_to_step(self, *_: Any) -> None:
        self._begin_step()

    def _begin_step(self) -> None:
        if not self._in_step:
            if self._resumed is not None and not self._resumed.waits_for_loader:
                self._go_on()
            self._boundary()

    def _stepped(self, *_: Any) -> None:
        self._progress.step()
        self._in_step = False
        self._resumed = None
        self._send_if_due(at_step=True)

    def _go_on(self) -> None:
        """The resume point."""
        if self._resumed is not None and self._optimizer is not None and self._saving is not None:
            self._resumed.finish(self._optimizer, self._saving.stateful, self._device)

    # Before the first

    def _open_checkpoints(self) -> None:
        if self._saving is not None or not self._environment.checkpoints:
            return
        if self._team.size == 1 and self._environment.group_size > 1 and not self.is_chief:
            return  # with strategy none each trains a model of its own: only the chief's is kept
        from pathlib import Path

        from torchyard_roles.checkpoints.saving import Saving

        root = Path(self._environment.checkpoints)
        store, size = self._team.meet(), self._team.size
        self._saving = Saving(root, self._environment, self._strategy, self._device, store, size)

    def _restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The fingerprint of both, after what the newest checkpoint holds has been brought into the model."""
        from torchyard_roles.checkpoints import restoring
        from torchyard_roles.checkpoints.fingerprint import fingerprint

        now = fingerprint(model, optimizer)
        if self._saving is not None:
            root, store, size = self._saving.root, self._team.meet(), self._team.size
            self._resumed = restoring.restore(root, self._environment, store, size, now, model, self._device)
        return now

    def _send_if_due(self, *, at_step: bool) -> None:
        if self._reporter.is_open and self._progress.due(at_step=at_step):
            wait_s = 0.0 if self._progress.was_taken else REPORT_WAIT_S
            self._reporter.send(self._progress.take(self._strategy.statistics()), wait_s)

    def _send_last(self) -> None:
        if self._reporter.is_open and self._progress.unsent:
            self._reporter.send(self._progress.take(self._strategy.statistics()), REPORT_WAIT_S)
        self._reporter.close()

    def _leave_at_exit(self) -> None:
        if hasattr(sys, "last_value"):
            # An exception ended the script. Parting in good order could wait for a GPU that waits for peers, and
            # the peers learn soonest from the connections that end with this process.
            if not self._left and os.getpid() == self._process:
                self._send_last()
                self._strategy.abandon()
            return
        try:
            self.leave()
        except RolesError as error:
            # Python would print a traceback, and end with 0 as if all were well.
            print(f"torchyard: {error}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
