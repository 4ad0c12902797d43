"""Computes the metrics of a rank (steps, throughput and the script's own values), and decides when they are reported.

This module does no I/O. A value may be a GPU tensor. Reading it would wait for the GPU, so it is read only when a
report is due.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from torchyard_agent.protocol.metrics_report import MAX_CUSTOM_METRICS, METRICS, is_name
from torchyard_roles.errors import UsageProblem

INTERVAL_S = 0.2
"""Shortest time in seconds between two reports."""

THROUGHPUT_S = 10.0
"""Time in seconds over which the throughput is averaged, or the time since the first step if that is shorter."""

PARTS = ("compute_s", "exchange_s", "wait_s")
"""The metrics into which the time of the last step is divided."""

QUIET_S = 1.0
"""Shortest time in seconds between two automatic reports at the end of a step, if the script calls report() itself.

The script calls report() after the step and reports the loss, so its reports are preferred.
"""


class Progress:
    """The steps and samples of a rank, and the latest metrics that the script reported."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = 0
        self._samples = 0  # The number of samples in the batches of the unfinished step.
        self._samples_stepped = 0
        self._stepped_at: float | None = None
        self._step_s: float | None = None
        self._marks: deque[tuple[float, int]] = deque()  # (time, total samples) at the end of each recent step
        self._throughput: float | None = None
        self._noted: dict[str, Any] = {}
        self._names_sent: frozenset[str] = frozenset()
        self._taken_at: float | None = None
        self._fresh = False
        self._is_partial = self._was_partial = False
        """Whether a batch of the current step (`_is_partial`) or of the last step (`_was_partial`) is partial."""
        self._whole_parts: dict[str, float] = {}
        """The times (see PARTS) of the last reported step that had no partial batch."""

    @property
    def steps(self) -> int:
        """The number of steps of the run so far, including those before the resumed checkpoint."""
        return self._steps

    @property
    def samples(self) -> int:
        """The number of samples in the batches of finished steps since this process started."""
        return self._samples_stepped

    def resume(self, step: int) -> None:
        """Sets the number of finished steps to the step of a checkpoint."""
        self._steps = step

    def batch(self, samples: int, *, is_partial: bool = False) -> None:
        """Adds the samples of a training batch that the script has received.

        Args:
            is_partial: Whether the batch is smaller than the others, as the last one of an epoch may be.
        """
        self._samples += samples
        self._is_partial = self._is_partial or is_partial

    def step(self) -> None:
        """Records the end of a step of the run, for the step count and the throughput."""
        self._steps += 1
        self._samples_stepped += self._samples
        self._samples = 0
        self._was_partial, self._is_partial = self._is_partial, False
        before, self._stepped_at = self._stepped_at, self._clock()
        self._step_s = self._stepped_at - before if before is not None else None
        # The throughput is measured from the end of the first step, because that step is a warm-up. One entry per
        # report interval is sufficient.
        if not self._marks or self._stepped_at - self._marks[-1][0] >= INTERVAL_S:
            self._marks.append((self._stepped_at, self._samples_stepped))
        self._fresh = True

    def note(self, metrics: dict[str, Any]) -> None:
        """Stores metrics that the script reports.

        Raises UsageProblem if a value is not a single number, or there are too many metrics.
        """
        noted = {**self._noted, **{_checked(name): _scalar(name, value) for name, value in metrics.items()}}
        own = sorted(noted.keys() - set(METRICS))
        if len(own) > MAX_CUSTOM_METRICS:
            raise UsageProblem(
                f"report() got {len(own)} names of its own, but {MAX_CUSTOM_METRICS} are kept: "
                f"{', '.join(own[:5])}, ….",
                "Report fewer, for example a mean instead of a number for each layer.",
            )
        self._noted = noted
        self._fresh = True

    def due(self, *, at_step: bool = False) -> bool:
        """Returns whether a report is due.

        A report is due immediately if a metric has a new name, and otherwise at most 5 times a second.
        """
        if not self._fresh:
            return False
        if self._taken_at is None or not self._names_sent.issuperset(self._noted):
            return True
        interval = QUIET_S if at_step and self._noted else INTERVAL_S
        return self._clock() - self._taken_at >= interval

    @property
    def unsent(self) -> bool:
        """Whether values have changed since the last call of take()."""
        return self._fresh

    @property
    def was_taken(self) -> bool:
        """Whether take() has been called."""
        return self._taken_at is not None

    def take(self, statistics: Mapping[str, float] | None = None) -> dict[str, float]:
        """Returns the current report, and marks it as sent.

        Values that the script reports override measured ones.

        Args:
            statistics: The strategy's metrics. The step time minus its time for exchanging and waiting is reported as
                `compute_s`.
        """
        self._taken_at = self._clock()
        self._fresh = False
        self._names_sent = frozenset(self._noted)
        report: dict[str, float] = {}
        if self._steps:
            report["step"] = float(self._steps)
        self._measure()
        if self._throughput is not None:
            report["throughput"] = self._throughput
        report.update(statistics or {})
        if self._step_s is not None and "compute_s" not in report:
            others = report.get("exchange_s", 0.0) + report.get("wait_s", 0.0)
            report["compute_s"] = max(0.0, self._step_s - others)
        if self._was_partial:  # A partial batch takes less time, so the times of an earlier step are reported.
            report.update(self._whole_parts)
        else:
            self._whole_parts = {part: report[part] for part in PARTS if part in report}
        report.update({name: float(value) for name, value in self._noted.items()})
        return report

    def _measure(self) -> None:
        """Updates the throughput, unless the time since the first step is too short for a meaningful value."""
        if not self._marks or self._stepped_at is None:
            return
        while len(self._marks) > 1 and self._marks[1][0] <= self._stepped_at - THROUGHPUT_S:
            self._marks.popleft()
        began, samples = self._marks[0]
        elapsed = self._stepped_at - began
        if samples == self._samples_stepped or elapsed <= 0:
            return
        if elapsed >= INTERVAL_S / 2 or self._throughput is None:
            self._throughput = (self._samples_stepped - samples) / elapsed


def _checked(name: str) -> str:
    if not is_name(name):
        raise UsageProblem(
            f"report({ascii(name)[:80]}=…): a name has letters, digits and underscores, at most 64.",
            "Choose another name, such as validation_loss.",
        )
    return name


def _scalar(name: str, value: Any) -> Any:
    """Returns a value that can be converted by float() later. A tensor is detached but not read yet."""
    if hasattr(value, "detach"):
        if value.numel() != 1:
            raise UsageProblem(
                f"report({name}=…) got a tensor of {value.numel()} numbers, but a report holds one number each.",
                f"Report its mean, for example: {name}={name}.mean().",
            )
        return value.detach()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageProblem(f"report({name}={value!r}) is not a number.") from None
