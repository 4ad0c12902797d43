"""Averages gradient buckets in three stages: within a host, between hosts through reducers, and within a host again.

    every rank    reduce to the host's first rank (NCCL for GPUs, else gloo)
    first rank    copy to pinned memory, exchange, copy back
    every rank    broadcast from the first rank

The stages process different buckets at the same time, and each stage processes the buckets in order. If each host has
one rank, only the second stage is needed. CPU tensors need no copies.

On GPUs, reductions and broadcasts have separate streams. In a single stream, a reduction could wait on one rank for the
broadcast of an earlier bucket, while on another rank that broadcast waits for the reduction. This would be a deadlock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from torchyard_roles.errors import PeerLost, RolesError
from torchyard_roles.strategies.reduction_server.reducer_client import ReduceClient


class LocalGroups:
    """Process groups of the ranks on this host. All ranks of the world must create them together.

    There are two groups, because otherwise the broadcast of one bucket would wait for the reduction of the next.

    Args:
        counts: The number of ranks of each host, in rank order.
    """

    def __init__(self, counts: Sequence[int], rank: int) -> None:
        self.first = first_of_host(counts, rank)
        self.size = 1
        self.to_first: Any = None
        self.from_first: Any = None
        start = 0
        for count in counts:
            ranks = list(range(start, start + count))
            start += count
            if max(counts) == 1:
                groups: tuple[Any, Any] = (None, None)
            else:
                groups = dist.new_group(ranks), dist.new_group(ranks)
            if rank in ranks:
                self.size = count
                self.to_first, self.from_first = groups


def first_of_host(counts: Sequence[int], rank: int) -> int:
    """Returns the first rank on the host of `rank`. `counts` are the numbers of ranks per host."""
    start = 0
    for count in counts:
        if rank < start + count:
            break
        start += count
    return start if start < sum(counts) else rank


@dataclass
class _Bucket:
    flat: torch.Tensor
    number: tuple[int, int]  # The step number and the bucket's index.
    future: Any  # A torch.futures.Future whose result is `flat`.
    host: torch.Tensor | None = None
    exchanged: Future[torch.Tensor] | None = None
    reduced: Any = None  # The Work object of the reduction within the host.
    gone_out: Any = None  # A torch.cuda.Event, recorded after the reduction in the outgoing stream.


class HierarchicalReduction:
    """Averages the buckets of one section.

    Args:
        client: The client of the reducers on the first rank of a host, or None on other ranks.

    Attributes:
        failure: The error that ended the exchange. Buckets are then returned without averages, so callers must check
            this attribute before they use a bucket.
    """

    def __init__(self, client: ReduceClient | None, groups: LocalGroups, device: torch.device) -> None:
        self.failure: RolesError | None = None
        self._client = client
        self._groups = groups
        self._device = device
        on_gpu = device.type == "cuda"
        self._outgoing = torch.cuda.Stream(device) if on_gpu else None
        self._incoming = torch.cuda.Stream(device) if on_gpu else None
        self._pinned: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}
        self._outward: queue.SimpleQueue[_Bucket | None] = queue.SimpleQueue()
        self._inward: queue.SimpleQueue[_Bucket | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        if not self._is_direct:
            for work, name in ((self._send_out, "exchange out"), (self._receive, "exchange in")):
                self._threads.append(threading.Thread(target=work, name=name, daemon=True))
                self._threads[-1].start()

    @property
    def _is_direct(self) -> bool:
        return self._groups.size == 1 and self._device.type == "cpu"

    def average(self, flat: torch.Tensor, step: int, index: int) -> Any:
        """Starts averaging `flat` over all ranks. Returns a torch future whose result is `flat`."""
        future = torch.futures.Future(devices=[] if self._device.type == "cpu" else [self._device])
        bucket = _Bucket(flat, (step, index), future)
        if self.failure is not None:
            future.set_result(flat)
        elif self._is_direct:
            assert self._client is not None
            self._client.reduce(flat, step, index).add_done_callback(lambda done: self._conclude(bucket, done))
        else:
            if self._outgoing is not None:
                self._outgoing.wait_stream(torch.cuda.current_stream(self._device))
            if self._groups.size > 1:
                with _on(self._outgoing):
                    bucket.reduced = dist.reduce(flat, self._groups.first, group=self._groups.to_first, async_op=True)
            self._outward.put(bucket)
        return future

    def close(self) -> None:
        """Ends the threads. No bucket may be in progress."""
        self._outward.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _conclude(self, bucket: _Bucket, done: Future[torch.Tensor]) -> None:
        error = done.exception()
        if error is not None:
            self._fail(error)
        bucket.future.set_result(bucket.flat)

    def _fail(self, error: BaseException) -> None:
        """Stores the error, which the training thread raises before it uses the bucket."""
        if self.failure is None:
            gone = PeerLost("another rank", "this host", str(error))
            self.failure = error if isinstance(error, RolesError) else gone

    def _send_out(self) -> None:
        while True:
            bucket = self._outward.get()
            if bucket is not None:
                self._attempt(self._exchange, bucket)
            self._inward.put(bucket)
            if bucket is None:
                return

    def _receive(self) -> None:
        while True:
            bucket = self._inward.get()
            if bucket is None:
                return
            with _on(self._incoming):
                self._attempt(self._broadcast, bucket)
                # On a GPU, the future is complete when the stream reaches this point.
                bucket.future.set_result(bucket.flat)

    def _attempt(self, work: Callable[[_Bucket], None], bucket: _Bucket) -> None:
        try:
            work(bucket)
        except (RolesError, RuntimeError) as error:  # torch.distributed raises RuntimeError if a rank is lost.
            self._fail(error)

    def _exchange(self, bucket: _Bucket) -> None:
        with _on(self._outgoing):
            if bucket.reduced is not None:
                bucket.reduced.wait()
            if self._outgoing is not None:
                bucket.gone_out = torch.cuda.Event()
                bucket.gone_out.record(self._outgoing)
            if self._client is None:
                return
            bucket.host = bucket.flat
            if self._outgoing is not None:
                bucket.host = self._pinned_for(bucket)
                bucket.host.copy_(bucket.flat, non_blocking=True)
                self._outgoing.synchronize()
        bucket.exchanged = self._client.reduce(bucket.host, *bucket.number)

    def _broadcast(self, bucket: _Bucket) -> None:
        """Broadcasts a bucket within the host.

        The broadcast takes place even after a failure, because the other ranks wait for it.
        """
        error = bucket.exchanged.exception() if bucket.exchanged is not None else None
        if error is not None:
            self._fail(error)
        if bucket.gone_out is not None and self._incoming is not None:
            self._incoming.wait_event(bucket.gone_out)
        if bucket.host is not None and bucket.host is not bucket.flat:
            bucket.flat.copy_(bucket.host, non_blocking=True)
        if self._groups.size > 1:
            dist.broadcast(bucket.flat, self._groups.first, group=self._groups.from_first)

    def _pinned_for(self, bucket: _Bucket) -> torch.Tensor:
        """Returns the pinned memory for this bucket, which is reused in every step."""
        key = (bucket.number[1], bucket.flat.numel(), bucket.flat.dtype)
        if key not in self._pinned:
            self._pinned[key] = torch.empty(bucket.flat.numel(), dtype=bucket.flat.dtype, device="cpu", pin_memory=True)
        return self._pinned[key]


def _on(stream: Any) -> Any:
    """Returns a context manager for GPU work in a stream, or a null context if `stream` is None, as on the CPU."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)
