"""Averages gradients over all ranks.

Gradients are averaged in each backward pass by hooks, which are called when a gradient is accumulated. The model is not
wrapped. Gradients that a script assigns to `.grad` itself are averaged before the optimizer's step.

    backward   hooks run; a bucket with all its gradients is sent while the pass continues
    pass end   ranks exchange, in one small message, which buckets they touched; the remaining buckets are sent, and the
               averages are written to `.grad`, before clipping and unscaling
    step()     gradients that no pass has averaged (assigned by hand, or accumulated under no_sync) are averaged

Averaging is idempotent, since the mean of equal values is that value. Therefore a bucket may be exchanged again after
further accumulation, and a rank without a new gradient contributes its current gradient. The message also shows whether
all ranks are in the same step and pass. If not, all ranks raise UsageProblem.

The design follows Horovod's DistributedOptimizer; buckets and their order follow torch's DistributedDataParallel.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable

import torch

from torchyard_roles.errors import PeerLost, UsageProblem
from torchyard_roles.strategies.buffer_sync import SyncedBuffers
from torchyard_roles.strategies.gloo_group import Copies, GlooGroup, naming_lost_ranks
from torchyard_roles.strategies.gradient_buckets import BUCKET_BYTES, Average, Bucket, Entry, Section
from torchyard_roles.strategies.gradient_noise import GradientNoise
from torchyard_roles.strategies.parameter_check import TOLERANCE, figures, first_difference, is_due

EVENTS = 8
"""Maximum number of recorded pairs of GPU events whose times have not been read yet."""
LAST_CHECK_S = 30.0
"""Longest time in seconds to wait for the other ranks before the last comparison of parameters."""
_PASS, _STEP, _END = 1, 2, 3
_HEADER = 12
"""Number of integers in a message's header: six counts, each followed by its negative.

The maxima of a count and of its negative over all ranks show the largest and the smallest count of any rank.
"""
_STEPS_AT, _ROUND_AT, _NEW_AT, _CHECK_AT = 2, 4, 6, 10
_DENSE, _SPARSE = 1, 2
_MARK = "_averaged_at"
"""Attribute of an averaged gradient that holds its version counter after the averaging."""


class GradientAverager:
    """Averages this rank's gradients with the gradients of all other ranks.

    Args:
        average_of: Returns the function that averages the buckets of one section. Called once for each section, in the
            same order on all ranks.
        factor: A factor by which gradients are multiplied before they are sent.
        bucket_bytes: The size of a bucket in bytes.
        hardware: A description of this rank's hardware. If all ranks have equal descriptions, parameters must be
            bitwise equal.
        after_round: Called on all ranks with the number of a round, after its buckets have been averaged and before
            the averages are used.
        group: The group for messages between the ranks. The default is a new group of all ranks.
        noise: Estimates the gradient noise scale.
    """

    def __init__(
        self,
        device: torch.device,
        average_of: Callable[[], Average],
        *,
        factor: float = 1.0,
        bucket_bytes: int = BUCKET_BYTES,
        hardware: str = "",
        after_round: Callable[[int], None] = lambda round_: None,
        group: GlooGroup | None = None,
        noise: GradientNoise | None = None,
    ) -> None:
        self._noise = noise or GradientNoise(1)
        self._step_passes = 0
        """Number of backward passes in the last step whose gradients were exchanged."""
        self._device = device
        self._average_of = average_of
        self._factor = factor
        self._bucket_bytes = bucket_bytes
        self._after_round = after_round
        self._group = group or GlooGroup()
        self._copies = Copies(self._encoded_averages, self._set_averages)
        self._sections: list[Section] = []
        self._entries: list[Entry] = []
        self._entry_of: dict[int, Entry] = {}
        """Entries by the ID of their parameter. An entry keeps its parameter alive, so the ID is not reused."""
        self._optimizers: list[Any] = []
        self._buffers = SyncedBuffers()
        self._frozen: list[Entry] = []
        self._accumulating = 0
        self._armed = False
        self._fired = False
        """Whether the current pass has accumulated gradients."""
        self._round = 0
        self._steps = 0
        self._passes = 0
        """Number of backward passes since the last optimizer step."""
        self._all_passes = 0
        self._wants_check = False
        self._waited_s = 0.0
        self._met_s = 0.0
        """Time in seconds that this rank has waited for messages of other ranks in the current exchange."""
        self._exchanged_s = 0.0
        self._events: list[tuple[Any, Any]] = []
        self._closed = False
        self._is_uniform = False
        if not self._group.is_joining:
            number = zlib.crc32(hardware.encode()) & 0x7FFFFFFF
            most, negative = self._group.maximum([number, -number])
            self._is_uniform = most == -negative

    def add(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Sets parameters and buffers to the first rank's values, and installs the hooks that average the gradients."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        registered = len(self._entries)
        self._optimizers.append(optimizer)
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameters in (own, model.parameters()):
            unique = {id(each): each for each in parameters}
            new = [each for at, each in unique.items() if at not in self._entry_of]
            if new:
                self._register([(names.get(id(each), "a parameter of the optimizer"), each) for each in new])
        self._buffers.add(model)
        if self._group.is_joining:
            return
        self._group.broadcast([entry.parameter.data for entry in self._entries[registered:]] + self._buffers.values())
        self._buffers.note()

    def _register(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[Entry]:
        entries = [Entry(len(self._entries) + number, *each) for number, each in enumerate(named)]
        self._entries += entries
        self._entry_of.update((id(entry.parameter), entry) for entry in entries)
        self._frozen += entries
        self.notice_unfrozen()
        self._sections.append(Section(entries, self._average_of(), self._bucket_bytes))
        self._number_buckets()
        return entries

    def _number_buckets(self) -> None:
        for number, bucket in enumerate(self._buckets()):
            bucket.number = number

    def _buckets(self) -> list[Bucket]:
        return [bucket for section in self._sections for bucket in section.buckets]

    def notice_unfrozen(self) -> None:
        """Installs hooks on parameters that have become trainable. Called before forward passes and steps."""
        if not any(entry.parameter.requires_grad for entry in self._frozen):
            return
        for entry in self._frozen:
            if entry.parameter.requires_grad:
                watch = partial(self._accumulated, entry)
                entry.handle = entry.parameter.register_post_accumulate_grad_hook(watch)
        self._frozen = [entry for entry in self._frozen if entry.handle is None]

    def close(self) -> None:
        """Removes all hooks. Each parameter keeps its last gradient."""
        self._closed = True
        for entry in self._entries:
            if entry.handle is not None:
                entry.handle.remove()
                entry.handle = None
        for section in self._sections:
            section.average = _after_the_end
        self._group.close()

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Returns a context in which gradients are not exchanged.

        The next backward pass or step after the context averages the accumulated gradients.
        """
        self._accumulating += 1
        try:
            yield
        finally:
            self._accumulating -= 1

    def before_forward(self) -> None:
        """Prepares for a forward pass that records gradients.

        If the exchange of an earlier backward pass is still scheduled, an exception has ended that pass. Raises
        UsageProblem if gradients of that pass have already been sent.
        """
        self.notice_unfrozen()
        if not self._armed or torch._C._current_graph_task_id() != -1:
            return
        if any(bucket.wait is not None for bucket in self._buckets()):
            raise UsageProblem(
                "A backward pass ended with an exception that the script caught, after some of its gradients had "
                "been sent to the other ranks.",
                "Let the exception end the script: its gang is started again from the newest checkpoint.",
            )
        self._armed = False
        for section in self._sections:
            section.begin()

    def arm(self, *_: Any) -> None:
        """Schedules the exchange of the remaining gradients for the end of the current backward pass.

        Call this method at the start of the pass. Reentrant activation checkpointing runs nested backward passes. If
        the first call came from a nested pass, the exchange would start at the end of that pass.
        """
        if self._accumulating or self._closed or self._armed:
            return
        self._armed = True
        self._fired = False
        self._noise.begin()
        torch.autograd.Variable._execution_engine.queue_callback(self._finish_pass)

    def _accumulated(self, entry: Entry, _: torch.Tensor) -> None:
        bucket = entry.bucket
        assert bucket is not None
        bucket.touched = True
        if self._accumulating or self._closed:
            return
        if not self._armed:
            self.arm()
        self._fired = True
        if bucket.wait is not None:
            bucket.late = True
        elif not entry.fired:
            entry.fired = True
            section = bucket.section
            section.order.append(entry)
            bucket.fired += 1
            if bucket.fired == len(bucket.entries):
                for ready in section.ready():
                    self._launch(ready)

    def _launch(self, bucket: Bucket) -> None:
        self._group.settle()
        if bucket.is_sparse:
            bucket.wait = _nothing
        else:
            flat = bucket.filled(self._factor)
            self._noise.add_own(flat, self._factor)
            bucket.wait = bucket.section.average(flat, self._round, bucket.number)

    def _finish_pass(self) -> None:
        self._armed = False
        if not self._fired:
            return  # The pass accumulated no gradients, as in torch.autograd.grad().
        self._passes += 1
        self._all_passes += 1
        self._exchange(_PASS)
        self._noise.end()

    def settle(self, optimizers: Sequence[Any] | None = None) -> None:
        """Averages the gradients that no backward pass has averaged.

        All ranks must call this before using the gradients.
        """
        if self._closed:
            return
        self.notice_unfrozen()
        new: list[torch.nn.Parameter] = []
        left = False
        chosen = self._optimizers if optimizers is None else optimizers
        for parameter in (each for one in chosen for group in one.param_groups for each in group["params"]):
            entry = self._entry_of.get(id(parameter))
            if entry is None:
                new.append(parameter)
                continue
            gradient = parameter.grad
            if gradient is None:
                continue
            version = getattr(gradient, _MARK, None)
            bucket = entry.bucket
            assert bucket is not None
            # In-place changes of averaged gradients after the pass, such as clipping, need no exchange, because they
            # are the same on all ranks.
            if bucket.touched or version is None or (version != gradient._version and not self._passes):
                bucket.touched = left = True
        if new:
            self._add_parameters(new)
        if left or new:
            self._exchange(_STEP)

    def _add_parameters(self, parameters: list[torch.nn.Parameter]) -> None:
        """Adds parameters that the script has added to the optimizer since distribute()."""
        self._meet(_STEP, new=(len(parameters), sum(each.numel() for each in parameters)))
        entries = self._register([(f"added parameter {number}", each) for number, each in enumerate(parameters)])
        self._wants_check = True  # The values of new parameters may differ between ranks.
        for entry in entries:
            assert entry.bucket is not None
            entry.bucket.touched = True

    def stepped(self) -> None:
        """Counts a step that an optimizer has taken."""
        self._steps += 1
        self._step_passes, self._passes = self._passes, 0
        self._wants_check |= is_due(self._steps)

    def resume(self, step: int) -> None:
        """Sets the number of finished steps to the step of a checkpoint."""
        self._steps = step

    def state(self) -> dict[str, Any]:
        """Returns the state of the exchange between two steps as plain data. All ranks have the same state."""
        return {
            "counts": [self._round, self._steps, self._passes, self._all_passes],
            "wants_check": self._wants_check,
            "is_uniform": self._is_uniform,
            "parameters": len(self._entries),
            "sections": [
                [section.rounds, [[entry.number for entry in bucket.entries] for bucket in section.buckets]]
                for section in self._sections
            ],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Sets a state that another rank's state() returned.

        Parameters and buffers must already be those of that rank.

        Raises:
            UsageProblem: The other rank has different parameters, because its script added some during training.
        """
        if state["parameters"] != len(self._entries) or len(state["sections"]) != len(self._sections):
            raise UsageProblem(
                f"The optimizers have {len(self._entries)} parameters here, and {state['parameters']} on the workers "
                "that this worker joins.",
                "A worker cannot return after add_param_group() during training: set strategy.on_worker_loss to "
                "restart.",
            )
        self._round, self._steps, self._passes, self._all_passes = state["counts"]
        self._wants_check, self._is_uniform = state["wants_check"], state["is_uniform"]
        for section, (rounds, buckets) in zip(self._sections, state["sections"]):
            section.rounds = rounds
            section.set_buckets([[self._entries[number] for number in bucket] for bucket in buckets])
        self._number_buckets()
        self._buffers.note()

    def note_samples(self, samples: int) -> None:
        """Records the number of samples that this rank has used. Called at the boundary after a step."""
        self._noise.step(samples, self._step_passes)

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples, or None if it is not yet known."""
        return self._noise.scale

    def want_check(self) -> None:
        """Requests that all ranks' parameters are compared in the next exchange, before a step changes them."""
        self._wants_check = True

    def _exchange(self, kind: int) -> None:
        """Averages all buckets that have new gradients on any rank. All ranks must call this method together."""
        began = time.monotonic()
        start = _recorded() if self._device.type == "cuda" and len(self._events) < EVENTS else None
        self._met_s = 0.0
        if not self._steps:  # If the script has no optimizer, backward passes are counted instead of steps.
            self._wants_check |= self._all_passes > 1 and is_due(self._all_passes - 1)
        met_pass = True
        while met_pass:
            agreed = self._group.complete(partial(self._average, kind, self._round), self._copies)
            # If another rank is in a backward pass while this rank is in settle(), this rank first takes part in the
            # exchange of that pass, and then repeats its own exchange.
            met_pass = kind == _STEP and -agreed[1] == _PASS
            self._use(agreed[_HEADER:])
            if agreed[_CHECK_AT]:
                self._compare_parameters()
        self._waited_s = self._met_s
        self._exchanged_s = time.monotonic() - began
        if start is not None:
            self._events.append((start, _recorded()))

    def _average(self, kind: int, round_: int) -> list[int]:
        """Averages the buckets that any rank marked in its message, and returns the maximum of all ranks' messages.

        The averages are written to the buckets' flat tensors. This method may be called again after an interruption.
        """
        self._round = round_
        requested_at = time.monotonic()
        agreed = self._meet(kind, self._flags())
        self._met_s += time.monotonic() - requested_at
        self._reduce(agreed[_HEADER:])
        return agreed

    def _encoded_averages(self, agreed: list[int]) -> list[torch.Tensor]:
        """Encodes the combined message and the averages of the last exchange, for a rank that did not receive them."""
        numbers = torch.tensor([self._round, *agreed], dtype=torch.int64, device="cpu")
        flats = [bucket.flat.cpu() for bucket in self._chosen(agreed[_HEADER:]) if not bucket.is_sparse]
        return [each.view(torch.uint8) for each in (numbers, *flats)]

    def _set_averages(self, parts: list[torch.Tensor]) -> list[int]:
        """Writes another rank's averages to the flat tensors, and returns the combined message."""
        numbers: list[int] = parts[0].view(torch.int64).tolist()
        self._round, agreed = numbers[0], numbers[1:]
        buckets = [bucket for bucket in self._chosen(agreed[_HEADER:]) if not bucket.is_sparse]
        for bucket, part in zip(buckets, parts[1:]):
            bucket.receive(part)
        return agreed

    def _chosen(self, agreed: Sequence[int]) -> list[Bucket]:
        """Returns the buckets that any rank marked in its message."""
        return [bucket for number, bucket in enumerate(self._buckets()) if agreed[2 * number]]

    def withdraw(self) -> None:
        """Gives all buckets new flat tensors after an interrupted exchange, which may still write to the old ones."""
        self._noise.drop()
        for bucket in self._buckets():
            bucket.withdraw()

    def set_members(self, count: int) -> None:
        """Sets the number of ranks. Gradients are divided by this number from now on."""
        self._factor = 1 / count
        self._noise.workers = count

    def _flags(self) -> list[int]:
        """Returns the flags that a message contains after its header.

        Each bucket has two flags (touched and late), each parameter has the kind of its gradient, and each buffer has
        one flag (changed).
        """
        found: list[int] = []
        for bucket in self._buckets():
            found += (bucket.touched, bucket.late)
        for entry in self._entries:
            gradient = entry.parameter.grad
            found.append(0 if gradient is None else _SPARSE if gradient.is_sparse else _DENSE)
        return found + self._buffers.changed()

    def _meet(self, kind: int, flags: Sequence[int] = (), new: tuple[int, int] = (0, 0)) -> list[int]:
        """Sends a message to all ranks, and returns the maximum of each of its numbers over all ranks.

        Raises UsageProblem if the ranks' steps differ.

        All messages have the same length, because gloo aborts the process if lengths differ.
        """
        agreed = self._group.maximum(self._message(kind, flags, new, check=self._wants_check))
        if agreed[_STEPS_AT] != -agreed[_STEPS_AT + 1]:
            raise UsageProblem(
                f"The ranks are out of step: this one has made {self._steps} optimizer steps, and the ranks "
                f"range from {-agreed[_STEPS_AT + 1]} to {agreed[_STEPS_AT]}.",
                "All ranks must make the same backward passes and steps. Base each decision about them on "
                "cluster.any() or cluster.mean(), and not on a rank's own data or number.",
            )
        if agreed[_NEW_AT] != -agreed[_NEW_AT + 1] or agreed[_NEW_AT + 2] != -agreed[_NEW_AT + 3]:
            raise UsageProblem(
                "Parameters were added to the optimizers after distribute(), and they differ between the ranks.",
                "Make the same calls of add_param_group() on all ranks.",
            )
        if agreed[_ROUND_AT] != -agreed[_ROUND_AT + 1] or (_END in (agreed[0], -agreed[1]) and agreed[0] != -agreed[1]):
            done = f"{self._steps} optimizer steps" if self._steps else f"{self._all_passes} backward passes"
            raise UsageProblem(
                f"The ranks are out of step: after {done} one has ended its training, or made fewer backward "
                "passes than the others.",
                "All ranks must make the same backward passes and steps: give them equal numbers of batches, and "
                "base the decision to stop on cluster.any() or cluster.mean().",
            )
        return agreed

    def _message(
        self, kind: int, flags: Sequence[int] = (), new: tuple[int, int] = (0, 0), *, check: bool = False
    ) -> list[int]:
        counts = [kind, self._steps, self._round, *new, check]
        numbers = [each for count in counts for each in (count, -count)] + list(flags)
        length = _HEADER + 2 * len(self._buckets()) + len(self._entries) + len(self._buffers)
        return numbers + [0] * (length - len(numbers))

    def _reduce(self, agreed: Sequence[int]) -> None:
        buckets = self._buckets()
        chosen = self._chosen(agreed)
        late = [bucket for number, bucket in enumerate(buckets) if agreed[2 * number + 1]]
        for bucket in chosen:
            if bucket.wait is None:
                self._launch(bucket)
        self._wait_for(chosen)
        if late:
            self._noise.drop()
            self._round += 1
            for bucket in late:
                self._launch(bucket)
            self._wait_for(late)
        self._round += 1

    def _use(self, agreed: Sequence[int]) -> None:
        """Writes the averages to the gradients, and synchronizes the buffers that have changed."""
        buckets = self._buckets()
        chosen = self._chosen(agreed)
        kinds = agreed[2 * len(buckets) : 2 * len(buckets) + len(self._entries)]
        for bucket in chosen:
            if bucket.is_sparse:
                self._noise.drop()
            else:
                self._noise.add_mean(bucket.flat)
            self._write_back(bucket, kinds)
        changed = agreed[2 * len(buckets) + len(self._entries) :]
        if any(changed):
            self._group.broadcast([value for value, differs in zip(self._buffers.values(), changed) if differs])
            self._buffers.note(changed)
        sections = {id(bucket.section): bucket.section for bucket in chosen}.values()
        for section in sections:
            section.rounds += 1
            if section.rounds & (section.rounds - 1) == 0:  # The buckets are rearranged after 1, 2, 4, 8 … exchanges.
                self._rearrange(section)
            section.begin()

    def _wait_for(self, buckets: Iterable[Bucket]) -> None:
        with naming_lost_ranks():
            for bucket in buckets:
                assert bucket.wait is not None
                bucket.wait()
        self._after_round(self._round)

    def _write_back(self, bucket: Bucket, kinds: Sequence[int]) -> None:
        targets, sources = [], []
        with torch.no_grad():
            for number, entry in enumerate(bucket.entries):
                parameter, kind = entry.parameter, kinds[entry.number]
                gradient = parameter.grad
                if kind and (kind == _SPARSE or bucket.is_sparse):
                    entry.sparse = True
                    parameter.grad = self._group.average_sparse(parameter)
                elif kind and (gradient is None or gradient.requires_grad):
                    parameter.grad = bucket.views[number].clone()
                elif kind:
                    targets.append(gradient)
                    sources.append(bucket.views[number])
            if targets:
                torch._foreach_copy_(targets, sources)
            for entry in bucket.entries:
                gradient = entry.parameter.grad
                if gradient is not None:
                    setattr(gradient, _MARK, gradient._version)

    def _rearrange(self, section: Section) -> None:
        """Arranges the parameters in buckets, in the order in which the first rank computed their gradients.

        Parameters without a gradient in this pass come last.
        """
        came = {id(entry) for entry in section.order}
        current = [entry for bucket in section.buckets for entry in bucket.entries]
        wanted = section.order + [entry for entry in current if id(entry) not in came]
        numbers = torch.tensor([entry.number for entry in wanted], dtype=torch.int64, device="cpu")
        self._group.broadcast([numbers])
        order = [self._entries[number] for number in numbers.tolist()]
        if order != current or any(entry.sparse != entry.bucket.is_sparse for entry in order if entry.bucket):
            section.arrange(order)
            self._number_buckets()

    def _compare_parameters(self) -> None:
        """Raises UsageProblem on all ranks if parameters differ between ranks, and names the first such parameter."""
        self._wants_check = False
        own = figures([entry.parameter for entry in self._entries], exact=self._is_uniform)
        bounds = torch.cat([own, -own])
        self._group.maximize(bounds)
        first = first_difference(bounds, exact=self._is_uniform)
        if first is None:
            return
        entry = self._entries[first]
        near = "" if self._is_uniform else f" by more than {TOLERANCE:g} of its norm"
        when = f"step {self._steps}" if self._steps else f"backward pass {self._all_passes}"
        raise UsageProblem(
            f"After {when} the parameter {entry.name} differs between the ranks{near}: something other "
            "than averaged gradients has changed it, differently on each rank.",
            "Look for decisions that each rank makes from its own data: a scheduler fed with a local loss (give it "
            "cluster.mean(loss)), noise, or parameters changed by hand.",
        )

    def finish(self) -> bool:
        """Compares the parameters of all ranks at the end of training.

        Returns:
            False if another rank has left, or did not call finish() within LAST_CHECK_S, and otherwise True.
        """
        if self._closed or not self._entries:
            return True
        message = self._message(_END)
        agreed = torch.tensor(message, dtype=torch.int32, device="cpu")
        try:
            self._group.maximize(agreed, LAST_CHECK_S)
        except PeerLost:
            return False
        if agreed[:_ROUND_AT].tolist() != message[:_ROUND_AT]:
            return False
        self._compare_parameters()
        return True

    def average_value(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the mean of a small tensor over all ranks, on the tensor's device."""
        return self._group.mean(value)

    def times(self) -> tuple[float, float]:
        """Returns two times of the last exchange in seconds: without waiting, and waiting for other ranks.

        On a GPU the exchange is measured by GPU events, and the waiting time by the host's clock.
        """
        while self._events and self._events[0][1].query():
            start, end = self._events.pop(0)
            self._exchanged_s = max(self._waited_s, start.elapsed_time(end) / 1000)
        return max(0.0, self._exchanged_s - self._waited_s), self._waited_s


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _nothing() -> None:
    pass


def _after_the_end(flat: torch.Tensor, round_: int, bucket: int) -> Callable[[], object]:
    raise UsageProblem("A backward pass came after cluster.leave().", "Call leave() after the training loop.")
