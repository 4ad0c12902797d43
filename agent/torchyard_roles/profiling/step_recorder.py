"""Measures the parts of a script's steps in one process, and writes them to a JSON file.

The variable TORCHYARD_PROFILE names the file. A process with this variable trains alone, measures its steps, writes the
file and exits with code 0 once it has measured enough. No further code of the script runs at the exit, because the
script could otherwise save a model that is hardly trained.

A *part* of a step is `forward` (up to the first gradient, including the loss), `backward` (up to the last gradient),
`optimizer`, or `other` (loading data and the rest of the loop). On a GPU the parts end with a synchronization, so they
may be slightly longer than without measurement.

A script that calls `distribute()` is measured by parts. If it uses `cluster.loader`, it is measured with two or three
batch sizes: later steps get only the first half or the first quarter of each batch. Other scripts are measured as a
black box, by whole steps and the optimizer's part (`script_runner`).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    import torch

    from torchyard_roles.model_optimizer_pairs import Pairs

WARM_UP = 3
"""Number of steps that are not measured after each change of the batch size."""
FEWEST, MOST = 5, 60
"""Smallest and largest number of measured steps per batch size."""
ENOUGH_S = 6.0
"""Measured time in seconds after which FEWEST steps of a batch size suffice."""
LIMIT_S = 45.0
"""Time in seconds from the first step after which the process exits, with the measurements so far in the file."""
SMALLEST_BATCH = 2
MOST_GRADIENTS = 400
"""Largest number of gradients in the file. If there are more, neighboring gradients are combined."""
COPY_BYTES = 32 * 1024 * 1024
PARTS = ("step", "forward", "backward", "optimizer", "other")


class StepRecorder:
    """Measures the steps of one process. `recorder_for` returns the instance for a file."""

    def __init__(self, file: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._file = file
        self._clock = clock
        self.is_black_box = True
        """Whether the script has not called distribute()."""
        self._device: Any = None
        self._began: float | None = None
        self._step_began: float | None = None
        self._forward_began: float | None = None
        self._backward_began: float | None = None
        self._optimizer_began: float | None = None
        self._last_gradient: float | None = None
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._ready: list[tuple[int, Any]] = []
        """Parameter IDs, with the times or GPU events at which their gradients became ready in this backward pass."""
        self._backward_event: Any = None
        self._ready_s: dict[int, list[float]] = {}
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._optimizers: dict[int, Any] = {}
        self._batch: int | None = None
        """Number of samples in the current step's batch, or None if the script does not use `cluster.loader`."""
        self._division = 1
        self._largest: int | None = None
        self._skipped = 0
        self._sizes: list[dict[str, Any]] = []
        self._measured: list[dict[str, float]] = []

    # The following methods install and call the hooks.

    def watch(self, pairs: Pairs) -> None:
        """Installs the hooks that measure models and optimizers given to distribute()."""
        from torchyard_roles.module_hooks import before_forward
        from torchyard_roles.optimizer_hooks import after_step, before_step

        self.is_black_box = False
        for model in pairs.models:
            before_forward(model, self._at_forward)
            model.register_forward_hook(self._after_forward)
        for optimizer in pairs.optimizers:
            self._optimizers[id(optimizer)] = optimizer
            if not pairs.updates_by_hand:
                before_step(optimizer, lambda *_: self.before_optimizer())
                after_step(optimizer, lambda *_: self.after_optimizer())
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and id(parameter) not in self._parameters:
                        self._parameters[id(parameter)] = parameter
                        parameter.register_post_accumulate_grad_hook(partial(self._at_gradient, id(parameter)))
                        self._device = parameter.device

    def watch_optimizer(self, optimizer: Any) -> None:
        """Includes the parameters of an optimizer whose model is unknown in the measured sizes."""
        if id(optimizer) in self._optimizers:
            return
        self._optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._parameters[id(parameter)] = parameter
                    self._device = parameter.device

    def cut(self, batch: Any) -> Any:
        """Returns the batch, or its first half or quarter, and records the size of the result."""
        from torchyard_roles.data_loader import samples

        size = samples(batch)
        if self._division > 1:
            batch = _first(batch, size, max(1, size // self._division))
            size = samples(batch)
        self._batch = size
        return batch

    def before_optimizer(self) -> None:
        """Records the beginning of an optimizer's step."""
        self._optimizer_began = self._now()

    def after_optimizer(self) -> None:
        """Adds the time of an optimizer's step."""
        if self._optimizer_began is not None:
            self._spent["optimizer"] += self._now() - self._optimizer_began
            self._optimizer_began = None

    def stepped(self) -> None:
        """Ends a step, and exits the process once enough steps are measured."""
        now = self._now()
        self._end_pass()
        spent, self._spent = self._spent, dict.fromkeys(PARTS, 0.0)
        if self._began is None:
            self._began = now
        began, self._step_began = self._step_began, now
        self._forward_began = self._backward_began = self._last_gradient = None
        if began is None:
            return
        self._skipped += 1
        if self._skipped <= WARM_UP and now - self._began < LIMIT_S / 3:
            if not self._sizes:
                self._ready_s.clear()
            return
        if self._largest is None:
            self._largest = self._batch
        wanted = None if self._largest is None else max(1, self._largest // self._division)
        if self._batch != wanted and not self._is_late(now):
            return  # The last batch of an epoch may be smaller.
        spent["step"] = now - began
        spent["other"] = max(0.0, spent["step"] - spent["forward"] - spent["backward"] - spent["optimizer"])
        self._measured.append(spent)
        total = sum(each["step"] for each in self._measured)
        count = len(self._measured)
        if count >= MOST or (count >= FEWEST and total >= ENOUGH_S) or self._is_late(now):
            self._next_size(now)

    def _is_late(self, now: float) -> bool:
        return self._began is not None and now - self._began >= LIMIT_S

    def _next_size(self, now: float) -> None:
        self._keep_size()
        largest = self._largest or 0
        self._division *= 2
        # After two thirds of the time, no smaller batch size is measured any more.
        late = self._began is not None and now - self._began > LIMIT_S * 2 / 3
        if self.is_black_box or self._division > 4 or largest // self._division < SMALLEST_BATCH or late:
            self.finish()
        self._skipped = 0

    def _keep_size(self) -> None:
        if not self._measured:
            return
        measured, self._measured = self._measured, []
        parts: dict[str, Any] = {
            part: {"mean": fmean(values), "spread": pstdev(values)}
            for part in PARTS
            for values in ([each[part] for each in measured],)
        }
        batch = None if self._largest is None else max(1, self._largest // self._division)
        self._sizes.append({"batch": batch, "steps": len(measured), **parts})

    # The following methods measure the parts of a step.

    def _at_forward(self) -> None:
        if self._forward_began is None or self._last_gradient is not None:
            self._end_pass()
            self._forward_began = self._now()

    def _after_forward(self, module: Any, inputs: Any, outputs: Any) -> None:
        import torch
        from torch.utils import _pytree

        if torch.is_grad_enabled():
            for output in _pytree.tree_leaves(outputs):
                if isinstance(output, torch.Tensor) and output.requires_grad:
                    output.register_hook(self._at_backward)
                    return

    def _at_backward(self, *_: Any) -> None:
        if self._backward_began is None:
            self._backward_began = self._now()
            self._backward_event = self._event()
            if self._forward_began is not None:
                self._spent["forward"] += self._backward_began - self._forward_began

    def _at_gradient(self, key: int, _: Any) -> None:
        if self._backward_began is None:  # The model returned no tensor, so the first gradient starts this part.
            self._at_backward()
        self._last_gradient = self._clock()
        # Only times of the largest batch size, which is measured first, are written to the file.
        if not self._sizes:
            self._ready.append((key, self._event() or self._last_gradient))

    def _end_pass(self) -> None:
        """Adds the time of the last backward pass. Its end is known only when another part of the step begins."""
        if self._backward_began is None or self._last_gradient is None:
            return
        if self._is_cuda and self._ready:
            end = self._backward_event.elapsed_time(self._ready[-1][1]) / 1000
        else:
            end = self._last_gradient - self._backward_began
        self._spent["backward"] += max(0.0, end)
        for key, at in self._ready:
            after = self._backward_event.elapsed_time(at) / 1000 if self._is_cuda else at - self._backward_began
            self._ready_s.setdefault(key, []).append(max(0.0, after))
        self._ready.clear()
        self._backward_began = self._last_gradient = self._forward_began = None

    @property
    def _is_cuda(self) -> bool:
        return self._device is not None and self._device.type == "cuda"

    def _now(self) -> float:
        if self._is_cuda:
            import torch

            torch.cuda.synchronize(self._device)
        return self._clock()

    def _event(self) -> Any:
        if not self._is_cuda:
            return None
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    # The following methods write the file.

    def finish(self) -> None:
        """Writes the file and exits the process with code 0."""
        self.write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def write(self) -> None:
        """Writes the measurements so far. Does nothing before the first measured step."""
        self._keep_size()
        if not self._sizes:
            return
        file = Path(self._file)
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f"{file.name}.part")
        scratch.write_text(json.dumps(self.found()), encoding="utf-8")
        scratch.replace(file)

    def found(self) -> dict[str, Any]:
        """Returns the measurements, in the format of the file."""
        import torch

        from torchyard_roles.profiling.chunk_cost import chunk_cpu_s

        trained = list(self._parameters.values())
        states = [
            each
            for optimizer in self._optimizers.values()
            for state in optimizer.state.values()
            if isinstance(state, Mapping)
            for each in state.values()
            if isinstance(each, torch.Tensor)
        ]
        return {
            "black_box": self.is_black_box,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(self._device) if self._is_cuda else "cpu",
            "parameter_bytes": _by_dtype(trained),
            "gradient_bytes": _by_dtype([each.grad for each in trained if each.grad is not None] or trained),
            "optimizer_bytes": sum(each.numel() * each.element_size() for each in states),
            "gradients": [] if self.is_black_box else self._gradients(),
            "sizes": self._sizes,
            "peak_bytes": self._peak_bytes(),
            "chunk_cpu_s": chunk_cpu_s(),
            **self._copy_rates(),
        }

    def _gradients(self) -> list[dict[str, float]]:
        """Returns the sizes and mean times of the gradients, in the order in which they become ready."""
        order = sorted(self._ready_s, key=lambda key: fmean(self._ready_s[key]))
        single = [(_size(self._parameters[key]), fmean(self._ready_s[key])) for key in order]
        most = max(1, -(-len(single) // MOST_GRADIENTS))
        return [
            {"bytes": sum(size for size, _ in part), "ready_s": part[-1][1]}
            for part in (single[at : at + most] for at in range(0, len(single), most))
        ]

    def _peak_bytes(self) -> int:
        if self._is_cuda:
            import torch

            return int(torch.cuda.max_memory_allocated(self._device))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _copy_rates(self) -> dict[str, float]:
        """Returns copy rates in bytes per second: within memory and, if there is a GPU, between GPU and memory."""
        import torch

        source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cpu")
        target = torch.empty_like(source)
        rates = {"memory_bytes_s": self._rate(lambda: target.copy_(source))}
        if self._is_cuda:
            pinned = source.pin_memory()
            on_gpu = torch.empty(COPY_BYTES, dtype=torch.uint8, device=self._device)
            rates["to_gpu_bytes_s"] = self._rate(lambda: on_gpu.copy_(pinned))
            rates["from_gpu_bytes_s"] = self._rate(lambda: pinned.copy_(on_gpu))
        return rates

    def _rate(self, copy: Callable[[], Any]) -> float:
        copy()
        times = []
        for _ in range(3):
            began = self._now()
            copy()
            times.append(self._now() - began)
        return COPY_BYTES / max(min(times), 1e-9)


_recorders: dict[str, StepRecorder] = {}


def recorder_for(file: str) -> StepRecorder:
    """Returns the recorder for a file, which is created by the first call."""
    if file not in _recorders:
        _recorders[file] = StepRecorder(file)
    return _recorders[file]


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _by_dtype(tensors: Iterable[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in tensors:
        name = str(each.dtype).replace("torch.", "")
        found[name] = found.get(name, 0) + _size(each)
    return found


def _first(value: Any, size: int, wanted: int) -> Any:
    """Returns the batch with the first `wanted` samples of each of its tensors and lists that have `size` samples."""
    if hasattr(value, "shape"):
        return value[:wanted] if len(value.shape) and value.shape[0] == size else value
    if isinstance(value, Mapping):
        return {key: _first(each, size, wanted) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_first(each, size, wanted) for each in value))
    if isinstance(value, (list, tuple)):
        if isinstance(value, list) and len(value) == size and not any(hasattr(each, "shape") for each in value):
            return value[:wanted]
        return type(value)(_first(each, size, wanted) for each in value)
    return value
