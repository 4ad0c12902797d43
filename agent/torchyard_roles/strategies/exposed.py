"""What the exchange of gradients adds to a step: DDP exchanges while it computes, and only the rest is felt.

    backward  ──────────────────────────┤ this rank's gradients are done
                                        ├── waits for the last rank ──┼── the last buckets travel ──┤
                                        :   wait_s                    :   exchange_s                :

The engine calls back at the end of a backward pass: ours before DDP's own call, which waits for its buckets, and then
after it. On a GPU, where neither waits for anything, events are recorded there instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree

MEET_EVERY = 8
"""Backward passes. In each of them it would cost a step of few milliseconds a few percent."""
MEET_WITHIN_S = 10.0
MEET_LOOK_S = 0.0002
EVENTS = 8
"""Pairs that are kept while nobody asks."""


class Exposed:
    """Watches a model in DistributedDataParallel. Seconds are of the newest backward pass that could be measured.

    `meets`: find out how long the last rank is waited for, in every MEET_EVERY-th pass, by a barrier of small words
    beside the buckets, which all ranks wait for here instead of a moment later in DDP. A call that all ranks make. On
    GPUs it would say when their hosts are through, not they themselves: there waiting is part of the exchange.
    """

    def __init__(self, shared: Any, device: torch.device, *, meets: bool) -> None:
        self._shared = shared
        self._on_gpu = device.type == "cuda"
        self._meeting: Any = None
        if meets and not self._on_gpu:
            self._meeting = dist.new_group(backend="gloo", timeout=timedelta(seconds=6 * MEET_WITHIN_S))
        self._passes = 0
        self._done_at = 0.0
        self._exposed_s = 0.0
        self._waited_s = 0.0
        self._events: list[tuple[Any, Any]] = []
        shared.register_forward_hook(self._after_forward)

    def times(self) -> tuple[float, float]:
        """(seconds that a backward pass took longer for exchange and wait, how many of them it waited)."""
        while self._events and self._events[0][1].query():
            done, exchanged = self._events.pop(0)
            self._exposed_s = done.elapsed_time(exchanged) / 1000
        return self._exposed_s, min(self._waited_s, self._exposed_s)

    def _after_forward(self, module: Any, inputs: Any, outputs: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        for output in _pytree.tree_leaves(outputs):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda gradient: _at_end(self._done))
                return

    def _done(self) -> None:
        """This rank's gradients are; DDP's own call comes next."""
        if not self._shared.require_backward_grad_sync:
            return
        self._passes += 1
        if self._on_gpu:
            if len(self._events) < EVENTS:
                done = _recorded()
                _at_end(lambda: self._events.append((done, _recorded())))
        elif self._meeting is None or self._passes % MEET_EVERY == 1:
            self._done_at = time.monotonic()
            _at_end(self._exchanged)
            if self._meeting is not None:
                self._meet()

    def _exchanged(self) -> None:
        self._exposed_s = time.monotonic() - self._done_at

    def _meet(self) -> None:
        """Not by the work's own future: its callbacks come from gloo's threads, and one that comes while the
        interpreter winds down aborts the process."""
        try:
            arrival = dist.barrier(self._meeting, async_op=True)
            while not arrival.is_completed() and time.monotonic() - self._done_at < MEET_WITHIN_S:
                time.sleep(MEET_LOOK_S)
            met = arrival.is_completed()
        except RuntimeError:  # a rank is gone, which DDP is about to say
            met = False
        self._waited_s = time.monotonic() - self._done_at
        if not met:
            self._meeting = None  # whoever is so late would put this rank's later calls out of turn


def _at_end(call: Callable[[], None]) -> None:
    """Of the backward pass that is on, or of what else is called there."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
