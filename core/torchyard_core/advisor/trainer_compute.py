"""The computation of one trainer in a step, derived from a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from torchyard_core.advisor.profile import Profile, StepSize

BACKWARD_SHARE = 2 / 3
"""Share of a black box's step that is assumed to be its backward pass."""
MIB = 1024 * 1024
FIRST_BUCKET_BYTES = MIB
"""Size of the first bucket of gradients, as in `torchyard_roles.strategies.gradient_buckets`."""
RING_BUCKET_BYTES = 25 * MIB


@dataclass(frozen=True)
class TrainerCompute:
    """The parts of a step of a trainer that runs alone, and the data to exchange. Times are in seconds."""

    before_s: float
    """Time for loading data, the forward pass, and the rest of the loop."""
    backward_s: float
    optimizer_s: float
    spread_s: float
    """Standard deviation of the time from a step's beginning to the end of the backward pass."""
    measured_steps: int
    """Number of steps from which the times and their standard deviation were estimated."""
    gradients: tuple[tuple[int, float], ...]
    """(bytes, seconds from the beginning of the backward pass) in the order in which gradients are ready."""
    samples: float
    """Number of samples per step; 1 if the batch size is unknown."""
    model_bytes: int
    """M: the gradient bytes exchanged per step."""
    float32_bytes: int
    """Size of the parameters in bytes if float16 and bfloat16 parameters are converted to float32."""
    parameter_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    uses_gpu: bool
    memory_bytes_s: float
    copy_s_per_byte: float
    """Seconds per byte for one copy between GPU and host memory; 0 without a GPU."""
    chunk_cpu_s: float | None = None
    """CPU time of a worker and a reducer together for one chunk, in seconds. None if the profile lacks it."""

    @property
    def gradient_s(self) -> float:
        """The mean time from a step's beginning to the end of the backward pass."""
        return self.before_s + self.backward_s

    def buckets(self, bucket_bytes: int) -> list[tuple[float, int]]:
        """Returns (seconds from the step's beginning, bytes) of the buckets, in the order of sending.

        A bucket is ready once its last gradient is ready, as in `torchyard_roles.strategies.gradient_buckets`.
        """
        found: list[tuple[float, int]] = []
        size, limit, ready = 0, min(FIRST_BUCKET_BYTES, bucket_bytes), 0.0
        for number, (each, at) in enumerate(self.gradients):
            size += each
            ready = at
            if size >= limit or number == len(self.gradients) - 1:
                found.append((self.before_s + ready, size))
                size, limit = 0, bucket_bytes
        return found


def trainer_compute(profile: Profile, batch: int | None = None) -> TrainerCompute:
    """Returns the computation of a trainer with batches of `batch` samples, by default of the profile's batch size.

    Times for another batch size are taken from the least-squares line through the measured sizes. The line is not
    extrapolated below the time of the smallest size.

    Raises ValueError for another batch size if the profile has measurements of fewer than two batch sizes.
    """
    own = profile.sizes[0]
    backward, optimizer = own.backward.mean, own.optimizer.mean
    before = own.other.mean + own.forward.mean
    # A profile's standard deviation is relative to the mean of the measured steps, so it underestimates the standard
    # deviation relative to the true mean.
    unbiased = own.steps / (own.steps - 1) if own.steps > 1 else 1.0
    spread = sqrt(max(0.0, own.step.spread**2 - own.optimizer.spread**2) * unbiased)
    if profile.black_box:
        backward = BACKWARD_SHARE * own.other.mean
        before = own.other.mean - backward
    if batch is not None and batch != own.batch:
        before = _at(profile, batch, lambda size: size.other.mean + size.forward.mean)
        backward = _at(profile, batch, lambda size: size.backward.mean)
        spread *= (before + backward) / max(1e-12, own.other.mean + own.forward.mean + own.backward.mean)
    scale = backward / own.backward.mean if own.backward.mean else 1.0
    gradients = tuple((each.bytes, each.ready_s * scale) for each in profile.gradients)
    if not gradients:
        size = profile.model_bytes
        parts = max(1, min(64, size // MIB))
        gradients = tuple((size // parts, backward * (number + 1) / parts) for number in range(parts))
    rates = [rate for rate in (profile.to_gpu_bytes_s, profile.from_gpu_bytes_s) if rate]
    return TrainerCompute(
        before_s=before,
        backward_s=backward,
        optimizer_s=optimizer,
        spread_s=spread,
        measured_steps=min(size.steps for size in profile.sizes) if batch not in (None, own.batch) else own.steps,
        gradients=gradients,
        samples=float(batch or own.batch or 1),
        model_bytes=profile.model_bytes,
        float32_bytes=sum(_as_float32(dtype, size) for dtype, size in profile.parameter_bytes.items()),
        parameter_bytes=sum(profile.parameter_bytes.values()),
        optimizer_bytes=profile.optimizer_bytes,
        peak_bytes=profile.peak_bytes,
        uses_gpu=bool(rates),
        memory_bytes_s=profile.memory_bytes_s,
        copy_s_per_byte=1 / min(rates) if rates else 0.0,
        chunk_cpu_s=profile.chunk_cpu_s,
    )


def _as_float32(dtype: str, size: int) -> int:
    return size if dtype not in ("float16", "bfloat16") else 2 * size


def _at(profile: Profile, batch: int, part: Callable[[StepSize], float]) -> float:
    measured = [(size.batch, part(size)) for size in profile.sizes if size.batch is not None]
    if len(measured) < 2:
        raise ValueError("the profile has one batch size")
    slope, intercept = np.polyfit([float(size) for size, _ in measured], [value for _, value in measured], 1)
    smallest = min(value for _, value in measured)
    return max(smallest, float(intercept + slope * batch))
