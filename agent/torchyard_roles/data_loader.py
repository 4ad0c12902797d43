"""Data loaders for one worker's share of a dataset. Their positions are saved and restored.

With shuffle=True the samples of training loaders are reshuffled in every epoch. If there are several workers, the order
depends only on the seed and the epoch. N workers with batches of B together see the same samples in each step as one
process that takes batches of N·B in the same order.

Evaluation loaders give each sample to exactly one worker, so sums over all workers are exact. The workers' numbers of
samples may differ by one.

In a resumed run, the loader yields no batches in finished epochs, and continues the interrupted epoch with its next
batch in the same order.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from torchyard_roles.devices import move
from torchyard_roles.errors import UsageProblem
from torchyard_roles.training_metrics import Progress

OTHER_ORDER = 1_000_003
"""Offset of the shuffling seed of a worker that has the same share as another worker.

The order depends on the sum of seed and epoch. The offset exceeds any number of epochs, so the two workers never use
the same order.
"""


class DataShare(NamedTuple):
    """Share number `part` of the data, which is divided into `parts` equal shares."""

    part: int = 0
    parts: int = 1
    repetition: int = 0
    """Greater than 0 if another worker has the same part.

    The samples of this share are then drawn in a different random order, and are not evaluated.
    """


class EpochSampler(DistributedSampler):  # type: ignore[misc]  # mypy does not analyse torch, see pyproject.toml.
    """A DistributedSampler that increments its epoch automatically. set_epoch() still works."""

    def __iter__(self) -> Iterator[int]:
        # DistributedSampler computes the whole order in this call, so the epoch can be incremented before the first
        # index.
        order: Iterator[int] = super().__iter__()
        self.epoch += 1
        return order


class PartSampler(Sampler):  # type: ignore[misc]  # mypy does not analyse torch.
    """A sampler of one contiguous part of the dataset, in order. Each sample is in exactly one part."""

    def __init__(self, dataset: Any, share: DataShare) -> None:
        count = len(dataset)
        self._part = range(share.part * count // share.parts, (share.part + 1) * count // share.parts)
        if share.repetition:
            self._part = range(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self._part)

    def __len__(self) -> int:
        return len(self._part)


OnRequest = Callable[["ShareLoader", bool], None]
"""A function that is called before a loader yields a batch, and at the end of an epoch.

Its arguments are the loader, and a flag that is False at the end of an epoch and otherwise True.
"""


class SkippingBatchSampler:
    """A batch sampler whose first iteration skips `skip` batches without loading them, and then calls `then`."""

    def __init__(self, batches: Any, skip: int, then: Callable[[], None]) -> None:
        self._batches = batches
        self._skip = skip
        self._then = then

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._batches)
        skip, self._skip = self._skip, 0  # Batches are skipped in the first iteration only.
        if skip:
            for _ in range(skip):
                next(batches, None)
            self._then()
        yield from batches

    def __len__(self) -> int:
        return len(self._batches)


class ShareLoader(DataLoader):  # type: ignore[misc]  # mypy does not analyse torch.
    """A DataLoader that moves batches to the rank's device, counts them, and resumes within an epoch.

    An *epoch* is an iteration that starts with gradients enabled. Iterations under `torch.no_grad()` are neither
    counted as epochs nor skipped when the run resumes.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        device: torch.device,
        progress: Progress,
        share: DataShare | None = None,
        on_request: OnRequest | None = None,
        evaluating: Callable[[bool], None] | None = None,
        before_epoch: Callable[[ShareLoader], None] | None = None,
        cut: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        """Creates a loader.

        Args:
            cut: A function that replaces each training batch by a smaller one, for measurements.
            before_epoch: Called before each epoch. It may set the position at which the loader resumes.
            evaluating: A function that is called with True before and with False after each iteration. If it is given,
                this is an evaluation loader.
        """
        self._device = device
        self._progress = progress
        self._parts = (share or DataShare()).parts
        self._on_request = on_request or _nothing
        self._evaluating = evaluating
        self._before_epoch = before_epoch or _nothing
        self._cut = cut
        self._begun = 0
        self._batches = 0
        self._order: dict[str, Any] = {}
        self._skipping: SkippingBatchSampler | None = None
        self._finished_before = 0
        self._broken_off: dict[str, Any] | None = None
        self._resumed: Callable[[], None] = _nothing
        if options.get("num_workers"):
            options["worker_init_fn"] = OutlivesStop(options.get("worker_init_fn"))
        super().__init__(dataset, **options)

    @property
    def epochs_done(self) -> int:
        """The number of finished epochs, including those that were finished before the run resumed."""
        return max(self._begun - 1, self._finished_before)

    @property
    def epochs_begun(self) -> int:
        """The number of epochs that the script has begun."""
        return self._begun

    def skip_epochs(self, count: int) -> None:
        """Makes the first `count` epochs of the loader empty."""
        self._finished_before = count

    def position(self) -> dict[str, Any]:
        """Returns the position in the data, at which go_on_from() can resume.

        A position consists of the number of epochs begun, the number of batches in the last epoch, the state of that
        epoch's order, and the number of shares. Until a resumed loader has reached the epoch at which it resumes, the
        result is the position at which it resumes.
        """
        if self._broken_off is not None and self._begun <= self._finished_before:
            return self._broken_off
        return {"begun": self._begun, "batches": self._batches, "parts": self._parts, **self._order}

    def go_on_from(self, position: Mapping[str, Any], resumed: Callable[[], None]) -> None:
        """Makes the loader resume at a position that position() returned.

        Args:
            position: The position. If the number of workers has changed, the number of finished batches is rescaled to
                the current share of each worker.
            resumed: A function that restores the rest of the training state. It is called immediately before the first
                new batch is loaded, or at the end of the interrupted epoch if that epoch has no further batches.
        """
        batches = position["batches"] * position["parts"] // self._parts
        self._finished_before = max(0, position["begun"] - 1)
        self._broken_off = {**position, "batches": batches}
        self._resumed = resumed

    @property
    def _index_sampler(self) -> Any:
        # torch (2.4 to 2.13) reads this property when it starts an iterator, before the iterator's workers prefetch.
        return self._skipping if self._skipping is not None else super()._index_sampler

    def _fresh(self) -> Iterator[Any]:
        """Returns a new DataLoader iterator, whose workers start with SIGTERM blocked until OutlivesStop handles it."""
        if not self.num_workers or not hasattr(signal, "pthread_sigmask"):
            batches: Iterator[Any] = super().__iter__()
            return batches
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            batches = super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return batches

    def __iter__(self) -> Iterator[Any]:
        if self._evaluating is not None:
            self._evaluating(True)
            try:
                yield from self._moved(self._fresh())
            finally:
                self._evaluating(False)
            return
        if not torch.is_grad_enabled():
            yield from self._moved(self._fresh())
            return
        self._before_epoch(self)
        self._begun += 1
        self._batches = 0
        if self._begun <= self._finished_before:
            return
        resuming, self._broken_off = self._broken_off, None
        if resuming is not None and self._begun == resuming["begun"]:
            yield from self._rest(resuming)
            return
        # _on_request() may save the order, and restoring a state may change it, so the order is read before and after
        # the call.
        self._order = self._order_of_next()
        self._on_request(self, True)
        self._order = self._order_of_next()
        yield from self._counted(self._fresh())

    def _rest(self, position: Mapping[str, Any]) -> Iterator[Any]:
        """Iterates over the remaining batches of the interrupted epoch."""
        skip = int(position["batches"])
        same_order = position["parts"] == self._parts
        self._set_order(position if same_order else {"epoch": position.get("epoch")})
        self._order = (
            self._order_of_next()
            if not same_order
            else {name: value for name, value in position.items() if name not in ("begun", "batches", "parts")}
        )
        self._batches = skip
        if not skip:
            self._resumed()
            self._on_request(self, True)
            yield from self._counted(self._fresh())
        elif isinstance(self.dataset, IterableDataset):
            # Batches of an IterableDataset can only be skipped by iterating over them.
            batches = self._fresh()
            for _ in range(skip):
                next(batches, None)
            self._resumed()
            yield from self._counted(batches)
        else:
            self._skipping = SkippingBatchSampler(super()._index_sampler, skip, self._resumed)
            try:
                yield from self._counted(self._fresh())
            finally:
                self._skipping = None

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        first = True
        while True:
            if not first:
                self._on_request(self, True)
            first = False
            try:
                batch = next(batches)
            except StopIteration:
                self._on_request(self, False)
                return
            self._batches += 1
            if self._cut is not None:
                batch = self._cut(batch)
            if torch.is_grad_enabled():  # Evaluation batches do not count towards the throughput.
                count = samples(batch)
                self._progress.batch(count, is_partial=count < (self.batch_size or 0))
            yield move(batch, self._device) if self._device.type != "cpu" else batch

    def _moved(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield move(batch, self._device) if self._device.type != "cpu" else batch

    def _order_of_next(self) -> dict[str, Any]:
        """Returns what determines the next epoch's order: the epoch's number, or the state of a random generator."""
        if isinstance(self.sampler, DistributedSampler):
            return {"epoch": int(self.sampler.epoch)}
        if self.generator is not None:
            return {"generator": self.generator.get_state()}
        return {"torch": torch.get_rng_state()}

    def _set_order(self, order: Mapping[str, Any]) -> None:
        if isinstance(self.sampler, DistributedSampler):
            if order.get("epoch") is not None:
                self.sampler.set_epoch(order["epoch"])
        elif self.generator is not None:
            if "generator" in order:
                self.generator.set_state(order["generator"])
        elif "torch" in order:
            torch.set_rng_state(order["torch"])


class OutlivesStop:
    """A worker_init_fn that makes a DataLoader worker ignore SIGTERM unless the worker's own rank sent the signal.

    The keeper sends SIGTERM to the whole process group. If a DataLoader worker exited, the rank would fail before it
    reached the step boundary at which it saves a checkpoint.
    """

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        if hasattr(signal, "sigwaitinfo"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_end_for_the_parent_only, args=(os.getppid(),), daemon=True).start()
        if self._then is not None:
            self._then(worker)


def _end_for_the_parent_only(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid not in (parent, os.getppid()):
        pass
    os._exit(0)


def _nothing(*_: Any) -> None:
    pass


def make_loader(
    dataset: Dataset[Any],
    share: DataShare,
    *,
    batch_size: Any = ...,
    shuffle: Any = ...,
    seed: int | None,
    device: torch.device,
    progress: Progress,
    options: dict[str, Any],
    on_request: OnRequest | None = None,
    evaluating: Callable[[bool], None] | None = None,
    before_epoch: Callable[[ShareLoader], None] | None = None,
    cut: Callable[[Any], Any] | None = None,
) -> ShareLoader:
    """Creates the loader of one share of the data.

    Args:
        dataset: A dataset, or a DataLoader whose dataset and options are used.
        batch_size: The batch size per worker.
        shuffle, options: As in DataLoader, with its defaults, except that memory is pinned for a GPU.
        seed, evaluating, cut: As in `Cluster.loader` and ShareLoader.

    Raises:
        UsageProblem: The data cannot be divided among workers.
    """
    if isinstance(dataset, DataLoader):
        given = [
            *options,
            *(name for name, value in (("batch_size", batch_size), ("shuffle", shuffle)) if value != ...),
        ]
        if given:
            raise UsageProblem(
                f"loader() got a DataLoader and {given[0]}=… together.",
                f"Give {given[0]} to the DataLoader itself, or give loader() the dataset.",
            )
        dataset, options = _taken_over(dataset, share, seed, evaluates=evaluating is not None)
        batch_size, shuffle = options.pop("batch_size"), options.pop("shuffle")
    batch_size, shuffle = 1 if batch_size == ... else batch_size, False if shuffle == ... else bool(shuffle)
    if "batch_sampler" not in options and (not isinstance(batch_size, int) or batch_size < 1):
        raise UsageProblem(
            f"loader(batch_size={batch_size!r}): a batch holds at least one sample.",
            "Give it a whole number of 1 or more; for data that need no batches use a DataLoader of your own.",
        )
    options = {"pin_memory": device.type == "cuda", **options}
    streams = isinstance(dataset, IterableDataset)
    if evaluating is not None:
        _check_is_whole(shuffle=shuffle, drop_last=options.get("drop_last"))
    if share.parts > 1:
        _check_can_be_shared(dataset, streams, options)
        if evaluating is not None:
            options["sampler"] = PartSampler(dataset, share)
        else:
            options["sampler"] = EpochSampler(
                dataset,
                num_replicas=share.parts,
                rank=share.part,
                shuffle=shuffle,
                seed=(seed or 0) + share.repetition * OTHER_ORDER,
                drop_last=bool(options.get("drop_last")),
            )
    elif not streams and not options.keys() & {"sampler", "batch_sampler"}:
        options["shuffle"] = shuffle
        if seed is not None:
            options.setdefault("generator", torch.Generator().manual_seed(seed))
    if "batch_sampler" not in options:
        options["batch_size"] = batch_size
    return ShareLoader(
        dataset,
        device=device,
        progress=progress,
        share=share,
        on_request=on_request,
        evaluating=evaluating,
        before_epoch=before_epoch,
        cut=cut,
        **options,
    )


def _taken_over(
    loader: DataLoader[Any], share: DataShare, seed: int | None, *, evaluates: bool
) -> tuple[Dataset[Any], dict[str, Any]]:
    """Returns the dataset and the options of an existing DataLoader, including `batch_size` and `shuffle`."""
    kind = type(loader)
    if isinstance(loader, ShareLoader):
        raise UsageProblem("loader() got a loader that it has returned earlier.", "Give it each DataLoader once.")
    if kind.__iter__ is not DataLoader.__iter__ or kind._index_sampler is not DataLoader._index_sampler:
        raise UsageProblem(
            f"loader() cannot take over a {kind.__name__}, which has its own way of iterating.",
            "Give it a torch.utils.data.DataLoader, or use this loader unchanged, with this worker's part by "
            "cluster.rank.",
        )
    names = ("num_workers", "collate_fn", "drop_last", "timeout", "worker_init_fn", "persistent_workers", "generator")
    options = {name: getattr(loader, name) for name in names}
    if loader.pin_memory:
        options["pin_memory"] = True
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
        options["multiprocessing_context"] = loader.multiprocessing_context
        if hasattr(loader, "in_order"):  # DataLoader has this option only in torch 2.6 and later.
            options["in_order"] = loader.in_order
    sampler = loader.sampler
    is_random = type(sampler) is RandomSampler and not sampler.replacement
    is_random = is_random and sampler.num_samples == len(loader.dataset)
    is_plain = is_random or type(sampler) is SequentialSampler
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset, {**options, "batch_size": loader.batch_size, "shuffle": False}
    if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        if loader.batch_sampler is None:
            return loader.dataset, {**options, "batch_size": None, "shuffle": is_random}
        del options["drop_last"]  # A custom batch sampler determines this option itself.
        return loader.dataset, {**options, "batch_sampler": loader.batch_sampler, "batch_size": None, "shuffle": False}
    options["batch_size"] = loader.batch_size
    if not is_plain:
        return loader.dataset, {**options, "sampler": sampler, "shuffle": False}
    if is_random and options["generator"] is None:
        options["generator"] = sampler.generator
    if is_random and seed is not None and share.parts == 1:
        options["generator"] = torch.Generator().manual_seed(seed)
    return loader.dataset, {**options, "shuffle": is_random and not evaluates}


def samples(batch: Any) -> int:
    """Returns the number of samples in a batch.

    This is the size of the first dimension of the first tensor that is not empty, or 0 if there is no such tensor. A
    tensor without dimensions counts as one sample.
    """
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((count for count in map(samples, batch) if count), 0)
    return 0


def _check_is_whole(*, shuffle: bool, drop_last: Any) -> None:
    if shuffle:
        raise UsageProblem(
            "loader(evaluation=True, shuffle=True): an evaluation reads its part in the dataset's order.",
            "Leave shuffle out.",
        )
    if drop_last:
        raise UsageProblem(
            "loader(evaluation=True) with drop_last=True would leave samples out of the evaluation.",
            "Leave drop_last out.",
        )


def _check_can_be_shared(dataset: Dataset[Any], streams: bool, options: dict[str, Any]) -> None:
    if streams or not hasattr(dataset, "__len__"):
        raise UsageProblem(
            f"loader() cannot divide {type(dataset).__name__}, which has no length.",
            "Use a DataLoader of your own on a dataset that yields this worker's part, by cluster.rank.",
        )
    for name in ("sampler", "batch_sampler"):
        if options.get(name) is not None:
            raise UsageProblem(
                f"loader({name}=…): it would give every worker the same samples; the shares are made by loader().",
                f"Leave {name} out, or use it in a DataLoader of your own with cluster.rank.",
            )
