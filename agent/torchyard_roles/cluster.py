"""The class Cluster, with which a training script distributes models, loads data, reports and saves checkpoints."""

from __future__ import annotations

import json
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
    from torchyard_roles.profiling.step_recorder import StepRecorder
    from torchyard_roles.strategies.strategy import Strategy

REPORT_WAIT_S = 0.2
"""Longest time in seconds for which the first and the last report wait for a busy keeper. Other reports do not wait."""


class Cluster:
    """The run as seen by one of its processes. join() creates the instance."""

    def __init__(self, environment: Environment, strategy: Strategy, device: torch.device) -> None:
        self._environment = environment
        self._strategy = strategy
        self._device = device
        self._checkpoint_group = CheckpointGroup(
            environment, trains_alone=strategy.trains_alone, members=strategy.members
        )
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
        """Whether the strategy's connections are closed or being closed.

        Still False if leave() failed before it closed the connections.
        """
        self._model: Any = None
        """The model of the first distribute() call, or a ModuleList of its models."""
        self._first: Any = None
        """The optimizer of the first distribute() call, or an OptimizerList of its optimizers."""
        self._calls = 0
        self._gradient_bytes = 0
        """Total size in bytes of all models' gradients, for reports."""
        self._resumed_at = 0
        self._graceful_stop: GracefulStop | None = None
        self._saver: CheckpointSaver | None = None
        self._resumed: Resumed | None = None
        self._fingerprint: dict[str, Any] = {}
        self._has_returned = False
        """Whether this process has rejoined the other workers after its loss."""
        self._catches_up = False
        """Whether this process has returned after its loss and is in its training loop, but behind the other workers.
        """
        self._epochs_published: list[int] = []
        self._collectives: Collectives | None = None
        self._recorder: StepRecorder | None = None
        """Measures the steps if TORCHYARD_PROFILE is set."""
        if environment.profile and environment.trains:
            from torchyard_roles.profiling.step_recorder import recorder_for

            self._recorder = recorder_for(environment.profile)

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
        """The number of this process among the trainers, or None for an evaluator."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """The number of training processes in the run when this process started. Evaluators are not counted.

        The number changes only when all workers restart, not when a worker is lost or added.
        """
        return self._environment.world_size

    @property
    def is_chief(self) -> bool:
        """Whether this process is the trainer that saves checkpoints and prints for the run.

        This is rank 0, or the first remaining rank if the run continues without a lost worker.
        """
        return self._environment.trains and self._environment.rank == self._strategy.first_rank

    @property
    def device(self) -> torch.device:
        """The device of this process, to which distribute() and loader() move models and batches."""
        return self._device

    @property
    def has_left(self) -> bool:
        return self._has_left

    def distribute(self, model: Any, optimizer: Any = None) -> Any:
        """Includes a model and its optimizer in the distributed training, and returns the same objects.

        All trainers start from the newest complete checkpoint or, if there is none, from the chief's parameters. (Under
        the strategy `none`, each trainer starts from its own parameters.) Several models or optimizers are given as
        lists (`distribute([generator, critic], [optimizer_g, optimizer_c])`), or in several calls before the first
        step, in the same order on all trainers. If the script updates its parameters by hand and gives no optimizer,
        only the model is returned.

        Raises:
            UsageProblem: The arguments cannot be trained, differ between trainers, or do not fit the checkpoint.
        """
        from torchyard_roles.model_optimizer_pairs import Pairs

        pairs = Pairs(model, optimizer)
        self._check_distributed(pairs)
        if self._has_returned:
            raise UsageProblem(
                "distribute() was called after checkpoint() on a worker that returns after its loss.",
                "Call distribute() for all models before checkpoint().",
            )
        is_first = not self._steps.optimizers
        self._steps.optimizers += pairs.optimizers
        if self._environment.trains:
            self._checkpoint_group.agree(pairs.model, pairs.optimizer, number=self._calls)
        self._strategy.prepare(pairs.models, pairs.optimizers, self._device)
        if not self._environment.trains:
            return pairs.given()
        self._calls += 1
        if is_first:
            self._begin_first(pairs)
        else:
            self._begin_further(pairs)
        if self._recorder is not None:
            self._recorder.watch(pairs)
        self._steps.watch(pairs)
        self._gradient_bytes += pairs.gradient_bytes
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
                f"Under {self._environment.strategy} {self._strategy.needs_optimizer}, but distribute() was given no "
                "optimizer.",
                "Give it the optimizer that updates the model, or set strategy.kind to all_reduce without shard.",
            )
        for each in pairs.models:
            check_plain(each)
        check_trainable(pairs.models, pairs.optimizers)

    def _begin_first(self, pairs: Pairs) -> None:
        """Handles the first call to distribute(), which also restores the newest checkpoint."""
        self._open_checkpoints()
        model, optimizer = pairs.model, pairs.optimizer
        self._model = model
        self._fingerprint = fingerprint = self._restore(model, optimizer)
        self._distribute_pairs(pairs)
        if self._is_joining:
            self._first = optimizer
            self._graceful_stop = self._checkpoint_group.answer_sigterm(0)
            return
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
        """Handles a call to distribute() after the first one.

        The model and optimizer of this call are saved and restored together with those of the first call. The model is
        loaded before the strategy distributes it, because the strategy may replace the checkpoint's parameters by newer
        ones of servers or other groups.
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
        """Saves and restores additional objects with each checkpoint: `cluster.checkpoint(scheduler=scheduler)`.

        This method must be called after distribute() and before the training loop, with the same names on all trainers.
        In a resumed run, the call restores the objects. A script that is started by hand saves checkpoints only if it
        calls this method and TORCHYARD_CHECKPOINTS is set to a folder.

        Args:
            now: Whether to save at the next step boundary that all trainers can reach together.
            stateful: Objects with state_dict() and load_state_dict().

        Raises:
            UsageProblem: A checkpoint cannot contain an object or its state, or distribute() was not called before.
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
        elif not self._saver.loaders:
            self._join_peers()
        if now:
            self._saver.ask()

    def evaluations(self, model: torch.nn.Module) -> Iterator[int]:
        """Loads each new checkpoint into `model` and yields its step, until training ends. Evaluators call this method.

        In other roles the iterator is empty, so a script may contain such a loop before its training loop. The iterator
        is also empty if there is no folder for checkpoints. Metrics that are reported inside the loop have the step of
        the checkpoint.
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
        """Returns a DataLoader of this worker's share of the data, which moves batches to this worker's device.

        Args:
            dataset: A dataset, or a DataLoader whose dataset and options are used.
            batch_size, shuffle, options: As in DataLoader. The batch size is per worker.
            seed: The seed of the order, which changes with every epoch. The default is 0 with several workers, and
                torch's default generator in a single process.
            evaluation: Whether each sample is given to exactly one worker, in the dataset's order. An exact metric can
                then be computed with `mean()` of the workers' sums and of their counts. The workers' numbers of samples
                may differ by one or be 0. An evaluation counts neither as steps nor as an epoch.

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
            before_epoch=self._before_epoch,
            cut=self._recorder.cut if self._recorder is not None and not evaluation else None,
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
        """Returns a context in which backward passes accumulate gradients without exchanging them.

        The accumulated gradients are exchanged in the next backward pass outside the context, or in the optimizer's
        step().
        """
        return self._strategy.accumulating()

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Returns the plain module without wrappers such as the wrapper of torch.compile()."""
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
        """Clips the gradients of the next step by their norm, or each element by its magnitude.

        This method must be called on all trainers immediately before `optimizer.step()` (with a GradScaler after its
        `unscale_`). It clips the gradients that the step uses: the mean over all workers, or over the worker group in
        asynchronous strategies. With parameter servers the servers clip: the local gradients stay unchanged, and the
        norm is NaN on a worker whose own gradients are not finite. If a step is not pushed or pulled (`push_every`,
        `pull_every`), each worker clips its own gradients.

        Args:
            max_norm: The largest norm.
            value: The largest magnitude of an element.
            optimizer: The optimizer that steps next, if there are several. The default is all optimizers.

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
        """Returns the mean over all trainers of a number, a tensor, or a dict or list of them.

        Sums are computed in double precision. The mean of an integer tensor is float64. A tensor stays on its device.
        All trainers must call mean(), gather(), any(), barrier() and broadcast() in the same order. In an evaluator,
        the result depends only on the evaluator's value. In asynchronous strategies a restarted group joins the call in
        which the other groups wait, or gets the result of an earlier call again. A group that has ended is ignored if
        the run is being stopped or a group was restarted; otherwise the call raises PeerLost.

        Raises:
            PeerLost: A trainer ended before it made the same call.
            StoreTimeout: A trainer did not make the same call within half an hour.
        """
        return self._all_trainers.mean(x)

    def gather(self, x: Any) -> list[Any]:
        """Returns the `x` of each trainer in rank order: a number, text, a tensor, or a dict or list of them.

        The trainers' tensors may differ in shape. Another trainer's GPU tensor is returned on this process's device.
        """
        return self._all_trainers.gather(x)

    def any(self, flag: Any) -> bool:
        """Returns whether `flag` is true on any trainer, as in `if cluster.any(patience == 0): break`."""
        return self._all_trainers.any(flag)

    def barrier(self) -> None:
        """Waits until all trainers have called this method."""
        self._all_trainers.barrier()

    def broadcast(self, x: Any) -> Any:
        """Returns the chief's `x` on all trainers. The `x` of the other trainers is ignored.

        `x` may be any value that gather() accepts.
        """
        return self._all_trainers.broadcast(x)

    def report(self, **metrics: Any) -> None:
        """Reports metrics to the desktop, such as `loss=loss`. Values are numbers, or tensors with one element.

        This method may be called in every step: at most 5 reports per second are sent, and tensors are read only for
        reports that are sent. A metric with a new name is sent immediately. Steps and throughput are measured
        automatically.
        """
        self._progress.note(metrics)
        self._send_if_due(at_step=False)

    def leave(self) -> None:
        """Saves the last checkpoint, sends the last report and disconnects.

        This method is called automatically at the script's end.
        """
        if self._has_left or os.getpid() != self._process:
            return
        self._steps.end_pending()
        self._has_left = True
        if self._is_joining:
            self._disconnect()
            return
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
        """Calls leave() or, after an exception other than SystemExit, disconnects immediately.

        The exception is not suppressed.
        """
        if kind is None or issubclass(kind, SystemExit):
            self.leave()
        else:
            self._abandon()

    @property
    def _all_trainers(self) -> Collectives:
        if self._collectives is None:
            from torchyard_roles.coordination.collectives import Collectives

            self._collectives = Collectives(
                self._environment,
                self._device,
                self._checkpoint_group.meet,
                lambda: self._resumed is not None,
                self._strategy.members,
                lambda: self._catches_up,
            )
        return self._collectives

    def _end_collectives(self, *, stopped: bool = False) -> None:
        """Declares that this process makes no further collective calls, so other processes do not wait for it."""
        with suppress(RolesError):  # If the store is lost, the other processes cannot be informed.
            self._all_trainers.leave(stopped=stopped)

    def _disconnect(self) -> None:
        self._has_left = True
        if self._recorder is not None:
            self._recorder.write()
        self._send_last()
        if self._graceful_stop is not None:
            self._graceful_stop.uninstall()
        self._is_disconnected = True
        self._strategy.leave()
        self._checkpoint_group.close()

    def _at_boundary(self, step: int, is_new: bool, begins: bool) -> bool:
        """Saves a checkpoint or stops training if this is due on all trainers. Called between two steps.

        Args:
            step: The number of finished steps.
            is_new: Whether this is the first call since the last step ended.
            begins: Whether a step begins now.

        Returns:
            False if leave() has been called, otherwise True.

        Raises:
            SystemExit: Training stops at this step.
        """
        if self._has_left:
            return False
        members = self._strategy.members
        if members is not None:
            members.settle()
        if is_new:
            self._strategy.samples = self._progress.samples
            self._strategy.at_boundary(step)
        if self._graceful_stop is not None:
            if is_new and self._strategy.expects_stop:
                self._graceful_stop.wait_for_request()
            if not self._graceful_stop.may_begin(step, begin=begins):
                self._stop(step)
        if self._saver is not None:
            self._saver.at_boundary(step)
        # A worker that has joined the others at this boundary takes no part in a hand-over here, because the other
        # workers have already passed this boundary.
        has_joined_here = self._has_returned and step == self._resumed_at
        if begins and members is not None and members.is_return_due and not has_joined_here:
            from torchyard_roles.checkpoints import peer_state

            members.hand_over(lambda: peer_state.encode(self._saver, self._strategy, step))
        if members is not None:
            self._publish_epochs()
        return True

    @property
    def _epochs_key(self) -> str:
        return f"epochs/{self._environment.gang}/{self._environment.generation}"

    def _publish_epochs(self) -> None:
        """Publishes the number of epochs that have begun.

        Returning workers derive from this number which epochs are finished.
        """
        store = self._checkpoint_group.meet()
        begun = [loader.epochs_begun for loader in self._saver.loaders] if self._saver is not None else []
        if self.is_chief and store is not None and begun != self._epochs_published:
            self._epochs_published = begun
            store.set(self._epochs_key, json.dumps(begun).encode())

    def _before_epoch(self, loader: ShareLoader) -> None:
        """Makes a returning worker skip a finished epoch, or join the other workers in the current epoch.

        The other workers train while this worker repeats the script's code at the end of finished epochs.
        """
        store = self._checkpoint_group.meet()
        if not self._is_joining or self._saver is None or store is None:
            return
        self._catches_up = True
        number = self._saver.loaders.index(loader)
        begun = json.loads(store.try_get(self._epochs_key) or b"[]")
        if number < len(begun) and begun[number] > loader.epochs_begun + 1:
            loader.skip_epochs(begun[number] - 1)
        else:
            self._join_peers()

    @property
    def _is_joining(self) -> bool:
        """Whether this worker, which returns after its loss or was added to the run, has not joined the others yet."""
        return self._strategy.members is not None and self._strategy.members.is_joining

    def _join_peers(self) -> None:
        """If this worker has not joined the other workers yet, waits for them and loads the state of one of them.

        Called when the script requests a batch or begins a step.
        """
        members = self._strategy.members
        if members is None or not members.is_joining or self._first is None:
            return
        if self._saver is None or not (self._saver.loaders or self._saver.stateful):
            what = "join the others" if self._environment.started_with else "return after its loss"
            raise UsageProblem(
                f"{self._environment.name} cannot {what}: the script counts its steps itself, so it "
                "would not end together with the other workers.",
                "Take batches from cluster.loader(), or give the script's position to cluster.checkpoint().",
            )
        from torchyard_roles.checkpoints import peer_state

        stop = self._graceful_stop
        state = peer_state.decode(members.join(lambda: stop is not None and stop.is_requested))
        self._has_returned = self._catches_up = True
        self._resumed = resumed = state.resumed
        self._resumed_at = state.step
        self._model.load_state_dict(state.model)
        resumed.into(self._first, self._device)
        self._progress.resume(state.step)
        if stop is not None:
            stop.continue_from(state.step)
        if self._saver is not None:
            for name, model in self._saver.models.items():
                model.load_state_dict(resumed.models[name])
            for name, each in self._saver.stateful.items():
                if name in resumed.stateful:
                    each.load_state_dict(resumed.stateful[name])
            for number, loader in enumerate(self._saver.loaders):
                resumed.place(number, loader, self._finish_resume)
            self._saver.start(self._model, self._first, self._fingerprint, state.step)
        self._strategy.load_exchange_state(state.exchange, state.step)
        what = "has joined" if self._environment.started_with else "is back"
        print(f"torchyard: {self._environment.name} {what} at step {state.step}.", flush=True)

    def _stop(self, step: int) -> None:
        outcome = "nothing was saved"
        self._end_collectives(stopped=True)
        try:
            self._strategy.flush(step)
        except RolesError as error:
            print(f"torchyard: {error}", flush=True)  # A checkpoint is saved even after an error.
        if self._saver is not None and self._saver.automatic:
            saved = self._saver.save(step, last=True)
            outcome = "a checkpoint is saved" if saved else "it could not be saved"
            self._checkpoint_group.wait_until_saved()
        print(f"torchyard: stopped after step {step}; {outcome}.", flush=True)
        self._disconnect()
        raise SystemExit(self._graceful_stop.exit_code if self._graceful_stop is not None else 0)

    def _on_loader_request(self, loader: ShareLoader, more: bool) -> None:
        if self._saver is not None and loader in self._saver.loaders:
            self._saver.active = self._saver.loaders.index(loader)
        self._steps.at_loader_request(more)

    def _before_step(self) -> None:
        self._join_peers()
        if self._resumed is not None and not self._resumed.waits_for_loader:
            self._finish_resume()

    def _after_step(self) -> None:
        self._resumed = None
        self._send_if_due(at_step=True)
        if self._recorder is not None:
            self._recorder.stepped()

    def _finish_resume(self) -> None:
        """Restores the remaining state of the checkpoint once the resumed run has reached the checkpoint's position."""
        self._catches_up = False
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
        """Loads the newest checkpoint, if there is one, and returns the fingerprint of `model` and `optimizer`."""
        from torchyard_roles.checkpoints import restore
        from torchyard_roles.checkpoints.fingerprint import fingerprint

        now = fingerprint(model, optimizer)
        if self._saver is not None and not self._is_joining:
            root, store, size = self._saver.root, self._checkpoint_group.meet(), self._checkpoint_group.size
            sharded = self._strategy.sharded_saving
            self._resumed = restore.restore(
                *(root, self._environment, store, size, now, model, self._device), sharded=sharded, optimizer=optimizer
            )
            if sharded is not None and self._resumed is not None:
                sharded.needs_values = False
        return now

    def _statistics(self) -> dict[str, float]:
        found = self._strategy.statistics()
        if self._gradient_bytes:
            found["gradient_bytes"] = float(self._gradient_bytes)
        return found

    def _send_if_due(self, *, at_step: bool) -> None:
        if self._reporter.is_open and self._progress.due(at_step=at_step):
            wait_s = 0.0 if self._progress.was_taken else REPORT_WAIT_S
            self._reporter.send(self._progress.take(self._statistics()), wait_s)

    def _send_last(self) -> None:
        if self._reporter.is_open and self._progress.unsent:
            self._reporter.send(self._progress.take(self._statistics()), REPORT_WAIT_S)
        self._reporter.close()

    def _abandon(self) -> None:
        """Disconnects after an exception, without waiting.

        leave() could block here, because the GPU may be waiting for peers. The peers detect the closed connections.
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
            # An exception in an exit handler would not change the exit code, which would remain 0.
            print(f"torchyard: {error}", file=sys.stderr)
            self._abandon()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
