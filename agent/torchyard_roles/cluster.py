"""The class Cluster, by which a training script distributes models, loads data, reports and saves checkpoints."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, overload

from torchyard_roles.checkpoints.checkpoint_group import CheckpointGroup
from torchyard_roles.environment import Environment
from torchyard_roles.errors import RolesError, UsageProblem
from torchyard_roles.keeper_reports import Reporter
from torchyard_roles.script_checks import check_clipping, check_plain, check_stateful, check_trainable
from torchyard_roles.step_tracker import StepTracker
from torchyard_roles.training_metrics import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    import torch
    from torch.utils.data import DataLoader, Dataset

    from torchyard_roles.checkpoints.restore import Resumed
    from torchyard_roles.checkpoints.saver import CheckpointSaver
    from torchyard_roles.coordination.collectives import Collectives
    from torchyard_roles.coordination.graceful_stop import GracefulStop
    from torchyard_roles.data_loader import ShareLoader
    from torchyard_roles.model_optimizer_pairs import Pairs
    from torchyard_roles.strategies.base import Strategy

REPORT_WAIT_S = 0.2
"""Longest wait of the first and the last report for a busy keeper; other reports never wait."""


class Cluster:
    """The run, from the point of view of one of its processes. join() creates the instance."""

    def __init__(self, environment: Environment, strategy: Strategy, device: torch.device) -> None:
        self._environment = environment
        self._strategy = strategy
        self._device = device
        self._checkpoint_group = CheckpointGroup(environment, trains_alone=strategy.trains_alone)
        self._progress = Progress()
        self._steps = StepTracker(
            strategy,
            self._progress,
            before_step=self._before_step,
            at_boundary=self._at_boundary,
            after_step=self._after_step,
        )
        self._reporter = Reporter(environment)
        self._process = os.getpid()
        self._has_left = False
        self._is_disconnected = False
        """Whether the strategy's connections are closed; False after a leave() that failed."""
        self._first: Any = None
        """The optimizer of the first distribute() call, or an OptimizerList."""
        self._calls = 0
        self._resumed_at = 0
        self._graceful_stop: GracefulStop | None = None
        self._saver: CheckpointSaver | None = None
        self._resumed: Resumed | None = None
        self._collectives: Collectives | None = None

    @property
    def role(self) -> str:
        """The role of this process: `chief`, `worker` or `evaluator`."""
        return self._environment.role

    @property
    def index(self) -> int:
        """The number of this replica within its role."""
        return self._environment.index

    @property
    def rank(self) -> int | None:
        """The number of this process among the trainers; None for an evaluator."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """The number of training processes, also in an evaluator."""
        return self._environment.world_size

    @property
    def is_chief(self) -> bool:
        """Whether this process is rank 0, the trainer that saves checkpoints and prints for the run."""
        return self._environment.trains and self._environment.rank == 0

    @property
    def device(self) -> torch.device:
        """The device of this process, to which distribute() and loader() move models and batches."""
        return self._device

    @property
    def has_left(self) -> bool:
        return self._has_left

    def distribute(self, model: Any, optimizer: Any = None) -> Any:
        """Include a model and its optimizer in the distributed training, and return the same objects.

        All trainers start from the chief's parameters, or from the newest complete checkpoint if there is one. Several
        models or optimizers are given as lists (`distribute([generator, critic], [optimizer_g, optimizer_c])`), or in
        further calls before the first step, in the same order on all trainers. Without an optimizer, for a script that
        updates its parameters by hand, only the model is returned.

        Raises:
            UsageProblem: The arguments cannot be trained, or the checkpoint belongs to another model.
        """
        from torchyard_roles.devices import move_optimizer
        from torchyard_roles.model_optimizer_pairs import Pairs

        pairs = Pairs(model, optimizer)
        self._check_distributed(pairs)
        for each in pairs.models:
            each.to(self._device)
        for each in pairs.optimizers:
            move_optimizer(each, self._device)
        is_first = not self._steps.optimizers
        self._steps.optimizers += pairs.optimizers
        if not self._environment.trains:
            return pairs.given()
        self._checkpoint_group.agree(pairs.model, pairs.optimizer, number=self._calls)
        self._calls += 1
        if is_first:
            self._begin_first(pairs)
        else:
            self._begin_further(pairs)
        self._steps.watch(pairs)
        return pairs.given()

    def _check_distributed(self, pairs: Pairs) -> None:
        optimizers = self._steps.optimizers
        if optimizers and (self._progress.steps != self._resumed_at or self._steps.in_step):
            raise UsageProblem(
                "distribute() was called after training had begun.",
                "Call it for all models and optimizers before the first forward and step.",
            )
        if any(each is other for each in pairs.optimizers for other in optimizers):
            raise UsageProblem(
                "distribute() was given the same optimizer a second time.", "Call it once for each optimizer."
            )
        if pairs.updates_by_hand and self._environment.trains and self._strategy.needs_optimizer:
            raise UsageProblem(
                f"Under {self._environment.strategy} the parameter servers take the optimizer's steps, but "
                "distribute() was given no optimizer.",
                "Give it the optimizer that updates the model, or set strategy.kind to all_reduce.",
            )
        for each in pairs.models:
            check_plain(each)
        check_trainable(pairs.models, pairs.optimizers)

    def _begin_first(self, pairs: Pairs) -> None:
        """Handle the first call of distribute(), which also restores the newest checkpoint."""
        self._open_checkpoints()
        model, optimizer = pairs.model, pairs.optimizer
        fingerprint = self._restore(model, optimizer)
        self._distribute_pairs(pairs)
        step = 0
        if self._resumed is not None:
            step = self._resumed_at = self._resumed.step
            self._resumed.into(optimizer, self._device)
            self._progress.resume(step)
            assert self._saver is not None
            self._strategy.restore(self._saver.root, step)
            for number, loader in enumerate(self._saver.loaders):
                self._resumed.place(number, loader, self._finish_resume)
        self._first = optimizer
        if self._saver is not None:
            self._saver.start(model, optimizer, fingerprint, step)
        self._graceful_stop = self._checkpoint_group.answer_sigterm(step)

    def _begin_further(self, pairs: Pairs) -> None:
        """Handle a further call of distribute().

        The model and optimizer of this call are saved and restored together with those of the first call. The model is
        loaded before the strategy distributes it, since servers or other groups may have newer parameters.
        """
        model, optimizer = f"model {self._calls}", f"optimizer {self._calls}"
        resumed = self._resumed
        if resumed is not None and model in resumed.models:
            pairs.model.load_state_dict(resumed.models[model])
        self._distribute_pairs(pairs)
        if resumed is not None and optimizer in resumed.stateful:
            pairs.optimizer.load_state_dict(resumed.stateful[optimizer])
        if self._saver is not None:
            if resumed is not None:
                self._strategy.restore(self._saver.root, resumed.step)
            self._saver.models[model] = pairs.model
            self._saver.stateful[optimizer] = pairs.optimizer

    def _distribute_pairs(self, pairs: Pairs) -> None:
        for each in pairs.optimizers:
            self._strategy.distribute(pairs.model_of(each), each, self._device)

    def checkpoint(self, *, now: bool = False, **stateful: Any) -> None:
        """Save and restore further objects with each checkpoint: `cluster.checkpoint(scheduler=scheduler)`.

        This method must be called after distribute() and before the training loop, with the same names on all trainers.
        In a resumed run, the call restores the objects. A script started by hand saves checkpoints after the first call
        if TORCHYARD_CHECKPOINTS names a folder.

        Args:
            now: Whether to save at the next step boundary that all trainers can reach together.
            stateful: Objects with state_dict() and load_state_dict().

        Raises:
            UsageProblem: A checkpoint cannot contain the object or its state.
        """
        from torchyard_roles.checkpoints.training_state import copied

        if not self._steps.optimizers:
            raise UsageProblem("checkpoint() was called before distribute().", "Call it after distribute().")
        for name, each in stateful.items():
            check_stateful(name, each)
            copied(each.state_dict(), name)
        if self._saver is None:
            return
        self._saver.automatic = True
        self._saver.stateful.update(stateful)
        if self._resumed is not None:
            for name, each in stateful.items():
                if name in self._resumed.stateful:
                    each.load_state_dict(self._resumed.stateful[name])
        if now:
            self._saver.ask()

    def evaluations(self, model: torch.nn.Module) -> Iterator[int]:
        """Load each new checkpoint into `model` and yield its step, until training ends. For evaluators.

        The iterator is empty in the other roles, so a script may contain this loop before its training loop. Metrics
        that are reported inside the loop have the step of the checkpoint.
        """
        if self.role != "evaluator" or not self._environment.checkpoints:
            return
        from pathlib import Path

        from torchyard_roles.checkpoints import evaluator

        model.to(self._device)
        root = Path(self._environment.checkpoints)
        for step in evaluator.evaluations(root, model, self._environment.run_id):
            self._progress.resume(step)
            yield step

    def loader(
        self,
        dataset: Dataset[Any] | DataLoader[Any],
        batch_size: Any = ...,
        shuffle: Any = ...,
        *,
        seed: int | None = None,
        evaluation: bool = False,
        **options: Any,
    ) -> DataLoader[Any]:
        """Return a DataLoader of this worker's share of the data, on this worker's device.

        Args:
            dataset: A dataset, or a DataLoader whose dataset and options are used.
            batch_size, shuffle, options: As in DataLoader. The batch size is per worker.
            seed: The seed of the order, which changes with every epoch. The default is 0 with several workers, and
                torch's default generator in a single process.
            evaluation: Whether each sample is given to exactly one worker, in the dataset's order, so that `mean()` of
                sums and of counts gives the exact metric. Shares may differ by one sample or be empty. Evaluations are
                counted neither as steps nor as epochs.

        Raises:
            UsageProblem: The data cannot be divided among workers, for example because the dataset has a custom
                sampler.
        """
        from torchyard_roles.data_loader import make_loader

        loader = make_loader(
            dataset,
            self._strategy.share(),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            device=self._device,
            progress=self._progress,
            options=options,
            on_request=self._on_loader_request,
            evaluating=self._steps.evaluate if evaluation else None,
        )
        if evaluation:
            return loader
        if self._environment.trains:
            self._open_checkpoints()
        if self._saver is not None:
            self._saver.loaders.append(loader)
            if self._resumed is not None:
                self._resumed.place(len(self._saver.loaders) - 1, loader, self._finish_resume)
        return loader

    def accumulate(self) -> AbstractContextManager[None]:
        """Return a context in which backward passes accumulate gradients without exchanging them.

        The sum is exchanged in the next backward pass outside the context, or in the optimizer's step().
        """
        return self._strategy.accumulating()

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the plain module without wrappers such as the wrapper of torch.compile()."""
        from torchyard_roles.model_optimizer_pairs import unwrap

        return unwrap(model)

    @overload
    def clip_gradients(self, max_norm: float, *, optimizer: torch.optim.Optimizer | None = None) -> torch.Tensor: ...

    @overload
    def clip_gradients(self, *, value: float, optimizer: torch.optim.Optimizer | None = None) -> None: ...

    def clip_gradients(
        self,
        max_norm: float | None = None,
        *,
        value: float | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> torch.Tensor | None:
        """Clip the gradients of the next step by their norm, or each element by its magnitude.

        This method must be called on all trainers immediately before `optimizer.step()` (with a GradScaler after its
        `unscale_`). It clips the gradients that the step uses: the mean over all workers, or over the worker group in
        asynchronous strategies. With parameter servers the servers clip: the local gradients stay unchanged, and the
        norm is NaN on a worker whose own gradients are not finite. If a step is not pushed or pulled (`push_every`,
        `pull_every`), each worker clips its own gradients.

        Args:
            max_norm: The largest norm.
            value: The largest magnitude of an element.
            optimizer: Of several optimizers, the one that steps next. The default is all optimizers.

        Returns:
            The norm before clipping if `max_norm` is given, or None if `value` is given.

        Raises:
            UsageProblem: The limits are invalid, or the optimizer was not given to distribute().
        """
        if not self._steps.optimizers:
            raise UsageProblem("clip_gradients() was called before distribute().", "Call it after distribute().")
        check_clipping(max_norm, value)
        if optimizer is not None and not any(optimizer is each for each in self._steps.optimizers):
            raise UsageProblem(
                "clip_gradients() got an optimizer that distribute() was not given.",
                "Name one that distribute() was given, or none for all.",
            )
        clipped = self._steps.optimizers if optimizer is None else [optimizer]
        groups = [group for each in clipped for group in each.param_groups]
        parameters = [each for group in groups for each in group["params"]]
        if value is not None:
            self._strategy.clip_values(parameters, value)
            return None
        assert max_norm is not None
        return self._strategy.clip_gradients(parameters, max_norm)

    def mean(self, x: Any) -> Any:
        """Return the mean over all trainers of a number, a tensor, or a dict or list of them.

        Sums are computed in double precision; the mean of an integer tensor is float64. A tensor stays on its device.
        All trainers must call this method and the four methods below in the same order; in an evaluator, the methods
        return the evaluator's own value. In asynchronous strategies a restarted group joins the call in which the other
        groups wait, and a group that has ended no longer takes part.

        Raises:
            PeerLost: A trainer ended without the call.
            StoreTimeout: A trainer did not make the call within half an hour.
        """
        return self._all_trainers.mean(x)

    def gather(self, x: Any) -> list[Any]:
        """Return the `x` of each trainer in rank order: a number, text, a tensor, or a dict or list of them.

        Tensors may differ in shape. A tensor from a GPU is copied to this process's device.
        """
        return self._all_trainers.gather(x)

    def any(self, flag: Any) -> bool:
        """Return whether `flag` is true on any trainer, as in `if cluster.any(patience == 0): break`."""
        return self._all_trainers.any(flag)

    def barrier(self) -> None:
        """Wait until all trainers have called this method."""
        self._all_trainers.barrier()

    def broadcast(self, x: Any) -> Any:
        """Return the chief's `x` on all trainers. Other arguments are ignored. `x` may be any value for gather()."""
        return self._all_trainers.broadcast(x)

    def report(self, **metrics: Any) -> None:
        """Report metrics to the desktop, such as `loss=loss`. Values are numbers, or tensors with one element.

        This method may be called in every step: at most 5 reports per second are sent, and tensors are read only for
        those reports. Steps and throughput are measured automatically.
        """
        self._progress.note(metrics)
        self._send_if_due(at_step=False)

    def leave(self) -> None:
        """Save the last checkpoint, send the last report and disconnect.

        This method is called automatically at the script's end.
        """
        if self._has_left or os.getpid() != self._process:
            return
        self._steps.end_pending()
        self._has_left = True
        self._end_collectives()
        saver = self._saver if self._steps.optimizers else None
        if saver is not None and saver.automatic and self._strategy.ends_last:
            saver.save(self._progress.steps, last=True)
        self._strategy.samples = self._progress.samples
        changed = self._strategy.finish() if self._steps.optimizers else False
        if saver is not None and saver.automatic:
            saver.save(self._progress.steps, last=True, final=True, anew=changed)
        self._disconnect()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Call leave(), or after an exception disconnect immediately and propagate the exception."""
        if kind is None or issubclass(kind, SystemExit):
            self.leave()
        else:
            self._abandon()

    @property
    def _all_trainers(self) -> Collectives:
        if self._collectives is None:
            from torchyard_roles.coordination.collectives import Collectives

            self._collectives = Collectives(
                self._environment, self._device, self._checkpoint_group.meet, lambda: self._resumed is not None
            )
        return self._collectives

    def _end_collectives(self, *, stopped: bool = False) -> None:
        """Declare that this process makes no further collective calls, so that no other process waits for it."""
        with suppress(RolesError):  # If the store is lost, no process can be informed.
            self._all_trainers.leave(stopped=stopped)

    def _disconnect(self) -> None:
        self._has_left = True
        self._send_last()
        if self._graceful_stop is not None:
            self._graceful_stop.uninstall()
        self._is_disconnected = True
        self._strategy.leave()
        self._checkpoint_group.close()

    def _at_boundary(self, step: int, is_new: bool, begins: bool) -> bool:
        """Save or stop between two steps, if all trainers save or stop here. This is StepTracker's `at_boundary`.

        Returns:
            False after leave().

        Raises:
            SystemExit: The run stops here, with exit code 0.
        """
        if self._has_left:
            return False
        if is_new:
            self._strategy.samples = self._progress.samples
            self._strategy.at_boundary(step)
        if self._graceful_stop is not None and not self._graceful_stop.may_begin(step, begin=begins):
            self._stop(step)
        if self._saver is not None:
            self._saver.at_boundary(step)
        return True

    def _stop(self, step: int) -> None:
        outcome = "nothing was saved"
        self._end_collectives(stopped=True)
        try:
            self._strategy.flush(step)
        except RolesError as error:
            print(f"torchyard: {error}", flush=True)  # The remaining state is still saved.
        if self._saver is not None and self._saver.automatic:
            saved = self._saver.save(step, last=True)
            outcome = "a checkpoint is saved" if saved else "it could not be saved"
            self._checkpoint_group.wait_until_saved()
        print(f"torchyard: stopped after step {step}; {outcome}.", flush=True)
        self._disconnect()
        raise SystemExit(0)

    def _on_loader_request(self, loader: ShareLoader, more: bool) -> None:
        if self._saver is not None and loader in self._saver.loaders:
            self._saver.active = self._saver.loaders.index(loader)
        self._steps.at_loader_request(more)

    def _before_step(self) -> None:
        if self._resumed is not None and not self._resumed.waits_for_loader:
            self._finish_resume()

    def _after_step(self) -> None:
        self._resumed = None
        self._send_if_due(at_step=True)

    def _finish_resume(self) -> None:
        """Restore the remaining state when the resumed run has reached the point where it was saved."""
        if self._resumed is not None and self._first is not None and self._saver is not None:
            self._resumed.finish(self._first, self._saver.stateful, self._device)

    def _open_checkpoints(self) -> None:
        if self._saver is not None or not self._environment.checkpoints:
            return
        if self._checkpoint_group.size == 1 and self._environment.group_size > 1 and not self.is_chief:
            return  # With the strategy `none`, each process trains its own model, and only the chief's model is saved.
        from pathlib import Path

        from torchyard_roles.checkpoints.saver import CheckpointSaver

        root = Path(self._environment.checkpoints)
        store, size = self._checkpoint_group.meet(), self._checkpoint_group.size
        self._saver = CheckpointSaver(root, self._environment, self._strategy, self._device, store, size)

    def _restore(self, model: torch.nn.Module, optimizer: Any) -> dict[str, Any]:
        """Load the newest checkpoint into the model, if there is one. Return the fingerprint of model and optimizer."""
        from torchyard_roles.checkpoints import restore
        from torchyard_roles.checkpoints.fingerprint import fingerprint

        now = fingerprint(model, optimizer)
        if self._saver is not None:
            root, store, size = self._saver.root, self._checkpoint_group.meet(), self._checkpoint_group.size
            self._resumed = restore.restore(root, self._environment, store, size, now, model, self._device)
        return now

    def _send_if_due(self, *, at_step: bool) -> None:
        if self._reporter.is_open and self._progress.due(at_step=at_step):
            wait_s = 0.0 if self._progress.was_taken else REPORT_WAIT_S
            self._reporter.send(self._progress.take(self._strategy.statistics()), wait_s)

    def _send_last(self) -> None:
        if self._reporter.is_open and self._progress.unsent:
            self._reporter.send(self._progress.take(self._strategy.statistics()), REPORT_WAIT_S)
        self._reporter.close()

    def _abandon(self) -> None:
        """Disconnect after an exception, without waiting.

        An orderly leave() could block on a GPU that waits for peers. The peers detect the closed connections.
        """
        if not self._is_disconnected and os.getpid() == self._process:
            self._has_left = self._is_disconnected = True
            self._send_last()
            self._strategy.abandon()

    def _leave_at_exit(self) -> None:
        if hasattr(sys, "last_value"):
            self._abandon()
            return
        try:
            self.leave()
        except RolesError as error:
            # An exception in an exit handler would leave the exit code at 0.
            print(f"torchyard: {error}", file=sys.stderr)
            self._abandon()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
