"""Averaging of gradients over the ranks of one torch world, whichever way they were computed.

The unit is the backward pass, not the call of a wrapped forward: hooks on gradient accumulation see every gradient,
and what a script assigns to `.grad` by hand is averaged when its optimizer steps. So the model stays the script's own.

    backward   hooks fire; a bucket whose gradients are all there goes on its way while the pass continues
    its end    ranks tell each other, in one small message, which buckets they touched: those that are not on their
               way yet follow, and averages are written to `.grad`. Clipping and unscaling see averages
    step()     gradients that no pass has averaged (assigned by hand, or accumulated under no_sync) are averaged now

Averaging is idempotent: the mean of equal values is that value. So a bucket may be exchanged again when more was added
to its gradients, and a rank without a new gradient takes part with what it has. Ranks whose steps or passes no longer
correspond find out from the message, and all of them raise UsageProblem; nothing is averaged with something else.

The design follows Horovod's DistributedOptimizer; buckets and their order follow torch's DistributedDataParallel.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Callable

import torch
import torch.distributed as dist

from torchyard_roles.errors import PeerLost, RolesError, UsageProblem

FIRST_BUCKET_BYTES = 1024 * 1024
"""The first bucket is smaller, so that the exchange begins early, as DistributedDataParallel has it."""
BUCKET_BYTES = 25 * 1024 * 1024
BROADCAST_BYTES = 64 * 1024 * 1024
"""Tensors are broadcast in runs of so many bytes."""
EVENTS = 8
"""Pairs of GPU events that are kept while no report is due."""
CHECK_EVERY = 1000
"""Steps between two comparisons of all parameters, after those of steps 1, 2, 4, 8 …"""
TOLERANCE = 1e-3
"""By which a parameter's norm may differ between ranks, relative to it, where they have other models of GPU: then
equal operations give unequal bits. Ranks on equal hardware must agree bit for bit."""
LAST_CHECK_S = 30.0
"""How long a rank waits for the others at its end, to compare parameters with theirs."""
_PASS, _STEP, _END = 1, 2, 3
_HEADER = 12
"""Numbers at the start of a message, each followed by its negative: their maxima are the bounds over the ranks."""
_STEPS_AT, _ROUND_AT, _NEW_AT, _CHECK_AT = 2, 4, 6, 10
_DENSE, _SPARSE = 1, 2
_MARK = "_averaged_at"
"""Attribute of a gradient that was averaged: its version counter then."""

Average = Callable[[torch.Tensor, int, int], Callable[[], object]]
"""(flat tensor, round, bucket) → a call that returns when the tensor holds the mean over all ranks."""


class _Entry:
    """A parameter. `fired`: how often its gradient was accumulated since the last exchange."""

    __slots__ = ("bucket", "fired", "handle", "name", "number", "parameter", "sparse")

    def __init__(self, number: int, name: str, parameter: torch.nn.Parameter) -> None:
        self.number = number
        self.name = name
        self.parameter = parameter
        self.bucket: _Bucket | None = None
        self.fired = False
        self.sparse = False
        self.handle: Any = None


class _Bucket:
    """Parameters whose gradients travel together. Memory is allocated when they first do."""

    def __init__(self, section: _Section, entries: list[_Entry]) -> None:
        self.section = section
        self.entries = entries
        self.is_sparse = entries[0].sparse
        """Whether all its gradients were sparse before: then they are not sent as one flat tensor."""
        self.number = 0
        self.views: list[torch.Tensor] = []
        self._flat: torch.Tensor | None = None
        self.fired = 0
        """Parameters whose gradients have come in this pass."""
        self.touched = False
        """Gradients have come that are not averaged yet."""
        self.late = False
        """Gradients have come after the bucket had been sent."""
        self.wait: Callable[[], object] | None = None
        for entry in entries:
            entry.bucket = self

    def filled(self, factor: float) -> torch.Tensor:
        """The gradients times a factor, one after the other; zeros stand for absent ones."""
        if self._flat is None:
            parameters = [entry.parameter for entry in self.entries]
            sizes = [parameter.numel() for parameter in parameters]
            first = parameters[0]
            self._flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
            self.views = [part.view(each.shape) for part, each in zip(self._flat.split(sizes), parameters)]
        with torch.no_grad():
            for view, entry in zip(self.views, self.entries):
                gradient = entry.parameter.grad
                if gradient is None or gradient.is_sparse:
                    view.zero_()
                elif gradient.dtype == view.dtype and gradient.device == view.device:
                    torch.mul(gradient.detach(), factor, out=view)  # in one go over the memory
                else:
                    raise UsageProblem(
                        f"The gradient of {entry.name} is {gradient.dtype} on {gradient.device}, but the parameter "
                        f"was {view.dtype} on {view.device} when distribute() was called.",
                        "Convert and move the model before distribute().",
                    )
        return self._flat

    def begin(self) -> None:
        """Nothing has come for the next pass yet."""
        self.fired = 0
        self.touched = self.late = False
        self.wait = None
        for entry in self.entries:
            entry.fired = False


class _Section:
    """Parameters that are sent in an order of their own, the same on all ranks: those of one optimizer."""

    def __init__(self, entries: list[_Entry], average: Average, bucket_bytes: int) -> None:
        self.average = average
        self.rounds = 0
        self.order: list[_Entry] = []
        """Entries in the order in which their gradients came in this pass."""
        self.buckets: list[_Bucket] = []
        self._bucket_bytes = bucket_bytes
        self._next = 0
        """The first bucket that was not sent in this pass."""
        self.arrange(list(reversed(entries)))

    def arrange(self, entries: Sequence[_Entry]) -> None:
        """Make buckets of these entries, which are in the order in which their gradients are expected."""
        open_: dict[tuple[Any, ...], tuple[list[_Entry], int]] = {}
        runs: list[list[_Entry]] = []
        limit = min(FIRST_BUCKET_BYTES, self._bucket_bytes)
        for entry in entries:
            parameter = entry.parameter
            kind = (parameter.device, parameter.dtype, entry.sparse, parameter.requires_grad)
            run, size = open_.pop(kind, ([], 0))
            run.append(entry)
            size += parameter.numel() * parameter.element_size()
            if size < limit:
                open_[kind] = run, size
            else:
                runs.append(run)
                limit = self._bucket_bytes
        runs += [run for run, _ in open_.values()]
        place = {id(entry): number for number, entry in enumerate(entries)}
        # A bucket waits for those before it: frozen parameters, whose gradients do not come, are last.
        runs.sort(key=lambda run: (not run[0].parameter.requires_grad, place[id(run[-1])]))
        self.buckets = [_Bucket(self, run) for run in runs]

    def ready(self) -> Iterator[_Bucket]:
        """Buckets whose turn it is and whose gradients have all come."""
        while self._next < len(self.buckets):
            bucket = self.buckets[self._next]
            if bucket.fired < len(bucket.entries):
                return
            self._next += 1
            yield bucket

    def begin(self) -> None:
        """Nothing has come for the next pass yet."""
        self.order = []
        self._next = 0
        for bucket in self.buckets:
            bucket.begin()


class GradientAverager:
    """One rank's averaging of gradients.

    `average_of` makes the exchange of one section, on all ranks in the same order. Gradients are sent multiplied by
    `factor`. `hardware` names what this rank computes on: where it is the same on all ranks, their parameters must be
    equal bit for bit. `after_round` is called on all ranks alike, when the buckets of a round are there and before
    they are used.
    """

    def __init__(
        self,
        rank: int,
        device: torch.device,
        average_of: Callable[[], Average],
        *,
        factor: float = 1.0,
        bucket_bytes: int = BUCKET_BYTES,
        hardware: str = "",
        after_round: Callable[[int], None] = lambda round_: None,
    ) -> None:
        self._rank = rank
        self._device = device
        self._average_of = average_of
        self._factor = factor
        self._bucket_bytes = bucket_bytes
        self._after_round = after_round
        self._small: Any = dist.new_group(backend="gloo")
        """For messages and what lives on the CPU. A group of its own: a script's collectives may come in between."""
        self._sections: list[_Section] = []
        self._entries: list[_Entry] = []
        self._entry_of: dict[int, _Entry] = {}
        """By the identity of the parameter, which its entry keeps alive."""
        self._optimizers: list[Any] = []
        self._buffers: list[tuple[torch.nn.Module, str]] = []
        self._copies: list[torch.Tensor | None] = []
        """Buffers as all ranks have them, on the CPU. None on a GPU, where comparing would wait for it."""
        self._frozen: list[_Entry] = []
        self._accumulating = 0
        self._armed = False
        self._fired = False
        """Whether the pass that is on has accumulated gradients."""
        self._round = 0
        self._steps = 0
        self._passes = 0
        """Backward passes since the last optimizer step."""
        self._all_passes = 0
        self._wants_check = False
        self._waited_s = 0.0
        self._exchanged_s = 0.0
        self._events: list[tuple[Any, Any]] = []
        self._closed = False
        number = zlib.crc32(hardware.encode()) & 0x7FFFFFFF
        most, negative = self._maximum([number, -number])
        self._is_uniform = most == -negative

    # Setting up

    def add(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Average the gradients of these parameters from now on; all begin with the first rank's values."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        known = len(self._entries)
        self._optimizers.append(optimizer)
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameters in (own, model.parameters()):
            new = [each for each in _unique(parameters) if id(each) not in self._entry_of]
            if new:
                self._register([(names.get(id(each), "a parameter of the optimizer"), each) for each in new])
        seen = {(id(module), name) for module, name in self._buffers}
        self._buffers += [
            (module, name)
            for module in model.modules()
            for name, value in module._buffers.items()
            if value is not None and (id(module), name) not in seen
        ]
        values = self._buffer_values()
        self._broadcast([entry.parameter.data for entry in self._entries[known:]] + values)
        self._copies = [_copy(value) for value in values]

    def _register(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[_Entry]:
        entries = [_Entry(len(self._entries) + number, *each) for number, each in enumerate(named)]
        self._entries += entries
        self._entry_of.update((id(entry.parameter), entry) for entry in entries)
        self._frozen += entries
        self.notice_unfrozen()
        self._sections.append(_Section(entries, self._average_of(), self._bucket_bytes))
        self._number_buckets()
        return entries

    def _number_buckets(self) -> None:
        for number, bucket in enumerate(self._buckets()):
            bucket.number = number

    def _buckets(self) -> list[_Bucket]:
        return [bucket for section in self._sections for bucket in section.buckets]

    def notice_unfrozen(self) -> None:
        """Watch parameters that have become trainable. Cheap, since it is called before every forward."""
        if not any(entry.parameter.requires_grad for entry in self._frozen):
            return
        for entry in self._frozen:
            if entry.parameter.requires_grad:
                watch = partial(self._accumulated, entry)
                entry.handle = entry.parameter.register_post_accumulate_grad_hook(watch)
        self._frozen = [entry for entry in self._frozen if entry.handle is None]

    def close(self) -> None:
        """Watch nothing any longer. The parameters keep their last gradients."""
        self._closed = True
        for entry in self._entries:
            if entry.handle is not None:
                entry.handle.remove()
                entry.handle = None
        for section in self._sections:
            section.average = _after_the_end
        if dist.is_initialized():
            dist.destroy_process_group(self._small)
        self._small = None

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes in here exchange nothing; the next pass outside, or the step, averages what they left."""
        self._accumulating += 1
        try:
            yield
        finally:
            self._accumulating -= 1

    # In a backward pass

    def before_forward(self) -> None:
        """A forward that records gradients begins. If a pass is still armed, an exception has broken it off."""
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
        """Have the exchange finished at the end of the backward pass that is on.

        Called from a hook at its start where possible: a reentrant checkpoint makes passes inside it, whose ends are
        not the pass's own.
        """
        if self._accumulating or self._closed or self._armed:
            return
        self._armed = True
        self._fired = False
        torch.autograd.Variable._execution_engine.queue_callback(self._finish_pass)

    def _accumulated(self, entry: _Entry, _: torch.Tensor) -> None:
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

    def _launch(self, bucket: _Bucket) -> None:
        if bucket.is_sparse:
            bucket.wait = _nothing
        else:
            bucket.wait = bucket.section.average(bucket.filled(self._factor), self._round, bucket.number)

    def _finish_pass(self) -> None:
        self._armed = False
        if not self._fired:
            return  # such as torch.autograd.grad(), which accumulates nothing
        self._passes += 1
        self._all_passes += 1
        self._exchange(_PASS)

    # Around a step

    def settle(self, optimizers: Sequence[Any] | None = None) -> None:
        """Average what no pass has averaged. Called by all ranks alike, before the gradients are used."""
        if self._closed:
            return
        self.notice_unfrozen()
        new: list[torch.nn.Parameter] = []
        left = False
        for parameter in _parameters_of(self._optimizers if optimizers is None else optimizers):
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
            # What changes an averaged gradient in place after a pass, such as clipping, does so alike on all ranks.
            if bucket.touched or version is None or (version != gradient._version and not self._passes):
                bucket.touched = left = True
        if new:
            self._add_parameters(new)
        if left or new:
            self._exchange(_STEP)

    def _add_parameters(self, parameters: list[torch.nn.Parameter]) -> None:
        """Parameters of a group that the script has added since distribute()."""
        self._meet(_STEP, new=(len(parameters), sum(each.numel() for each in parameters)))
        entries = self._register([(f"added parameter {number}", each) for number, each in enumerate(parameters)])
        self._wants_check = True  # before the step, since nothing has made them equal
        for entry in entries:
            assert entry.bucket is not None
            entry.bucket.touched = True

    def stepped(self) -> None:
        """An optimizer has stepped."""
        self._steps += 1
        self._passes = 0
        self._wants_check |= is_due(self._steps)

    def resume(self, step: int) -> None:
        """Go on counting from a checkpoint's step."""
        self._steps = step

    def want_check(self) -> None:
        """Compare the parameters of all ranks in the next exchange: before they change."""
        self._wants_check = True

    # The exchange

    def _exchange(self, kind: int) -> None:
        """Average all buckets that any rank has touched. All ranks are in here together."""
        began = time.monotonic()
        start = _recorded() if self._device.type == "cuda" and len(self._events) < EVENTS else None
        waited_s = 0.0
        if not self._steps:  # a script may update its parameters without an optimizer
            self._wants_check |= self._all_passes > 1 and is_due(self._all_passes - 1)
        meets_a_pass = True
        while meets_a_pass:
            asked_at = time.monotonic()
            agreed = self._meet(kind, self._flags())
            waited_s += time.monotonic() - asked_at
            # A rank that is about to step takes part in another's pass, and then asks again.
            meets_a_pass = kind == _STEP and -agreed[1] == _PASS
            self._reduce(agreed[_HEADER:])
            if agreed[_CHECK_AT]:
                self._compare_parameters()
        self._waited_s = waited_s
        self._exchanged_s = time.monotonic() - began
        if start is not None:
            self._events.append((start, _recorded()))

    def _flags(self) -> list[int]:
        """For each bucket whether it is touched and whether it is late, for each parameter what gradient it has, for
        each buffer whether it has changed."""
        found: list[int] = []
        for bucket in self._buckets():
            found += (bucket.touched, bucket.late)
        for entry in self._entries:
            gradient = entry.parameter.grad
            found.append(0 if gradient is None else _SPARSE if gradient.is_sparse else _DENSE)
        for value, copy in zip(self._buffer_values(), self._copies):
            found.append(copy is None or not _is_same(value, copy))
        return found

    def _meet(self, kind: int, flags: Sequence[int] = (), new: tuple[int, int] = (0, 0)) -> list[int]:
        """The maximum of each number over all ranks. Raises UsageProblem, on all alike, where they are not together.

        Messages of all kinds have the same length: gloo aborts where lengths differ.
        """
        counts = [kind, self._steps, self._round, *new, self._wants_check]
        header = [each for count in counts for each in (count, -count)]
        agreed = self._maximum(self._padded([*header, *flags]))
        if agreed[_STEPS_AT] != -agreed[_STEPS_AT + 1]:
            raise UsageProblem(
                f"The ranks are no longer together: this one has made {self._steps} optimizer steps, and the ranks "
                f"range from {-agreed[_STEPS_AT + 1]} to {agreed[_STEPS_AT]}.",
                "All ranks must make the same backward passes and steps. Decide alike whether to make one, by "
                "cluster.any() or cluster.mean(), and not by a rank's own data or number.",
            )
        if agreed[_NEW_AT] != -agreed[_NEW_AT + 1] or agreed[_NEW_AT + 2] != -agreed[_NEW_AT + 3]:
            raise UsageProblem(
                "The optimizers have parameters that distribute() did not see, and not the same on all ranks.",
                "Call add_param_group() alike on all ranks.",
            )
        if agreed[_ROUND_AT] != -agreed[_ROUND_AT + 1] or (_END in (agreed[0], -agreed[1]) and agreed[0] != -agreed[1]):
            done = f"{self._steps} optimizer steps" if self._steps else f"{self._all_passes} backward passes"
            raise UsageProblem(
                f"The ranks are no longer together: after {done} one has ended its training, or made fewer backward "
                "passes than the others.",
                "All ranks must make the same backward passes and steps: give them batches of equal number, and decide "
                "alike when to stop, by cluster.any() or cluster.mean().",
            )
        return agreed

    def _padded(self, numbers: list[int]) -> list[int]:
        length = _HEADER + 2 * len(self._buckets()) + len(self._entries) + len(self._buffers)
        return numbers + [0] * (length - len(numbers))

    def _maximum(self, numbers: Sequence[int]) -> list[int]:
        message = torch.tensor(numbers, dtype=torch.int32, device="cpu")
        with _naming_lost_ranks():
            dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self._small)
        found: list[int] = message.tolist()
        return found

    def _reduce(self, agreed: Sequence[int]) -> None:
        buckets = self._buckets()
        chosen = [bucket for number, bucket in enumerate(buckets) if agreed[2 * number]]
        late = [bucket for number, bucket in enumerate(buckets) if agreed[2 * number + 1]]
        for bucket in chosen:
            if bucket.wait is None:
                self._launch(bucket)
        self._wait_for(chosen)
        if late:
            self._round += 1
            for bucket in late:
                self._launch(bucket)
            self._wait_for(late)
        self._round += 1
        kinds = agreed[2 * len(buckets) : 2 * len(buckets) + len(self._entries)]
        for bucket in chosen:
            self._write_back(bucket, kinds)
        changed = agreed[2 * len(buckets) + len(self._entries) :]
        if any(changed):
            self._share_buffers(changed)
        sections = {id(bucket.section): bucket.section for bucket in chosen}.values()
        for section in sections:
            section.rounds += 1
            if section.rounds & (section.rounds - 1) == 0:  # after 1, 2, 4, 8 … exchanges
                self._rearrange(section)
            section.begin()

    def _wait_for(self, buckets: Iterable[_Bucket]) -> None:
        with _naming_lost_ranks():
            for bucket in buckets:
                assert bucket.wait is not None
                bucket.wait()
        self._after_round(self._round)

    def _write_back(self, bucket: _Bucket, kinds: Sequence[int]) -> None:
        targets, sources = [], []
        with torch.no_grad():
            for number, entry in enumerate(bucket.entries):
                parameter, kind = entry.parameter, kinds[entry.number]
                gradient = parameter.grad
                if kind and (kind == _SPARSE or bucket.is_sparse):
                    entry.sparse = True
                    parameter.grad = self._averaged_sparse(parameter)
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

    def _averaged_sparse(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Sparse gradients are gathered on the CPU, where every backend has a group for it."""
        gradient = parameter.grad
        if gradient is None:
            no_indices = torch.empty((1, 0), dtype=torch.int64, device="cpu")
            no_rows = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device="cpu")
            gradient = _sparse(no_indices, no_rows, parameter)
        elif not gradient.is_sparse:
            gradient = gradient.to_sparse(1)
        gradient = gradient.detach().cpu().coalesce()
        world_size = dist.get_world_size(self._small)
        counts = torch.zeros(world_size, dtype=torch.int64, device="cpu")
        counts[self._rank] = gradient._nnz()
        with _naming_lost_ranks():
            dist.all_reduce(counts, group=self._small)
            most = int(counts.max())
            indices = torch.zeros((gradient.sparse_dim(), most), dtype=torch.int64, device="cpu")
            indices[:, : gradient._nnz()] = gradient.indices()
            values = torch.zeros((most, *gradient.values().shape[1:]), dtype=gradient.dtype, device="cpu")
            values[: gradient._nnz()] = gradient.values()
            all_indices = [torch.empty_like(indices) for _ in range(world_size)]
            all_values = [torch.empty_like(values) for _ in range(world_size)]
            dist.all_gather(all_indices, indices, group=self._small)
            dist.all_gather(all_values, values, group=self._small)
        sizes = counts.tolist()
        total = _sparse(
            torch.cat([each[:, :size] for each, size in zip(all_indices, sizes)], dim=1),
            torch.cat([each[:size] for each, size in zip(all_values, sizes)]),
            parameter,
        )
        return (total.coalesce() / world_size).to(parameter.device)

    def _rearrange(self, section: _Section) -> None:
        """Put buckets into the order in which the first rank's gradients came; those that did not come stay last."""
        came = {id(entry) for entry in section.order}
        current = [entry for bucket in section.buckets for entry in bucket.entries]
        wanted = section.order + [entry for entry in current if id(entry) not in came]
        numbers = torch.tensor([entry.number for entry in wanted], dtype=torch.int64, device="cpu")
        with _naming_lost_ranks():
            dist.broadcast(numbers, src=0, group=self._small)
        order = [self._entries[number] for number in numbers.tolist()]
        if order != current or any(entry.sparse != entry.bucket.is_sparse for entry in order if entry.bucket):
            section.arrange(order)
            self._number_buckets()

    # Parameters and buffers

    def _buffer_values(self) -> list[torch.Tensor]:
        """As they are now: a module may have replaced one. By `.data`, since a graph that waits for its backward pass
        may have saved a buffer whose statistics it does not use."""
        return [module._buffers[name].data for module, name in self._buffers]

    def _share_buffers(self, changed: Sequence[int]) -> None:
        values = self._buffer_values()
        self._broadcast([value for value, has_changed in zip(values, changed) if has_changed])
        for number, has_changed in enumerate(changed):
            if has_changed:
                self._copies[number] = _copy(values[number])

    def _broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Bring the first rank's values to all, byte by byte."""
        for run in _runs(tensors):
            group = self._small if run[0].device.type == "cpu" else None
            packed = torch.cat([each.contiguous().reshape(-1).view(torch.uint8) for each in run])
            with _naming_lost_ranks():
                dist.broadcast(packed, src=0, group=group)
            start = 0
            for each in run:
                size = each.numel() * each.element_size()
                part = packed[start : start + size].clone()  # aligned for its dtype
                each.copy_(part.view(each.dtype).view(each.shape))
                start += size

    def _compare_parameters(self) -> None:
        """Raises UsageProblem, on all ranks alike, for the first parameter that differs between them."""
        self._wants_check = False
        kind = torch.int64 if self._is_uniform else torch.float64
        each = [_figure(entry.parameter, self._is_uniform) for entry in self._entries]
        figures = torch.stack([figure.to(each[0].device) for figure in each]).to("cpu", kind)
        bounds = torch.cat([figures, -figures])
        with _naming_lost_ranks():
            dist.all_reduce(bounds, op=dist.ReduceOp.MAX, group=self._small)
        most, negative = bounds.chunk(2)
        least = -negative
        if self._is_uniform:
            differs = most != least
        else:
            differs = ~((most - least <= TOLERANCE * most) | (most == least) | (most.isnan() & least.isnan()))
        if not bool(differs.any()):
            return
        entry = self._entries[int(differs.nonzero()[0])]
        near = "" if self._is_uniform else f" by more than {TOLERANCE:g} of its norm"
        when = f"step {self._steps}" if self._steps else f"backward pass {self._all_passes}"
        raise UsageProblem(
            f"After {when} the parameter {entry.name} differs between the ranks{near}: something other "
            "than averaged gradients has changed it, and not alike on all ranks.",
            "Look for what each rank decides by its own data: a scheduler fed with a local loss (give it "
            "cluster.mean(loss)), noise, or parameters changed by hand.",
        )

    def finish(self) -> bool:
        """Compare the parameters of all ranks a last time. False where another rank had left, or did not come within
        LAST_CHECK_S: it is not waited for longer."""
        if self._closed or not self._entries:
            return True
        counts = [_END, self._steps, self._round, 0, 0, 0]
        header = [each for count in counts for each in (count, -count)]
        message = torch.tensor(self._padded(header), dtype=torch.int32, device="cpu")
        try:
            work = dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self._small, async_op=True)
            work.wait(timedelta(seconds=LAST_CHECK_S))
        except RuntimeError:
            return False
        if message[:_ROUND_AT].tolist() != header[:_ROUND_AT]:
            return False
        self._compare_parameters()
        return True

    # What others ask

    def average_value(self, value: torch.Tensor) -> torch.Tensor:
        """The mean of a tensor of few numbers over all ranks, on its own device."""
        total = value.detach().to("cpu", torch.float64, copy=True)
        with _naming_lost_ranks():
            dist.all_reduce(total, group=self._small)
        return (total / dist.get_world_size(self._small)).to(value)

    def times(self) -> tuple[float, float]:
        """(seconds that the last exchange added to its step without the waiting, seconds of waiting for other ranks).

        On a GPU the exchange is measured there; waiting is that of the host.
        """
        while self._events and self._events[0][1].query():
            start, end = self._events.pop(0)
            self._exchanged_s = max(self._waited_s, start.elapsed_time(end) / 1000)
        return max(0.0, self._exchanged_s - self._waited_s), self._waited_s


def is_due(count: int) -> bool:
    """Whether parameters are compared after so many steps."""
    return count % CHECK_EVERY == 0 if count >= CHECK_EVERY else count & (count - 1) == 0


@contextmanager
def _naming_lost_ranks() -> Iterator[None]:
    """What torch.distributed raises where another rank is gone, as PeerLost."""
    try:
        yield
    except RolesError:
        raise
    except RuntimeError as error:
        why = (str(error).splitlines() or ["its connection ended"])[0].rstrip(".")
        raise PeerLost("another rank", "another host", why) from None


def _parameters_of(optimizers: Iterable[Any]) -> Iterator[torch.nn.Parameter]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _unique(parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    return list({id(each): each for each in parameters}.values())


def _sparse(indices: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, tuple(like.shape), check_invariants=False)


def _copy(value: torch.Tensor) -> torch.Tensor | None:
    return value.clone() if value.device.type == "cpu" else None


def _is_same(value: torch.Tensor, copy: torch.Tensor) -> bool:
    """Bit for bit, so that a NaN that stays is no change."""
    if value.shape != copy.shape or value.dtype != copy.dtype:
        return False
    if torch.equal(value, copy):
        return True
    ours, theirs = (each.contiguous().reshape(-1).view(torch.uint8) for each in (value, copy))
    return bool(torch.equal(ours, theirs))


def _figure(parameter: torch.nn.Parameter, exact: bool) -> torch.Tensor:
    """The sum of a parameter's bits as whole numbers, or its norm."""
    values = parameter.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    if not exact:
        return torch.linalg.vector_norm(values, dtype=torch.float64)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.contiguous().reshape(-1).view(whole).sum(dtype=torch.int64)


def _runs(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Those with elements, in runs of one device and at most BROADCAST_BYTES; a larger tensor is a run of its own."""
    run: list[torch.Tensor] = []
    size = 0
    for each in tensors:
        if not each.numel():
            continue
        more = each.numel() * each.element_size()
        if run and (size + more > BROADCAST_BYTES or each.device != run[0].device):
            yield run
            run, size = [], 0
        run.append(each)
        size += more
    if run:
        yield run


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _nothing() -> None:
    pass


def _after_the_end(flat: torch.Tensor, round_: int, bucket: int) -> Callable[[], object]:
    raise UsageProblem("A backward pass came after cluster.leave().", "Call leave() after the training loop.")
