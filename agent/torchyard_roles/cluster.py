"""What a training script holds: its place among the others, and the four calls that make it one of them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, overload

from torchyard_roles.checkpoints.checkpoint_group import CheckpointGroup
from torchyard_roles.environment import Environment
from torchyard_roles.errors import RolesError, UsageProblem
from torchyard_roles.keeper_reports import Reporter
from torchyard_roles.script_checks import check_plain, check_trainable
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
"""How long the first and the last report may wait for a keeper that is busy; all others never wait."""


class Cluster:
    """The run as this process sees it. Made by join()."""

    def __init__(self, environment: Environment, strategy: Strategy, device: torch.device) -> None:
        self._environment = environment
        self._strategy = strategy
        self._device = device
        self._team = CheckpointGroup(environment, goes_its_own_way=strategy.trains_alone)
        self._progress = Progress()
        self._reporter = Reporter(environment)
        self._process = os.getpid()
        self._left = False
        self._has_parted = False
        """Whether the strategy's connections have ended: where leave() fails, that is still to come."""
        self._optimizers: list[torch.optim.Optimizer] = []
        """All that were given to distribute()."""
        self._first: Any = None
        """Of the first call: one optimizer, or an OptimizerList."""
        self._calls = 0
        self._resumed_at = 0
        self._accumulated_by_hand = False
        """Where a script updates its parameters by hand: whether gradients have come since the last step."""
        self._have_stepped: set[int] = set()
        """Where there are several optimizers: those that have stepped since the last boundary."""
        self._stopping: GracefulStop | None = None
        self._saving: CheckpointSaver | None = None
        self._resumed: Resumed | None = None
        self._collectives: Collectives | None = None
        self._in_step = False
        self._has_loader = False
        """Whether a loader of the cluster's says where a step begins."""
        self._evaluations = 0
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

    def distribute(self, model: Any, optimizer: Any = None) -> Any:
        """The model and optimizer to train with from here on: the same objects, which take part in the run now.

        All trainers start from the chief's parameters, or from the newest complete checkpoint where there is one.
        Several of either are given as lists (`distribute([generator, critic], [its_optimizer, the_other])`), or in
        further calls before the first step, alike on all trainers. Without an optimizer, for a script that updates
        its parameters by hand, the model alone is returned. Raises UsageProblem where a call cannot be meant like
        that, and for the checkpoint of another model.
        """
        from torchyard_roles.devices import move_optimizer
        from torchyard_roles.model_optimizer_pairs import Pairs
        from torchyard_roles.module_hooks import NoSync, before_forward

        pairs = Pairs(model, optimizer)
        self._check_distributed(pairs)
        for each in pairs.models:
            each.to(self._device)
        for each in pairs.optimizers:
            move_optimizer(each, self._device)
        is_first = not self._optimizers
        self._optimizers += pairs.optimizers
        if not self._environment.trains:
            return pairs.given()
        self._team.agree(pairs.model, pairs.optimizer, number=self._calls)
        self._calls += 1
        if is_first:
            self._begin(pairs)
        else:
            self._begin_also(pairs)
        for each in pairs.optimizers:
            each.register_step_pre_hook(self._about_to_step)
            each.register_step_post_hook(self._stepped)
        if pairs.updates_by_hand:
            for parameter in pairs.model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self._accumulated)
        for each in pairs.models:
            before_forward(each, self._about_to_compute)
            if not hasattr(each, "no_sync"):
                each.no_sync = NoSync(self._strategy.accumulating)
        return pairs.given()

    def _check_distributed(self, pairs: Pairs) -> None:
        if self._optimizers and (self._progress.steps != self._resumed_at or self._in_step):
            raise UsageProblem(
                "distribute() was called after training had begun.",
                "Call it for all models and optimizers before the first forward and step.",
            )
        known = {id(each) for each in self._optimizers}
        if any(id(each) in known for each in pairs.optimizers):
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

    def _begin(self, pairs: Pairs) -> None:
        """The first pair: what is read from the newest checkpoint comes with it."""
        self._open_checkpoints()
        model, optimizer = pairs.model, pairs.optimizer
        fingerprint = self._restore(model, optimizer)
        self._share_out(pairs)
        step = 0
        if self._resumed is not None:
            step = self._resumed_at = self._resumed.step
            self._resumed.into(optimizer, self._device)
            self._progress.resume(step)
            assert self._saving is not None
            self._strategy.restore(self._saving.root, step)
            for number, loader in enumerate(self._saving.loaders):
                self._resumed.place(number, loader, self._go_on)
        self._first = optimizer
        if self._saving is not None:
            self._saving.start(model, optimizer, fingerprint, step)
        self._stopping = self._team.answer_sigterm(step)

    def _begin_also(self, pairs: Pairs) -> None:
        """A further pair, saved and restored beside the first: its optimizer as what is given to checkpoint(), and its
        model once, before it is shared out. What others have of it may be newer."""
        model, optimizer = f"model {self._calls}", f"optimizer {self._calls}"
        resumed = self._resumed
        if resumed is not None and model in resumed.models:
            pairs.model.load_state_dict(resumed.models[model])
        self._share_out(pairs)
        if resumed is not None and optimizer in resumed.stateful:
            pairs.optimizer.load_state_dict(resumed.stateful[optimizer])
        if self._saving is not None:
            if resumed is not None:
                self._strategy.restore(self._saving.root, resumed.step)
            self._saving.models[model] = pairs.model
            self._saving.stateful[optimizer] = pairs.optimizer

    def _share_out(self, pairs: Pairs) -> None:
        for each in pairs.optimizers:
            self._strategy.distribute(pairs.model_of(each), each, self._device)

    def checkpoint(self, *, now: bool = False, **stateful: Any) -> None:
        """Save and restore more than model and optimizer: `cluster.checkpoint(scheduler=scheduler)`.

        Each object has state_dict() and load_state_dict(). Called after distribute(), before the loop, by
        all trainers alike; in a resumed run it restores them at once. `now=True` saves at the next step boundary that
        all trainers can meet at. A script run by hand is checkpointed from the first call on, if TORCHYARD_CHECKPOINTS
        names a folder; else this does nothing. Raises UsageProblem for what cannot be saved.
        """
        from torchyard_roles.checkpoints.training_state import copied

        if not self._optimizers:
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
        """This worker's share of the data, in batches of `batch_size` of its own, on its device.

        Args:
            dataset: or a DataLoader, whose data and options are taken over.
            batch_size, shuffle, options: DataLoader's, with its defaults: batches of 1, not shuffled.
            seed: fixes the order, which changes with every epoch. Without one several workers take 0, and a single
                process takes torch's generator as any DataLoader does.
            evaluation: each sample goes to exactly one worker, in the dataset's order, so that `mean()` of sums and of
                counts gives the exact metric. Shares may differ by one sample or be empty. Counts for nothing in
                training: neither steps nor epochs.

        Raises UsageProblem for what cannot be shared out, such as a sampler of the script's own.
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
            asked=self._asked_by_loader,
            evaluating=self._evaluate if evaluation else None,
        )
        if evaluation:
            return loader
        if self._environment.trains:
            self._open_checkpoints()
        if self._saving is not None:
            self._saving.loaders.append(loader)
            if self._resumed is not None:
                self._resumed.place(len(self._saving.loaders) - 1, loader, self._go_on)
        return loader

    def accumulate(self) -> AbstractContextManager[None]:
        """A context whose backward passes add to the gradients without exchanging them.

        What they have added is exchanged with the last backward pass, made outside, or by the optimizer's step().
        """
        return self._strategy.accumulating()

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The script's own module: without what distribute() or torch.compile() put around it."""
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
        """Scale all gradients down so that their norm is at most `max_norm`; returns the norm before, one number.

        Or, with `value`, bring each element of them to between -`value` and `value`, and return nothing. Those of
        `optimizer`, where the script has several and one of them steps next, or else of all. Called by all
        trainers alike, right before `optimizer.step()` (with a GradScaler after its `unscale_`). In every strategy it
        is the norm of the gradients that the step uses: the mean over all workers, in asynchronous kinds over the
        worker group. With parameter servers that is something else than `torch.nn.utils.clip_grad_norm_`, which sees
        the worker's own gradients before they are averaged; there too the gradients here stay as they are, and the
        norm is NaN on a worker whose own are not finite. Where not every step is pushed and pulled
        (`push_every`, `pull_every`) each worker clips its own. Raises UsageProblem for an optimizer that distribute()
        was not given.
        """
        if not self._optimizers:
            raise UsageProblem("clip_gradients() was called before distribute().", "Call it after distribute().")
        if (max_norm is None) == (value is None):
            raise UsageProblem(
                "clip_gradients() takes either a norm or a value.",
                "Call clip_gradients(1.0) for a norm of at most 1, or clip_gradients(value=0.5).",
            )
        if optimizer is not None and not any(optimizer is each for each in self._optimizers):
            raise UsageProblem(
                "clip_gradients() got an optimizer that distribute() was not given.",
                "Name one that distribute() was given, or none for all.",
            )
        clipped = self._optimizers if optimizer is None else [optimizer]
        groups = [group for each in clipped for group in each.param_groups]
        parameters = [each for group in groups for each in group["params"]]
        if value is not None:
            if not value > 0:
                raise UsageProblem(f"clip_gradients(value={value}) leaves no gradient.", "Give it a value above 0.")
            self._strategy.clip_values(parameters, value)
            return None
        if max_norm is None or not max_norm > 0:
            raise UsageProblem(f"clip_gradients({max_norm}) leaves no gradient.", "Give it a norm above 0.")
        return self._strategy.clip_gradients(parameters, max_norm)

    def mean(self, x: Any) -> Any:
        """The mean over all trainers of a number (a float), a tensor (on its device), or a dict or list of them.

        Summed in double precision, each trainer counting alike; the mean of a tensor of whole numbers is float64. This
        and the four calls below are made by all trainers alike, in the same order. An evaluator has its own value. In
        asynchronous kinds a group that was started again joins the call that the others wait in, and one that has
        ended is not waited for from then on. Raises PeerLost where a trainer has ended without the call, and
        StoreTimeout where one did not come within half an hour.
        """
        return self._all.mean(x)

    def gather(self, x: Any) -> list[Any]:
        """Each trainer's `x`, in the order of ranks: a number, text, a tensor, or a dict or list of them.

        Tensors may differ in shape. One that was on a GPU arrives on this process's device.
        """
        return self._all.gather(x)

    def any(self, flag: Any) -> bool:
        """Whether it is true on any trainer, such as `if cluster.any(patience == 0): break`."""
        return self._all.any(flag)

    def barrier(self) -> None:
        """Return once all trainers have called it."""
        self._all.barrier()

    def broadcast(self, x: Any) -> Any:
        """The chief's `x`, on all trainers; what the others pass counts for nothing. As for gather()."""
        return self._all.broadcast(x)

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
        if self._have_stepped or self._accumulated_by_hand:
            self._end_step()
        self._left = True
        self._make_no_more_calls()
        saving = self._saving if self._optimizers else None
        if saving is not None and saving.automatic and self._strategy.ends_last:
            saving.save(self._progress.steps, last=True)
        anew = self._strategy.finish() if self._optimizers else False
        if saving is not None and saving.automatic:
            saving.save(self._progress.steps, last=True, final=True, anew=anew)
        self._part()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves as leave() does; an exception passes through, and the others learn of it as of a script's end."""
        if kind is None or issubclass(kind, SystemExit):
            self.leave()
        else:
            self._abandon()

    @property
    def _all(self) -> Collectives:
        if self._collectives is None:
            from torchyard_roles.coordination.collectives import Collectives

            self._collectives = Collectives(
                self._environment, self._device, self._team.meet, lambda: self._resumed is not None
            )
        return self._collectives

    def _make_no_more_calls(self, *, stopped: bool = False) -> None:
        """Those who wait in mean() and the like must not wait for this process."""
        with suppress(RolesError):  # without a store no trainer waits there
            self._all.leave(stopped=stopped)

    def _part(self) -> None:
        self._left = True
        self._send_last()
        if self._stopping is not None:
            self._stopping.uninstall()
        self._has_parted = True
        self._strategy.leave()
        self._team.close()

    # Between two steps

    def _boundary(self, *, more: bool = True) -> None:
        """What happens between two steps: save and stop, where all have agreed to.

        `more` is False where the next step isn't begun yet. Raises SystemExit(0) where all leave.
        """
        if self._in_step or not self._optimizers or self._left:
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
        self._make_no_more_calls(stopped=True)
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
        self._has_loader = True
        if self._have_stepped:
            self._end_step()
        elif self._accumulated_by_hand:
            self._count_step()
        self._boundary(more=more)

    def _evaluate(self, begins: bool) -> None:
        """A loader of evaluations begins or has ended: the forwards in between are no step's."""
        self._evaluations += 1 if begins else -1

    def _about_to_compute(self) -> None:
        self._strategy.before_forward()
        if self._accumulated_by_hand and not self._has_loader:
            self._count_step()
        if not self._evaluations:
            self._begin_step()

    def _accumulated(self, _: torch.Tensor) -> None:
        self._accumulated_by_hand = True

    def _about_to_step(self, *_: Any) -> None:
        self._begin_step()

    def _begin_step(self) -> None:
        if not self._in_step:
            if self._resumed is not None and not self._resumed.waits_for_loader:
                self._go_on()
            self._boundary()

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer's step is over. With several optimizers, a step of the run is all that they do with a batch of
        the cluster's loader; in a script without one, it is over once each of them has stepped."""
        if len(self._optimizers) == 1:
            self._count_step()
            return
        self._have_stepped.add(id(optimizer))
        if not self._has_loader and len(self._have_stepped) == len(self._optimizers):
            self._end_step()

    def _end_step(self) -> None:
        self._have_stepped.clear()
        self._count_step()

    def _count_step(self) -> None:
        self._progress.step()
        self._in_step = self._accumulated_by_hand = False
        self._resumed = None
        self._send_if_due(at_step=True)

    def _go_on(self) -> None:
        """The resume point."""
        if self._resumed is not None and self._first is not None and self._saving is not None:
            self._resumed.finish(self._first, self._saving.stateful, self._device)

    # Before the first

    def _open_checkpoints(self) -> None:
        if self._saving is not None or not self._environment.checkpoints:
            return
        if self._team.size == 1 and self._environment.group_size > 1 and not self.is_chief:
            return  # with strategy none each trains a model of its own: only the chief's is kept
        from pathlib import Path

        from torchyard_roles.checkpoints.saver import CheckpointSaver

        root = Path(self._environment.checkpoints)
        store, size = self._team.meet(), self._team.size
        self._saving = CheckpointSaver(root, self._environment, self._strategy, self._device, store, size)

    def _restore(self, model: torch.nn.Module, optimizer: Any) -> dict[str, Any]:
        """The fingerprint of both, after what the newest checkpoint holds has been brought into the model."""
        from torchyard_roles.checkpoints import restore
        from torchyard_roles.checkpoints.fingerprint import fingerprint

        now = fingerprint(model, optimizer)
        if self._saving is not None:
            root, store, size = self._saving.root, self._team.meet(), self._team.size
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
        """An exception ended the script. Parting in good order could wait for a GPU that waits for peers, and the peers
        learn soonest from the connections that end with this process."""
        if not self._has_parted and os.getpid() == self._process:
            self._left = self._has_parted = True
            self._send_last()
            self._strategy.abandon()

    def _leave_at_exit(self) -> None:
        if hasattr(sys, "last_value"):
            self._abandon()
            return
        try:
            self.leave()
        except RolesError as error:
            # Python would print a traceback, and end with 0 as if all were well.
            print(f"torchyard: {error}", file=sys.stderr)
            self._abandon()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
