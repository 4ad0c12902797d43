"""Tests of what reports contain and when they are sent, with a test clock."""

from __future__ import annotations

import math

import pytest

from torchyard_roles.errors import UsageProblem
from torchyard_roles.training_metrics import Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeTensor:
    """Counts how often its value is read, because each read would make training wait for a GPU."""

    def __init__(self, value: float, numbers: int = 1) -> None:
        self.value, self.numbers, self.reads, self.detached = value, numbers, 0, 0

    def numel(self) -> int:
        return self.numbers

    def detach(self) -> FakeTensor:
        self.detached += 1
        return self

    def __float__(self) -> float:
        self.reads += 1
        return float(self.value)


def test_the_first_step_is_due_at_once_and_later_ones_five_times_a_second() -> None:
    clock = Clock()
    progress = Progress(clock)
    assert not progress.due()
    progress.step()
    assert progress.due(at_step=True)
    assert progress.take() == {"step": 1}
    sent = 0
    for _ in range(1000):  # Together, the steps take ten seconds: 10 ms each.
        clock.now += 0.01
        progress.step()
        if progress.due(at_step=True):
            progress.take()
            sent += 1
    assert 45 <= sent <= 50


def test_a_number_that_was_never_sent_is_due_at_once() -> None:
    progress = Progress(Clock())
    progress.step()
    progress.take()
    progress.note({"loss": 0.5})
    assert progress.due()
    assert progress.take() == {"step": 1, "loss": 0.5}
    progress.note({"loss": 0.4})
    assert not progress.due()


def test_a_script_that_reports_is_left_to_it_unless_it_stays_quiet_for_a_second() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.step()
    progress.note({"loss": 1.0})
    progress.take()
    clock.now += 0.5
    progress.step()
    assert not progress.due(at_step=True)
    assert progress.due(at_step=False)
    clock.now += 0.5
    assert progress.due(at_step=True)


def test_a_tensor_is_cut_loose_and_read_only_for_the_report() -> None:
    progress = Progress(Clock())
    losses = [FakeTensor(number) for number in range(10)]
    for loss in losses:
        progress.note({"loss": loss})
        progress.step()
    assert progress.take() == {"step": 10, "loss": 9.0, "compute_s": 0.0}  # The test clock stands still.
    assert [loss.reads for loss in losses] == [0] * 9 + [1]
    assert all(loss.detached == 1 for loss in losses)


def test_throughput_counts_the_samples_of_finished_steps_and_not_the_warm_up() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.batch(64)
    progress.step()
    assert "throughput" not in progress.take()
    for _ in range(10):
        progress.batch(64)
        clock.now += 0.1
        progress.step()
    progress.batch(64)  # The batch has been fetched in advance for a step that has not begun.
    assert progress.take()["throughput"] == pytest.approx(640)


def test_throughput_is_the_mean_of_the_last_ten_seconds() -> None:
    clock = Clock()
    progress = Progress(clock)

    def train(steps: int, step_s: float) -> float:
        for _ in range(steps):
            progress.batch(10)
            clock.now += step_s
            progress.step()
        return progress.take()["throughput"]

    assert train(51, 0.1) == pytest.approx(100)  # The rate is the mean of the 5 s since the first step.
    assert train(50, 0.1) == pytest.approx(100)
    # In half of the ten seconds, the rate was only 20 samples per second.
    assert train(10, 0.5) == pytest.approx((50 * 10 + 10 * 10) / 10, rel=0.05)
    # The fast steps ended more than ten seconds ago and do not count.
    assert train(10, 0.5) == pytest.approx(20, rel=0.05)
    # If a step takes longer than 10 s, only this step counts.
    assert train(2, 30.0) == pytest.approx(10 / 30)


def test_two_steps_at_once_do_not_multiply_the_throughput() -> None:
    clock = Clock()
    progress = Progress(clock)
    for _ in range(101):
        progress.batch(10)
        clock.now += 0.1
        progress.step()
    progress.take()
    progress.batch(10)
    clock.now += 1e-6
    progress.step()
    assert progress.take()["throughput"] == pytest.approx(100, rel=0.02)


def test_the_parts_of_a_partial_batch_are_not_those_of_a_step() -> None:
    """The times of a smaller last batch are not reported, so the last report contains the times of a full batch."""
    clock = Clock()
    progress = Progress(clock)

    def step(seconds: float, *, is_partial: bool = False) -> dict[str, float]:
        progress.batch(32, is_partial=is_partial)
        clock.now += seconds
        progress.step()
        return progress.take({"exchange_s": seconds / 4})

    step(0.4)
    whole = step(0.4)
    assert (whole["compute_s"], whole["exchange_s"]) == (pytest.approx(0.3), 0.1)
    partial = step(0.1, is_partial=True)
    assert (partial["compute_s"], partial["exchange_s"], partial["step"]) == (pytest.approx(0.3), 0.1, 3)
    assert step(0.8)["exchange_s"] == 0.2


def test_nan_is_a_number() -> None:
    progress = Progress(Clock())
    progress.note({"loss": math.nan})
    assert math.isnan(progress.take()["loss"])


def test_what_is_no_number_is_refused_in_a_sentence() -> None:
    progress = Progress(Clock())
    with pytest.raises(UsageProblem, match=r"report\(loss='much'\) is not a number"):
        progress.note({"loss": "much"})
    with pytest.raises(UsageProblem, match="a tensor of 3 numbers"):
        progress.note({"loss": FakeTensor(0.0, numbers=3)})


def test_names_of_the_scripts_own_are_reported_up_to_32_of_them() -> None:
    progress = Progress(Clock())
    progress.note({"accuracy": 0.5, "loss": 1.0})
    assert progress.take() == {"accuracy": 0.5, "loss": 1.0}
    progress.note({f"layer_{number}": 0.0 for number in range(31)})
    with pytest.raises(UsageProblem, match="report\\(\\) got 33 names of its own, but 32 are kept: accuracy, "):
        progress.note({"one_more": 1.0})
    assert len(progress.take()) == 33  # Metrics that were rejected are left out.
    progress.note({"step": 7, "accuracy": 0.75})
    assert progress.take()["accuracy"] == 0.75


@pytest.mark.parametrize("name", ["validation/loss", "1st", "", "é", "a" * 65, "x\n"])
def test_a_name_that_cannot_be_plotted_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UsageProblem, match="a name has letters, digits and underscores, at most 64"):
        Progress(Clock()).note({name: 1.0})


def test_after_a_resume_steps_count_on_and_the_strategys_numbers_are_in_the_report() -> None:
    progress = Progress(lambda: 0.0)
    progress.resume(120)
    progress.step()
    progress.note({"wait_s": 7.0})
    assert progress.steps == 121
    report = progress.take({"staleness": 2.0, "dropped": 1.0, "wait_s": 0.5})
    assert report == {"step": 121.0, "staleness": 2.0, "dropped": 1.0, "wait_s": 7.0}
